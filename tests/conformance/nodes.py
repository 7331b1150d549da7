"""Three brokers that a test may stop, kill and pause.

The module provides a connection to each broker, the state of a partition in a broker's metadata,
and topics with chosen replicas, whose first replica is the leader. After `restore` all brokers run
and know each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from kio.schema.errors import ErrorCode

from integration.clusters import Cluster
from integration.raw import ConnectionClosedByBrokerError, RawConnection
from tests.conformance.batches import parse
from tests.conformance.eventually import eventually
from tests.conformance.wire import LATEST, describe_topics, fetch, list_offset, only

BROKERS = (1, 2, 3)
RACKS = {1: "a", 2: "b", 3: "c"}
SESSION_TIMEOUT_MS = 5_000
FETCH_WAIT_MS = 100
REPLICA_LAG_MS = 2_500
SETTINGS = {
    # Detect a dead broker soon, and a hanging follower even sooner.
    "broker.session.timeout.ms": str(SESSION_TIMEOUT_MS),
    "broker.heartbeat.interval.ms": "300",
    "replica.lag.time.max.ms": str(REPLICA_LAG_MS),
    # The next fetch of a follower returns the high watermark, so it must not wait long.
    "replica.fetch.wait.max.ms": str(FETCH_WAIT_MS),
    # Only tests elect preferred leaders.
    "auto.leader.rebalance.enable": "false",
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
}
NO_LEADER = -1
_TIMEOUT_S = 60.0
_POLL_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionInfo:
    """The state of a partition in one broker's metadata; `leader` is -1 if there is no leader."""

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: frozenset[int]


class Nodes:
    """The brokers of a cluster, and which of them the test has stopped."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._connections: dict[int, RawConnection] = {}
        self._down: set[int] = set()
        self._paused: set[int] = set()

    @property
    def running(self) -> list[int]:
        """The ids of the running brokers, in ascending order."""
        return [b for b in BROKERS if b not in self._down | self._paused]

    def to(self, broker_id: int) -> RawConnection:
        if broker_id not in self._connections:
            self._connections[broker_id] = RawConnection(self.cluster.address(broker_id))
        return self._connections[broker_id]

    def any(self) -> RawConnection:
        return self.to(self.running[0])

    def create(self, name: str, *replicas: Sequence[int], **configs: str) -> str:
        """Create a topic with these replicas for each partition, and wait until all are in sync."""
        self.cluster.create_topic(name, assignment=replicas, configs=configs)
        for partition, brokers in enumerate(replicas):
            self.await_isr(name, *brokers, partition=partition)
            for broker_id in self.running:
                eventually(
                    lambda b=broker_id, p=partition: self._is_known(name, p, b)  # type: ignore[misc]
                )
        return name

    def _is_known(self, name: str, partition: int, broker_id: int) -> bool:
        return self.state(name, partition, seen_by=broker_id) is not None

    def state(
        self, name: str, partition: int = 0, *, seen_by: int | None = None
    ) -> PartitionInfo | None:
        """Return the partition in a running broker's metadata, or None if it is unknown."""
        connection = self.any() if seen_by is None else self.to(seen_by)
        topic = only(describe_topics(connection, name).topics)
        if topic.error_code != ErrorCode.none:
            return None
        for found in topic.partitions:
            if found.partition_index == partition:
                return PartitionInfo(
                    leader=found.leader_id,
                    leader_epoch=found.leader_epoch,
                    replicas=tuple(found.replica_nodes),
                    isr=frozenset(found.isr_nodes),
                )
        return None

    def known(self, name: str, partition: int = 0) -> PartitionInfo:
        state = self.state(name, partition)
        assert state is not None, f"{name}-{partition} is unknown"
        return state

    def await_isr(self, name: str, *brokers: int, partition: int = 0) -> None:
        self._await(name, partition, lambda state: state.isr == set(brokers))

    def await_leader(self, name: str, *brokers: int, partition: int = 0) -> PartitionInfo:
        """Wait until one of these brokers leads the partition and serves it; -1 means no leader."""
        self._await(name, partition, lambda state: state.leader in brokers)
        if self.known(name, partition).leader != NO_LEADER:
            # The metadata contains the new leader shortly before the leader serves requests.
            eventually(lambda: self._serves(name, partition))
        return self.known(name, partition)

    def _serves(self, name: str, partition: int) -> bool:
        leader = self.known(name, partition).leader
        response = list_offset(self.to(leader), name, LATEST, partition=partition)
        return bool(response.error_code == ErrorCode.none)

    def stored(self, broker_id: int, name: str, partition: int = 0) -> list[bytes | None]:
        """Return the values that this broker, leader or follower, returns to a consumer."""
        response = fetch(self.to(broker_id), name, partition=partition)
        assert response.error_code == ErrorCode.none, response
        return [r.value for b in parse(response.records) for r in b.records]

    def await_stored(self, broker_id: int, name: str, *expected: str, partition: int = 0) -> None:
        """Wait until this broker returns exactly these values.

        A new leader receives the high watermark from its followers.
        """
        wanted = [value.encode() for value in expected]

        def holds() -> bool:
            response = fetch(self.to(broker_id), name, partition=partition)
            read = [r.value for b in parse(response.records) for r in b.records]
            return response.error_code == ErrorCode.none and read == wanted

        eventually(holds)

    def _await(self, name: str, partition: int, holds: Any) -> None:
        last: list[PartitionInfo | None] = []

        def is_reached() -> bool:
            last[:] = [self.state(name, partition)]
            return last[0] is not None and holds(last[0])

        try:
            eventually(is_reached, timeout_s=_TIMEOUT_S)
        except AssertionError as error:
            raise AssertionError(f"the state of {name}-{partition} is {last}: {error}") from None

    def kill(self, broker_id: int) -> None:
        self._close_connection(broker_id)
        self._down.add(broker_id)
        self.cluster.kill_broker(broker_id)

    def stop(self, broker_id: int) -> None:
        """Stop a broker with a controlled shutdown."""
        self._close_connection(broker_id)
        self._down.add(broker_id)
        self.cluster.stop_broker(broker_id)

    def start(self, broker_id: int) -> None:
        self.cluster.start_broker(broker_id)
        self._down.discard(broker_id)

    def pause(self, broker_id: int) -> None:
        self._paused.add(broker_id)
        self.cluster.pause_broker(broker_id)

    def resume(self, broker_id: int) -> None:
        self.cluster.resume_broker(broker_id)
        self._paused.discard(broker_id)

    def restore(self) -> None:
        """Start and resume all brokers, and close the test's connections."""
        for broker_id in sorted(self._paused):
            self.resume(broker_id)
        for broker_id in sorted(self._down):
            self.start(broker_id)
        for broker_id in BROKERS:
            self._close_connection(broker_id)
        for broker_id in BROKERS:
            eventually(lambda b=broker_id: self._sees_all(b), timeout_s=_TIMEOUT_S)  # type: ignore[misc]

    def _sees_all(self, broker_id: int) -> bool:
        """Return whether the broker's metadata contains all brokers: then no broker is fenced."""
        with (
            suppress(OSError, ConnectionClosedByBrokerError),
            RawConnection(self.cluster.address(broker_id), timeout_s=_POLL_TIMEOUT_S) as connection,
        ):
            found = connection.call("metadata", 9, topics=[]).brokers
            return {broker.node_id for broker in found} == set(BROKERS)
        return False

    def _close_connection(self, broker_id: int) -> None:
        connection = self._connections.pop(broker_id, None)
        if connection is not None:
            connection.close()
