"""Three brokers and their controller in virtual time, with failing links and disks.

They run scenarios that need exact timing or a disk that loses data. Nodes and requests are real;
time, network and disks are simulated. The only topic `t` has one partition on all three brokers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kio.schema.errors import ErrorCode

from broker_ref.config import BrokerConfig
from broker_ref.controller.metadata import PartitionMetadata
from broker_ref.replication.partition import Partition
from integration.raw import request
from integration.simulation.cluster import host_of
from tests.broker_ref.node.clients import Clients, SentRequest
from tests.broker_ref.node.requests import batch, produce, produced
from tests.broker_ref.replication.cluster import values
from tests.broker_ref.virtual import VirtualCluster

BROKERS: Final = (1, 2, 3)
TOPIC: Final = "t"
LAG_MS: Final = 2_000
SESSION_MS: Final = 3_000
HEARTBEAT_MS: Final = 500
SETTLED_MS: Final = 12_000
"""Enough time for a session to expire, an election, and replicas to catch up."""


class ThreeBrokers(VirtualCluster):
    """Three running brokers that know topic `t`, led by broker 1."""

    def __init__(self, *, topic_configs: Mapping[str, str] | None = None, **configs: Any) -> None:
        """`configs` are fields of `BrokerConfig`; `min.insync.replicas` is 2 by default."""
        settings: dict[str, Any] = {
            "replica_lag_time_max_ms": LAG_MS,
            "broker_session_timeout_ms": SESSION_MS,
            "broker_heartbeat_interval_ms": HEARTBEAT_MS,
            "offsets_topic_num_partitions": 1,
            "offsets_topic_replication_factor": 3,
            **configs,
        }
        super().__init__(*(BrokerConfig(node_id=broker_id, **settings) for broker_id in BROKERS))
        self._clients = Clients(self)
        self.start_all()
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
        sent = self.send(1, create)
        self.run_until(lambda: not sent.is_open())
        assert sent.response.topics[0].error_code is ErrorCode.none, sent.response
        self.settle()
        assert self.state.isr == BROKERS

    # Clients

    def send(self, broker_id: int, message: Any) -> SentRequest:
        return self._clients.send(broker_id, message)

    def write(
        self, broker_id: int, value: str, *, acks: int = -1, timeout_ms: int = 30_000
    ) -> SentRequest:
        """Produce a record to a broker, which may not be the leader."""
        return self.send(broker_id, produce(batch(value), acks=acks, timeout=timeout_ms))

    def await_response(self, sent: SentRequest) -> Any:
        """Advance the clock until there is a response, and return it."""
        self.run_until(lambda: not sent.is_open())
        assert not sent.is_closed
        return sent.response

    def write_acknowledged(self, broker_id: int, value: str) -> None:
        sent = self.write(broker_id, value)
        self.await_response(sent)
        assert self.outcome(sent) is ErrorCode.none

    def outcome(self, sent: SentRequest) -> ErrorCode | None:
        """Return the error code of a produce request to one partition, or None if there is none."""
        if sent.response is None:
            return None
        code: ErrorCode = produced(sent.response).error_code
        return code

    # State

    @property
    def state(self) -> PartitionMetadata:
        """The partition in the controller's metadata."""
        found = self.controller.side.metadata.partition(TOPIC, 0)
        assert found is not None
        return found

    def replica(self, broker_id: int) -> Partition:
        broker = self.broker(broker_id).broker
        assert broker is not None
        return broker.replicas.partition(TOPIC, 0)

    def leads(self, broker_id: int) -> bool:
        """Return whether a broker is running and considers itself the leader."""
        return (
            broker_id in self.running
            and self.broker(broker_id).broker is not None
            and self.replica(broker_id).is_leader
        )

    def broker_epoch(self, broker_id: int) -> int:
        """Return the registered broker epoch, which differs for each incarnation."""
        return self.controller.side.metadata.brokers[broker_id].broker_epoch

    def await_leader(self, broker_id: int) -> None:
        """Advance the clock until a broker leads and serves the partition."""
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
        """Advance the clock until all effects of earlier events are complete."""
        self.advance(SETTLED_MS)

    # Injected faults

    def fail_operation(self, broker_id: int, operation: str) -> None:
        """Make this operation fail on the disk below `t-0`, which may stop the broker."""
        self.disk(host_of(broker_id)).fail_below(f"{TOPIC}-0/", operation)

    def repair(self, broker_id: int) -> None:
        self.disk(host_of(broker_id)).fail_on(None)


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
    """Return the offset after the last record of complete batches."""
    end_offset = position = 0
    while position < len(data):
        base_offset = int.from_bytes(data[position : position + 8])
        length = int.from_bytes(data[position + 8 : position + 12])
        end_offset = base_offset + int.from_bytes(data[position + 23 : position + 27]) + 1
        position += 12 + length
    return end_offset
