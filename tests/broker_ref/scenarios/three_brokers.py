"""Three brokers and their controller in virtual time, with failing links and disks.

Purpose: a whole cluster for scenarios that need exact timing or a disk that loses data. Nodes and
requests are real; time, network and disks are simulated. The only topic `t` has one partition on
all three brokers.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any, Final

from kio.schema.errors import ErrorCode

from broker_ref.config import BrokerConfig
from broker_ref.controller.metadata import PartitionMetadata
from broker_ref.events import Event
from broker_ref.log.storage import Storage
from broker_ref.node.registration import BrokerState
from broker_ref.replication.partition import Partition
from integration.raw import request
from tests.broker_ref.memory_storage import MemoryStorage
from tests.broker_ref.node.clients import Asked, Clients
from tests.broker_ref.node.requests import batch, produce, produced
from tests.broker_ref.replication.cluster import values
from tests.broker_ref.virtual import CONTROLLER, Address, VirtualCluster, address_of

BROKERS: Final = (1, 2, 3)
TOPIC: Final = "t"
LAG_MS: Final = 2_000
SESSION_MS: Final = 3_000
HEARTBEAT_MS: Final = 500
SETTLED_MS: Final = 12_000
"""Enough time for a session to expire, an election, and replicas to come in sync."""

STEPS_MAX: Final = 5_000
"""The maximum number of events in one moment; more mean an endless loop between nodes."""


class ThreeBrokers(VirtualCluster):
    """Three running brokers that know topic `t`, led by broker 1."""

    def __init__(self, *, topic_configs: Mapping[str, str] | None = None, **configs: Any) -> None:
        """`configs` are fields of `BrokerConfig`; the default of `min.insync.replicas` is 2."""
        settings: dict[str, Any] = {
            "replica_lag_time_max_ms": LAG_MS,
            "broker_session_timeout_ms": SESSION_MS,
            "broker_heartbeat_interval_ms": HEARTBEAT_MS,
            "offsets_topic_num_partitions": 1,
            "offsets_topic_replication_factor": 3,
            **configs,
        }
        self._clients = Clients(self)
        self._failing: set[Address] = set()
        self._moment_ms = self._steps = 0
        super().__init__(*(BrokerConfig(node_id=broker_id, **settings) for broker_id in BROKERS))
        self.start()
        self.create_topic({"min.insync.replicas": "2", **(topic_configs or {})})

    def create_topic(self, configs: Mapping[str, str]) -> None:
        """Create `t` and wait until all replicas are in sync."""
        assignment = {"partition_index": 0, "broker_ids": BROKERS}
        create = request(
            "create_topics",
            7,
            topics=[
                {
                    "name": TOPIC,
                    "num_partitions": -1,
                    "replication_factor": -1,
                    "assignments": [assignment],
                    "configs": [{"name": k, "value": v} for k, v in configs.items()],
                }
            ],
            timeout=10_000,
            validate_only=False,
        )
        asked = self.ask(1, create)
        self.run_until(lambda: not self.is_open(asked))
        assert asked.answer.topics[0].error_code is ErrorCode.none, asked.answer
        self.settle()
        assert self.state.isr == BROKERS

    # Clients

    def ask(self, broker_id: int, asked: Any) -> Asked:
        """Send a request on a new connection."""
        return self._clients.ask(broker_id, asked)

    def write(
        self, broker_id: int, value: str, *, acks: int = -1, timeout_ms: int = 30_000
    ) -> Asked:
        """Produce a record to a broker, leader or not."""
        return self.ask(broker_id, produce(batch(value), acks=acks, timeout=timeout_ms))

    def answered(self, asked: Asked) -> Any:
        """Advance the clock until there is a response, and return it."""
        self.run_until(lambda: not self.is_open(asked))
        assert not asked.is_closed
        return asked.answer

    def written(self, broker_id: int, value: str) -> None:
        """Produce with acks=all; it must succeed."""
        asked = self.write(broker_id, value)
        self.answered(asked)
        assert self.outcome(asked) is ErrorCode.none

    def outcome(self, asked: Asked) -> ErrorCode | None:
        """Return the error code of a produce request to one partition; None without response."""
        if self.is_open(asked) or asked.is_closed:
            return None
        code: ErrorCode = produced(asked.answer).error_code
        return code

    def is_open(self, asked: Asked) -> bool:
        """Return whether there is no response yet."""
        return self._clients.is_open(asked)

    # State

    @property
    def state(self) -> PartitionMetadata:
        """The partition in the controller's metadata."""
        found = self.controller.side.metadata.partition(TOPIC, 0)
        assert found is not None
        return found

    def replica(self, broker_id: int) -> Partition:
        """Return the replica on a running broker."""
        broker = self.broker(broker_id).broker
        assert broker is not None
        return broker.replicas.partition(TOPIC, 0)

    def leads(self, broker_id: int) -> bool:
        """Return whether a broker runs and considers itself the leader."""
        node = self._nodes.get(address_of(broker_id))
        if node is None or self.broker(broker_id).broker is None:
            return False
        return self.replica(broker_id).is_leader

    def broker_epoch(self, broker_id: int) -> int:
        """Return the registered broker epoch, which differs for each incarnation."""
        return self.controller.side.metadata.brokers[broker_id].broker_epoch

    def runs(self, broker_id: int) -> bool:
        """Return whether a broker has started and not stopped."""
        return (
            address_of(broker_id) in self._nodes
            and self.broker(broker_id).state is BrokerState.RUNNING
        )

    def await_leader(self, broker_id: int) -> None:
        """Advance the clock until a broker leads and knows it."""
        self.run_until(lambda: self.state.leader == broker_id and self.leads(broker_id))

    def await_out_of_sync(self, broker_id: int) -> None:
        """Advance the clock until a broker has left the controller's ISR."""
        self.run_until(lambda: broker_id not in self.state.isr)

    def agreed(self) -> list[str]:
        """Return the values in the log, which must be the same bytes on every replica."""
        replicas = [self.replica(broker_id) for broker_id in BROKERS]
        ends = [(replica.log.log_end_offset, replica.high_watermark) for replica in replicas]
        assert {each for pair in ends for each in pair} == {ends[0][0]}, f"ends differ: {ends}"
        logs = [committed(replica) for replica in replicas]
        assert logs[0] == logs[1] == logs[2]
        return [value.decode() for value in values(self.replica(1)).values()]

    def settle(self) -> None:
        """Advance the clock until nothing more happens."""
        self.advance(SETTLED_MS)

    # Injected faults

    def separate(self, one: int, *others: int) -> None:
        """Cut a broker off from others, or from the controller (0); messages in flight are lost."""
        for other in others:
            ends = frozenset((_address(one), _address(other)))
            self.cut.add(ends)
            for key, link in list(self._links.items()):
                target = (link.channel.host, link.channel.port)
                if frozenset((link.source, target)) == ends and key in self._links:
                    self._break(key)
        self.deliver()

    def heal(self) -> None:
        """Restore every link."""
        self.cut.clear()

    def kill(self, broker_id: int, *, forgets: Random | None = None) -> None:
        """Kill a broker; with `forgets`, its machine, which loses unflushed data."""
        self.crash(address_of(broker_id))
        if forgets is not None:
            storage = self.disk(broker_id)
            self.storages[broker_id] = storage.crash(forgets)

    def crash(self, address: Address) -> None:
        """Crash as a virtual cluster does; requests to this address get no response."""
        super().crash(address)
        for broker_id in BROKERS:
            if address_of(broker_id) == address:
                self._clients.hang_up(broker_id)

    def kill_controller(self, *, forgets: Random | None = None) -> None:
        """Kill the controller; with `forgets`, its machine."""
        self.crash(CONTROLLER)
        if forgets is not None:
            assert isinstance(self.controller_storage, MemoryStorage)
            self.controller_storage = self.controller_storage.crash(forgets)

    def disk(self, broker_id: int) -> MemoryStorage:
        """Return the disk of a broker."""
        storage: Storage = self.storages[broker_id]
        assert isinstance(storage, MemoryStorage)
        return storage

    def let_fail(self, broker_id: int, operation: str) -> None:
        """Make the disk refuse this operation below `t-0`; the broker may stop."""
        self._failing.add(address_of(broker_id))
        self.disk(broker_id).fail_below(f"{TOPIC}-0/", operation)

    def repair(self, broker_id: int) -> None:
        """Make the disk work again."""
        self._failing.discard(address_of(broker_id))
        self.disk(broker_id).fail_on(None)

    def _step(self, address: Address, event: Event) -> None:
        if self.now_ms != self._moment_ms:
            self._moment_ms, self._steps = self.now_ms, 0
        self._steps += 1
        assert self._steps < STEPS_MAX, "the nodes do not come to rest"
        node = self._nodes.get(address)
        if node is None or address not in self._failing:
            super()._step(address, event)
            return
        for effect in node.handle(event, self.now_ms):
            self._queue.append((address, effect))
        if node.failure is not None:  # Its last messages are sent; then it stops, as in `io`.
            self.deliver()
            if address in self._nodes:
                self.crash(address)


def committed(replica: Partition) -> bytes:
    """Return the bytes of a replica's log up to its high watermark."""
    found = b""
    offset = replica.log.log_start_offset
    end_offset = replica.high_watermark
    while offset < end_offset:
        data = replica.log.read(
            offset, end_offset=end_offset, max_bytes=1 << 20, at_least_one_batch=True
        )
        assert data, f"there is no batch at offset {offset} below {end_offset}"
        found += data
        offset = _end_of(data)
    return found


def _end_of(data: bytes) -> int:
    """Return the offset after the last record of whole batches."""
    end_offset = position = 0
    while position < len(data):
        base_offset = int.from_bytes(data[position : position + 8])
        length = int.from_bytes(data[position + 8 : position + 12])
        end_offset = base_offset + int.from_bytes(data[position + 23 : position + 27]) + 1
        position += 12 + length
    return end_offset


def _address(node: int) -> Address:
    return CONTROLLER if node == 0 else address_of(node)
