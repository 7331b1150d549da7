"""Random failures of links, processes and machines under an acks=all load.

Invariants: an acknowledged record stays at its offset, and finally all replicas have the same
bytes. The last in-sync replica never loses its disk here, because neither this broker nor Kafka
could recover the records.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from kio.schema.errors import ErrorCode

from tests.broker_ref.node.clients import Asked
from tests.broker_ref.node.requests import produced
from tests.broker_ref.replication.cluster import values
from tests.broker_ref.scenarios.three_brokers import BROKERS, HEARTBEAT_MS, ThreeBrokers

STEPS = 60
PRODUCE_TIMEOUT_MS = 4_000
NODES = (*BROKERS, 0)
"""0 is the controller, as for `ThreeBrokers.separate`."""


class Chaos:
    """A cluster with one random operation per step."""

    def __init__(self, random: Random) -> None:
        self.cluster = ThreeBrokers()
        self.random = random
        self.asked: list[tuple[str, Asked]] = []
        self.history: list[str] = []
        self.down: set[int] = set()
        self.healed_ms = self.cluster.now_ms
        """When the links were last healed."""

    def run(self) -> None:
        """Run all steps, heal everything, and check."""
        doings: list[Callable[[], None]] = [self.wait, self.cut, self.heal]
        doings += [self.kill, self.start, self.forget, self.bounce_controller]
        for _ in range(STEPS):
            self.write()
            self.random.choice(doings)()
        self.history.append("heal everything")
        self.cluster.heal()
        for broker_id in sorted(self.down):
            self.cluster.start_broker(broker_id)
        self.cluster.settle()
        self.cluster.settle()
        self.check()

    def check(self) -> None:
        """Check acknowledged records, and that logs and epochs are equal."""
        cluster = self.cluster
        assert set(cluster.state.isr) == set(BROKERS)
        cluster.agreed()
        log = values(cluster.replica(1))
        for value, asked in self.asked:
            assert not cluster.is_open(asked), value
            if cluster.outcome(asked) is ErrorCode.none:
                found = log.get(produced(asked.answer).base_offset)
                assert found == value.encode(), f"the acknowledged record {value} is lost"

    # Operations

    def write(self) -> None:
        """Write a record to every broker that considers itself the leader."""
        for broker_id in BROKERS:
            if self.cluster.leads(broker_id):
                value = f"{len(self.asked)}"
                asked = self.cluster.write(broker_id, value, timeout_ms=PRODUCE_TIMEOUT_MS)
                self.history.append(f"write {value} to {broker_id}")
                self.asked.append((value, asked))

    def wait(self) -> None:
        milliseconds = self.random.choice((1, 50, 500, 2_500, 9_000))
        self.history.append(f"wait {milliseconds} ms")
        self.cluster.advance(milliseconds)

    def cut(self) -> None:
        one, other = self.random.sample(NODES, 2)
        self.history.append(f"cut {one} from {other}")
        self.cluster.separate(one, other)

    def heal(self) -> None:
        self.history.append("heal")
        if self.cluster.cut:
            self.healed_ms = self.cluster.now_ms
        self.cluster.heal()

    def kill(self) -> None:
        victim = self.random.choice(BROKERS)
        if victim not in self.down:
            self.history.append(f"kill {victim}")
            self.cluster.kill(victim)
            self.down.add(victim)

    def start(self) -> None:
        if self.down:
            broker_id = self.random.choice(sorted(self.down))
            self.history.append(f"start {broker_id}")
            self.cluster.start_broker(broker_id)
            self.down.discard(broker_id)

    def forget(self) -> None:
        """Cut the power of a machine; it restarts at once, or after the others have noticed."""
        cluster = self.cluster
        victim = self.random.choice(BROKERS)
        if cluster.cut or victim in self.down:
            return
        # A broker that was cut off is not safe before a heartbeat: its session may expire.
        cluster.advance(max(0, self.healed_ms + HEARTBEAT_MS - cluster.now_ms))
        healthy = set(cluster.state.isr) - {victim}
        if not healthy or self.in_sync() & self.down:
            return
        if not all(cluster.runs(broker_id) for broker_id in healthy):
            return
        self.history.append(f"power loss of {victim}")
        before = cluster.broker_epoch(victim)
        counts = victim in self.in_sync()
        cluster.kill(victim, forgets=self.random)
        if self.random.random() < 0.5:
            cluster.start_broker(victim)
        else:
            self.down.add(victim)
        if counts:
            cluster.run_until(
                lambda: victim not in self.in_sync() or cluster.broker_epoch(victim) != before
            )

    def in_sync(self) -> set[int]:
        """Return the brokers that are in the ISR, or join it when the controller is reached.

        Until a broker registers again, the controller does not know that it restarted.
        """
        cluster = self.cluster
        found = set(cluster.state.isr)
        for broker_id in filter(cluster.leads, BROKERS):
            asked = cluster.replica(broker_id).partition_state
            found |= asked.maximal_isr if asked is not None else set()
        return found

    def bounce_controller(self) -> None:
        self.history.append("power loss of the controller")
        self.cluster.kill_controller(forgets=self.random)
        self.cluster.advance(self.random.choice((0, 1_000)))
        self.cluster.start_controller()


def run(seed: int) -> None:
    chaos = Chaos(Random(seed))
    try:
        chaos.run()
    except BaseException:
        print(f"chaos {seed}:", *chaos.history, sep="\n  ")
        raise


@pytest.mark.parametrize("run_number", range(12))
def test_acknowledged_records_survive(run_number: int, seed: int) -> None:
    run(seed * 1_000 + run_number)


@pytest.mark.full
@pytest.mark.timeout(600)
def test_acknowledged_records_survive_in_many_runs(seed: int) -> None:
    for run_number in range(12, 300):
        run(seed * 1_000 + run_number)
