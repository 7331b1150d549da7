"""A test of random failures of links, processes and machines under an acks=all load.

An acknowledged record stays at its offset, and in the end all replicas have the same bytes. The
last in-sync replica never loses its disk here, because neither this broker nor Kafka could recover
the records.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from kio.schema.errors import ErrorCode

from broker_ref.controller.client import CONTROLLER_ID
from integration.simulation.cluster import CONTROLLER, host_of
from tests.broker_ref.node.clients import SentRequest
from tests.broker_ref.node.requests import produced
from tests.broker_ref.replication.cluster import values
from tests.broker_ref.scenarios.three_brokers import BROKERS, HEARTBEAT_MS, ThreeBrokers

STEPS = 60
PRODUCE_TIMEOUT_MS = 4_000
NODES = (*BROKERS, CONTROLLER_ID)


class Chaos:
    def __init__(self, random: Random) -> None:
        self.cluster = ThreeBrokers()
        self.random = random
        self.sent: list[tuple[str, SentRequest]] = []
        self.history: list[str] = []
        self.down: set[int] = set()
        self.lost_power: set[int] = set()
        """The brokers that have not been in sync since their machines lost power."""
        self.is_cut = False
        self.healed_ms = self.cluster.now_ms
        """The time at which the links were last healed."""

    def run(self) -> None:
        doings: list[Callable[[], None]] = [self.wait, self.cut, self.heal]
        doings += [self.kill, self.start, self.lose_power, self.bounce_controller]
        for _ in range(STEPS):
            self.write()
            self.random.choice(doings)()
        self.history.append("heal everything")
        self.cluster.faults.heal_all()
        for broker_id in sorted(self.down):
            self.cluster.start_broker(broker_id)
        self.cluster.settle()
        self.cluster.settle()
        self.check()

    def check(self) -> None:
        """Check that acknowledged records are in the logs, and that all logs are equal."""
        cluster = self.cluster
        assert set(cluster.state.isr) == set(BROKERS)
        cluster.agreed()
        log = values(cluster.replica(1))
        for value, sent in self.sent:
            assert not sent.is_open(), value
            if cluster.outcome(sent) is ErrorCode.none:
                found = log.get(produced(sent.response).base_offset)
                assert found == value.encode(), f"the acknowledged record {value} is lost"

    # Operations

    def write(self) -> None:
        """Write a record to every broker that considers itself the leader."""
        for broker_id in BROKERS:
            if self.cluster.leads(broker_id):
                value = f"{len(self.sent)}"
                sent = self.cluster.write(broker_id, value, timeout_ms=PRODUCE_TIMEOUT_MS)
                self.history.append(f"write {value} to {broker_id}")
                self.sent.append((value, sent))

    def wait(self) -> None:
        milliseconds = self.random.choice((1, 50, 500, 2_500, 9_000))
        self.history.append(f"wait {milliseconds} ms")
        self.cluster.advance(milliseconds)

    def cut(self) -> None:
        one, other = self.random.sample(NODES, 2)
        self.history.append(f"cut {one} from {other}")
        self.cluster.faults.cut(one, other)
        self.is_cut = True

    def heal(self) -> None:
        self.history.append("heal")
        if self.is_cut:
            self.healed_ms = self.cluster.now_ms
        self.cluster.faults.heal_all()
        self.is_cut = False

    def kill(self) -> None:
        """Kill a broker, unless the records may exist only on its disk.

        The controller does not trust the log of a killed broker, and could elect another replica
        whose machine has lost power, as in Kafka.
        """
        victim = self.random.choice(BROKERS)
        self.lost_power -= set(self.cluster.state.isr)
        if victim in self.down or (self.lost_power and victim in self.in_sync()):
            return
        self.history.append(f"kill {victim}")
        self.cluster.kill(host_of(victim))
        self.down.add(victim)

    def start(self) -> None:
        if self.down:
            broker_id = self.random.choice(sorted(self.down))
            self.history.append(f"start {broker_id}")
            self.cluster.start_broker(broker_id)
            self.down.discard(broker_id)

    def lose_power(self) -> None:
        """Cut the power of a machine and restart it, before or after the failure is detected."""
        cluster = self.cluster
        victim = self.random.choice(BROKERS)
        if self.is_cut or victim in self.down:
            return
        # A broker whose links were restored may still lose its session before its next heartbeat.
        cluster.advance(max(0, self.healed_ms + HEARTBEAT_MS - cluster.now_ms))
        healthy = set(cluster.state.isr) - {victim}
        if not healthy or self.in_sync() & self.down:
            return
        if not all(cluster.is_serving(broker_id) for broker_id in healthy):
            return
        self.history.append(f"power loss of {victim}")
        before = cluster.broker_epoch(victim)
        counts = victim in self.in_sync()
        self.lost_power.add(victim)
        cluster.lose_power(host_of(victim), self.random)
        if self.random.random() < 0.5:
            cluster.start_broker(victim)
        else:
            self.down.add(victim)
        if counts:
            cluster.run_until(
                lambda: victim not in self.in_sync() or cluster.broker_epoch(victim) != before
            )

    def in_sync(self) -> set[int]:
        """Return the brokers that are in the ISR, or join it when the controller is reachable.

        The controller does not know that a broker has restarted until the broker registers again.
        """
        cluster = self.cluster
        found = set(cluster.state.isr)
        for broker_id in filter(cluster.leads, BROKERS):
            state = cluster.replica(broker_id).partition_state
            found |= state.maximal_isr if state is not None else set()
        return found

    def bounce_controller(self) -> None:
        self.history.append("power loss of the controller")
        self.cluster.lose_power(CONTROLLER, self.random)
        self.cluster.advance(self.random.choice((0, 1_000)))
        self.cluster.start_controller()


def run(seed: int) -> None:
    chaos = Chaos(Random(seed))
    try:
        chaos.run()
    except BaseException:
        print(f"chaos {seed}:", *chaos.history, sep="\n  ")
        raise


@pytest.mark.slow
@pytest.mark.parametrize("run_number", range(12))
def test_acknowledged_records_survive(run_number: int, seed: int) -> None:
    run(seed * 1_000 + run_number)
