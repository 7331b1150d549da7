"""Lanes, which contain the topics, the consumer and the connection of a test case.

Test cases reuse lanes, because creating a lane takes time. Invariant: only one test case at a time
uses a lane, and the lane uses new topics after a test case has failed.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Final, Self

import confluent_kafka
from kio.schema.errors import ErrorCode

from integration.clusters import Cluster, features
from integration.clusters.restricted_user import Prefixes
from integration.failpoints.driver import TOPIC_PARTITIONS
from integration.raw import ConnectionClosedByBrokerError, RawConnection

CASES_PER_COMMIT_TOPIC: Final = 10
SETTLE_TIMEOUT_S: Final = 30.0
_POLL_S: Final = 0.005
_READ_UNCOMMITTED: Final = 0
_READ_COMMITTED: Final = 1
_CLOSED: Final = frozenset({"Empty", "CompleteCommit", "CompleteAbort", "Dead"})
SETTINGS: Final[Mapping[str, str]] = {
    # Abort transactions soon after their timeout.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
    # The only broker must not be fenced when a busy machine delays its heartbeats.
    "broker.session.timeout.ms": "120000",
    "auto.create.topics.enable": "false",
    "transaction.two.phase.commit.enable": "true",
    "unstable.api.versions.enable": "true",
}
"""The configs of a cluster with one broker."""
PREFIXES: Final = Prefixes(
    outputs="output.", commit_topics="commits.", sink_ids="sink-", groups="group-"
)
"""The prefixes of all names. ACLs for these prefixes can restrict the sink."""


class NotSettledError(AssertionError):
    """A transaction or topic did not reach its final state before a deadline."""


class Lane:
    """The topics that cases use one after another, and requests to inspect these topics.

    `connection` contains the options with which the sink connects.
    """

    def __init__(self, cluster: Cluster, name: str, connection: Mapping[str, str]) -> None:
        self.connection = connection
        self._cluster = cluster
        self._name = name
        self._numbers = itertools.count(1)
        self._connection = RawConnection(cluster.address(cluster.broker_ids[0]))
        self._consumer: confluent_kafka.Consumer | None = None
        self._cases = 0
        self.topic = ""
        self.commit_topic = ""

    def prepare(self, *, fresh_commit_topic: bool) -> Sequence[int]:
        """Create topics for a case if needed; return the end offsets of the output topic."""
        if not self.topic:
            self.topic = f"{PREFIXES.outputs}{self._name}.{next(self._numbers)}"
            self._cluster.create_topic(self.topic, partitions=TOPIC_PARTITIONS)
        if fresh_commit_topic or self._cases % CASES_PER_COMMIT_TOPIC == 0:
            self.commit_topic = f"{PREFIXES.commit_topics}{self._name}.{next(self._numbers)}"
        self._cases += 1
        return self.ends(self.topic, TOPIC_PARTITIONS, _READ_UNCOMMITTED)

    def abandon(self) -> None:
        """Stop using the current topics after a case has failed.

        Open transactions of the failed case would block the next case.
        """
        self.topic = ""
        self._cases = 0
        self._reconnect()

    def ends(self, topic: str, partitions: int, isolation_level: int) -> list[int]:
        """Return the high watermarks, or the last stable offsets for read_committed."""
        response = self._call(
            "list_offsets",
            4,
            replica_id=-1,
            isolation_level=isolation_level,
            topics=[
                {
                    "name": topic,
                    "partitions": [
                        {"partition_index": p, "timestamp": -1} for p in range(partitions)
                    ],
                }
            ],
        )
        (found,) = response.topics
        for partition in found.partitions:
            assert partition.error_code == ErrorCode.none, partition
        return [p.offset for p in sorted(found.partitions, key=lambda p: p.partition_index)]

    def transactions(self, prefix: str) -> dict[str, str]:
        """Return the states of all transactional ids that start with `prefix`."""
        response = self._call("list_transactions", 0, state_filters=[], producer_id_filters=[])
        assert response.error_code == ErrorCode.none, response
        return {
            each.transactional_id: each.transaction_state
            for each in response.transaction_states
            if each.transactional_id.startswith(prefix)
        }

    def transaction_version(self) -> int:
        """Return the transaction version of the cluster: 1, or 2 if EndTxn bumps the epoch."""
        address = self._cluster.address(self._cluster.broker_ids[0])
        return 2 if features.finalized(address).get("transaction.version", 0) >= 2 else 1

    def fence(self, transactional_id: str) -> None:
        """Fence the producer of a transactional id. This aborts its open transaction."""
        deadline_s = time.monotonic() + SETTLE_TIMEOUT_S
        while True:
            response = self._call(
                "init_producer_id",
                3,
                transactional_id=transactional_id,
                transaction_timeout=60_000,
                producer_id=-1,
                producer_epoch=-1,
            )
            if response.error_code == ErrorCode.none:
                return
            if time.monotonic() > deadline_s:
                raise NotSettledError(
                    f"fencing {transactional_id} failed: {response.error_code.name}"
                )
            time.sleep(_POLL_S)

    def await_timeout(self, prefix: str) -> None:
        """Wait until brokers have aborted all transactions with ids that start with `prefix`."""
        deadline_s = time.monotonic() + SETTLE_TIMEOUT_S
        while not _CLOSED.issuperset(self.transactions(prefix).values()):
            if time.monotonic() > deadline_s:
                raise NotSettledError(f"transactions with the prefix {prefix} did not time out")
            time.sleep(_POLL_S)

    def committed(self, group_id: str) -> dict[int, int]:
        """Return the committed offsets of a group in the lane's topic, by partition."""
        response = self._call(
            "offset_fetch",
            7,
            group_id=group_id,
            topics=[{"name": self.topic, "partition_indexes": list(range(TOPIC_PARTITIONS))}],
            require_stable=True,
        )
        (topic,) = response.topics
        return {p.partition_index: p.committed_offset for p in topic.partitions}

    def await_closed(self, sink_id: str) -> None:
        """Wait until no transaction of the sink is open and the topics can be read to the end.

        Brokers respond to EndTxn before they write the transaction markers. Raises
        `NotSettledError` after a timeout.
        """
        deadline_s = time.monotonic() + SETTLE_TIMEOUT_S
        while True:
            still_open = self._open(sink_id)
            if not still_open:
                return
            if time.monotonic() > deadline_s:
                raise NotSettledError("; ".join(still_open))
            time.sleep(_POLL_S)

    def _open(self, sink_id: str) -> list[str]:
        ids = {
            sink_id: self.transactions(sink_id).get(sink_id, "Empty"),
            **self.transactions(f"{sink_id}/"),
        }
        found = [f"{each} is {state}" for each, state in ids.items() if state not in _CLOSED]
        for topic, partitions in ((self.topic, TOPIC_PARTITIONS), (self.commit_topic, 1)):
            stable = self.ends(topic, partitions, _READ_COMMITTED)
            ends = self.ends(topic, partitions, _READ_UNCOMMITTED)
            if stable != ends:
                found.append(f"{topic} ends at {ends}, but can be read only up to {stable}")
        return found

    def read(self, starts: Sequence[int]) -> list[tuple[bytes, int]]:
        """Return the values and partitions that a read_committed consumer reads.

        The consumer starts at the offsets in `starts`.
        """
        consumer = self._reader()
        consumer.assign(
            [
                confluent_kafka.TopicPartition(self.topic, partition, offset)
                for partition, offset in enumerate(starts)
            ]
        )
        rows: list[tuple[bytes, int]] = []
        unfinished = set(range(len(starts)))
        deadline_s = time.monotonic() + SETTLE_TIMEOUT_S
        while unfinished:
            message = consumer.poll(0.2)
            if message is None:
                if time.monotonic() > deadline_s:
                    raise NotSettledError(
                        f"{self.topic}: the ends of partitions {unfinished} were not reached "
                        f"within {SETTLE_TIMEOUT_S:g} s"
                    )
                continue
            error, value, partition = message.error(), message.value(), message.partition()
            assert partition is not None
            if error is None:
                assert value is not None
                rows.append((value, partition))
            elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                unfinished.discard(partition)
            else:
                raise NotSettledError(f"reading {self.topic} failed: {error}")
        consumer.unassign()
        return rows

    def _reader(self) -> confluent_kafka.Consumer:
        if self._consumer is None:
            self._consumer = confluent_kafka.Consumer(
                {
                    "bootstrap.servers": self._cluster.bootstrap_servers,
                    "group.id": self._name,
                    "enable.auto.commit": False,
                    "enable.partition.eof": True,
                    "isolation.level": "read_committed",
                    "fetch.wait.max.ms": 10,
                    "log_level": 2,
                }
            )
        return self._consumer

    def _call(self, api: str, version: int, /, **fields: Any) -> Any:
        try:
            return self._connection.call(api, version, **fields)
        except (OSError, ConnectionClosedByBrokerError):  # the broker closes idle connections
            self._reconnect()
            return self._connection.call(api, version, **fields)

    def _reconnect(self) -> None:
        with suppress(OSError):
            self._connection.close()
        self._connection = RawConnection(self._cluster.address(self._cluster.broker_ids[0]))

    def close(self) -> None:
        self._connection.close()
        if self._consumer is not None:
            self._consumer.close()


class Lanes:
    """A context manager that creates and closes the lanes (`Lane`) of a cluster."""

    def __init__(self, cluster: Cluster, connection: Mapping[str, str], *, name: str) -> None:
        self._cluster = cluster
        self._connection = connection
        self._name = name
        self._idle: queue.SimpleQueue[Lane] = queue.SimpleQueue()
        self._made: list[Lane] = []
        self._lock = threading.Lock()

    @contextmanager
    def lane(self) -> Iterator[Lane]:
        """Reserve a lane for one case."""
        lane = self._take()
        try:
            yield lane
        except BaseException:
            lane.abandon()
            raise
        finally:
            self._idle.put(lane)

    def _take(self) -> Lane:
        with self._lock:
            if not self._idle.empty():
                return self._idle.get()
            lane = Lane(self._cluster, f"{self._name}.{len(self._made)}", self._connection)
            self._made.append(lane)
            return lane

    def close(self) -> None:
        for lane in self._made:
            lane.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
