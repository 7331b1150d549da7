"""Where cases run: a cluster, and lanes of it with topics of their own, each for one case at a time.

Purpose: spare every case topics, a consumer and connections of its own. Invariant: a lane is used by
one case at a time, and a case that failed leaves nothing to the next: its lane gets other topics.
What it must not know: cases.
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

from integration.clusters import Cluster
from integration.failpoints.driver import TOPIC_PARTITIONS
from integration.raw import ConnectionClosedByBroker, RawConnection

CASES_PER_COMMIT_TOPIC: Final = 10
SETTLE_TIMEOUT_S: Final = 30.0
_POLL_S: Final = 0.005
_READ_UNCOMMITTED: Final = 0
_READ_COMMITTED: Final = 1
_CLOSED: Final = frozenset({"Empty", "CompleteCommit", "CompleteAbort", "Dead"})
SETTINGS: Final[Mapping[str, str]] = {
    # A transaction whose time is over is aborted soon.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
    # Nor is it fenced where a busy machine leaves it no time for heartbeats: it is the only one.
    "broker.session.timeout.ms": "120000",
    "auto.create.topics.enable": "false",
    "transaction.two.phase.commit.enable": "true",
    "unstable.api.versions.enable": "true",
}
"""Of a cluster of one broker."""


class NotSettled(AssertionError):  # noqa: N818
    """Something that is to be over is not; the message says what."""


class Lane:
    """Topics of one case after another, and the way to look into them."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster = cluster
        self._name = name
        self._numbers = itertools.count(1)
        self._connection = RawConnection(cluster.address(cluster.broker_ids[0]))
        self._consumer: confluent_kafka.Consumer | None = None
        self._cases = 0
        self.topic = ""
        self.commit_topic = ""

    @property
    def bootstrap_servers(self) -> str:
        return self._cluster.bootstrap_servers

    def prepare(self, *, fresh_commit_topic: bool) -> Sequence[int]:
        """Topics for one more case; where its output begins, by partition."""
        if not self.topic:
            self.topic = f"{self._name}.output.{next(self._numbers)}"
            self._cluster.create_topic(self.topic, partitions=TOPIC_PARTITIONS)
        if fresh_commit_topic or self._cases % CASES_PER_COMMIT_TOPIC == 0:
            self.commit_topic = f"{self._name}.commits.{next(self._numbers)}"
        self._cases += 1
        return self.ends(self.topic, TOPIC_PARTITIONS, _READ_UNCOMMITTED)

    def give_up(self) -> None:
        """What a failed case left open must not hold up the next."""
        self.topic = ""
        self._cases = 0
        self._reconnect()

    def ends(self, topic: str, partitions: int, isolation_level: int) -> list[int]:
        """High watermarks, or with read_committed last stable offsets."""
        answer = self._call(
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
        (found,) = answer.topics
        for partition in found.partitions:
            assert partition.error_code == ErrorCode.none, partition
        return [p.offset for p in sorted(found.partitions, key=lambda p: p.partition_index)]

    def transactions(self, prefix: str) -> dict[str, str]:
        """The transactional ids that begin so, with their states."""
        answer = self._call("list_transactions", 0, state_filters=[], producer_id_filters=[])
        assert answer.error_code == ErrorCode.none, answer
        return {
            each.transactional_id: each.transaction_state
            for each in answer.transaction_states
            if each.transactional_id.startswith(prefix)
        }

    def fence(self, transactional_id: str) -> None:
        """Take an id from whoever has it, which aborts its transaction."""
        deadline_s = time.monotonic() + SETTLE_TIMEOUT_S
        while True:
            answer = self._call(
                "init_producer_id",
                3,
                transactional_id=transactional_id,
                transaction_timeout=60_000,
                producer_id=-1,
                producer_epoch=-1,
            )
            if answer.error_code == ErrorCode.none:
                return
            if time.monotonic() > deadline_s:
                raise NotSettled(f"{transactional_id} cannot be fenced: {answer.error_code.name}")
            time.sleep(_POLL_S)

    def await_timeout(self, prefix: str) -> None:
        """Return once the brokers have aborted what was open under these ids."""
        deadline_s = time.monotonic() + SETTLE_TIMEOUT_S
        while not _CLOSED.issuperset(self.transactions(prefix).values()):
            if time.monotonic() > deadline_s:
                raise NotSettled(f"transactions under {prefix} do not time out")
            time.sleep(_POLL_S)

    def committed(self, group_id: str) -> dict[int, int]:
        """The offsets of a group in the lane's topic, by partition."""
        answer = self._call(
            "offset_fetch",
            7,
            group_id=group_id,
            topics=[{"name": self.topic, "partition_indexes": list(range(TOPIC_PARTITIONS))}],
            require_stable=True,
        )
        (topic,) = answer.topics
        return {p.partition_index: p.committed_offset for p in topic.partitions}

    def await_closed(self, x: str) -> None:
        """Return once nothing is open under X, and nobody who reads is held up.

        Markers are written after who ends a transaction has been answered. Raises `NotSettled`.
        """
        deadline_s = time.monotonic() + SETTLE_TIMEOUT_S
        while True:
            what = self._open(x)
            if not what:
                return
            if time.monotonic() > deadline_s:
                raise NotSettled("; ".join(what))
            time.sleep(_POLL_S)

    def _open(self, x: str) -> list[str]:
        ids = {x: self.transactions(x).get(x, "Empty"), **self.transactions(f"{x}/")}
        found = [f"{each} is {state}" for each, state in ids.items() if state not in _CLOSED]
        for topic, partitions in ((self.topic, TOPIC_PARTITIONS), (self.commit_topic, 1)):
            stable = self.ends(topic, partitions, _READ_COMMITTED)
            ends = self.ends(topic, partitions, _READ_UNCOMMITTED)
            if stable != ends:
                found.append(f"{topic} ends at {ends} and can be read up to {stable}")
        return found

    def read(self, starts: Sequence[int]) -> list[tuple[bytes, int]]:
        """What a read_committed reader sees from there on: values and partitions."""
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
                    raise NotSettled(f"partitions {unfinished} of {self.topic} have no end")
                continue
            error, value, partition = message.error(), message.value(), message.partition()
            assert partition is not None
            if error is None:
                assert value is not None
                rows.append((value, partition))
            elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                unfinished.discard(partition)
            else:
                raise NotSettled(f"{self.topic} cannot be read: {error}")
        consumer.unassign()
        return rows

    def _reader(self) -> confluent_kafka.Consumer:
        if self._consumer is None:
            self._consumer = confluent_kafka.Consumer(
                {
                    "bootstrap.servers": self.bootstrap_servers,
                    "group.id": self._name,
                    "enable.auto.commit": False,
                    "enable.partition.eof": True,
                    "isolation.level": "read_committed",
                    "fetch.wait.max.ms": 10,
                }
            )
        return self._consumer

    def _call(self, api: str, version: int, /, **fields: Any) -> Any:
        try:
            return self._connection.call(api, version, **fields)
        except (OSError, ConnectionClosedByBroker):  # idle for too long
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
    """Lanes of a cluster, made when there are too few; a context manager."""

    def __init__(self, cluster: Cluster, *, name: str) -> None:
        self._cluster = cluster
        self._name = name
        self._idle: queue.SimpleQueue[Lane] = queue.SimpleQueue()
        self._made: list[Lane] = []
        self._lock = threading.Lock()

    @contextmanager
    def lane(self) -> Iterator[Lane]:
        """A lane that nobody else has meanwhile."""
        lane = self._take()
        try:
            yield lane
        except BaseException:
            lane.give_up()
            raise
        finally:
            self._idle.put(lane)

    def _take(self) -> Lane:
        with self._lock:
            if not self._idle.empty():
                return self._idle.get()
            lane = Lane(self._cluster, f"{self._name}.{len(self._made)}")
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
