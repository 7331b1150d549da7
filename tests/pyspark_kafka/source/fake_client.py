"""A client of a cluster in memory, which records its requests."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from pyspark_kafka.client.port import Producer
from pyspark_kafka.columns import SOURCE_SCHEMA
from pyspark_kafka.errors import OffsetOutOfRangeError, UnknownTopicOrPartitionError
from pyspark_kafka.kafka.offsets import (
    EARLIEST,
    LATEST,
    AtTimestamp,
    FetchRange,
    IsolationLevel,
    OffsetQuery,
)
from pyspark_kafka.kafka.topics import TopicDescription, TopicPartition

_ids = count(1)


@dataclass
class FakeLog:
    """A log with a record at every offset from `start` to `end` that is not in `gaps`.

    `stable` is the last stable offset. A record's timestamp is 1000 times its offset. Values have
    at least `value_bytes` bytes.
    """

    start: int = 0
    end: int = 0
    stable: int | None = None
    gaps: Container[int] = frozenset()
    value_bytes: int = 0

    def latest(self, isolation_level: IsolationLevel) -> int:
        if isolation_level is IsolationLevel.READ_COMMITTED and self.stable is not None:
            return self.stable
        return self.end

    def at(self, timestamp_ms: int, isolation_level: IsolationLevel) -> int | None:
        visible = range(self.start, self.latest(isolation_level))
        found = (offset for offset in visible if offset * 1000 >= timestamp_ms)
        return next((offset for offset in found if offset not in self.gaps), None)


@dataclass
class FakeTopic:
    partitions: dict[int, FakeLog]
    topic_id: str | None = field(default_factory=lambda: f"id-{next(_ids)}")
    is_internal: bool = False


def topic(*ends: int, **kwargs: Any) -> FakeTopic:
    """Return a topic whose partitions have these log end offsets."""
    return FakeTopic(partitions={n: FakeLog(end=end) for n, end in enumerate(ends)}, **kwargs)


class FakeClient:
    """A client of these topics. `before_batch` can change them during a read."""

    def __init__(self, topics: dict[str, FakeTopic], *, batch_rows: int = 2) -> None:
        self.topics = topics
        self.batch_rows = batch_rows
        self.committed: dict[tuple[str, TopicPartition], int] = {}
        self.requests: list[str] = []
        self.fetched: list[tuple[FetchRange, tuple[str, ...]]] = []
        self.failures: list[Exception] = []
        self.before_batch: Callable[[int], None] = lambda _offset: None
        self.on_list_offsets: Callable[[], None] = lambda: None
        self.unknown_topics_responses = 0
        """The number of responses from a broker that has no metadata of the topics yet."""
        self.closed = False
        self.checks_topic_ids = False

    def log(self, partition: TopicPartition) -> FakeLog:
        topic = self.topics.get(partition.topic)
        if topic is None or partition.partition not in topic.partitions:
            raise UnknownTopicOrPartitionError(f"{partition} does not exist.")
        return topic.partitions[partition.partition]

    def _request(self, name: str) -> None:
        self.requests.append(name)
        if self.failures:
            raise self.failures.pop(0)

    def list_topics(self) -> Collection[str]:
        self._request("list_topics")
        return [name for name, topic in self.topics.items() if not topic.is_internal]

    def describe_topics(self, topics: Collection[str]) -> Mapping[str, TopicDescription]:
        self._request("describe_topics")
        if self.unknown_topics_responses > 0:
            self.unknown_topics_responses -= 1
            return {}
        return {
            name: TopicDescription(
                name=name,
                topic_id=self.topics[name].topic_id,
                partitions=tuple(self.topics[name].partitions),
                is_internal=self.topics[name].is_internal,
            )
            for name in topics
            if name in self.topics
        }

    def list_offsets(
        self, queries: Mapping[TopicPartition, OffsetQuery], isolation_level: IsolationLevel
    ) -> Mapping[TopicPartition, int | None]:
        self._request("list_offsets")
        self.on_list_offsets()
        offsets: dict[TopicPartition, int | None] = {}
        for partition, query in queries.items():
            log = self.log(partition)
            match query:
                case AtTimestamp(timestamp_ms=timestamp_ms):
                    offsets[partition] = log.at(timestamp_ms, isolation_level)
                case -2:
                    offsets[partition] = log.start
                case _:
                    assert query == LATEST
                    assert EARLIEST != LATEST
                    offsets[partition] = log.latest(isolation_level)
        return offsets

    def committed_offsets(
        self, group_id: str, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int | None]:
        self._request("committed_offsets")
        return {p: self.committed.get((group_id, p)) for p in partitions}

    def commit_offsets(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        self._request("commit_offsets")
        self.committed |= {(group_id, p): offset for p, offset in offsets.items()}

    def fetch(
        self,
        fetch_range: FetchRange,
        columns: tuple[str, ...],
        isolation_level: IsolationLevel,
        *,
        topic_id: str | None = None,
    ) -> Iterator[pa.RecordBatch]:
        self.requests.append("fetch")
        pinned = topic_id if self.checks_topic_ids else None
        self.fetched.append((fetch_range, columns))
        partition, position = fetch_range.topic_partition, fetch_range.start_offset
        while position < fetch_range.end_offset:
            self.before_batch(position)
            log = self.log(partition)
            if pinned not in (None, self.topics[partition.topic].topic_id):
                raise UnknownTopicOrPartitionError(f"{partition} has another topic id.")
            if not log.start <= position <= log.end:
                raise OffsetOutOfRangeError(f"Offset {position} of {partition} is out of range.")
            upto = min(position + self.batch_rows, fetch_range.end_offset, log.end)
            rows = [self._row(partition, o) for o in range(position, upto) if o not in log.gaps]
            if rows:
                batch = pa.RecordBatch.from_pylist(rows, schema=SOURCE_SCHEMA)
                yield batch.select(list(columns))
            position = upto

    def _row(self, partition: TopicPartition, offset: int) -> dict[str, object]:
        return {
            "key": None,
            "value": f"{partition}@{offset}".encode().ljust(self.log(partition).value_bytes),
            "topic": partition.topic,
            "partition": partition.partition,
            "offset": offset,
            "timestamp": offset * 1_000_000,
            "timestampType": 0,
            "headers": None,
        }

    def producer(self) -> Producer:
        raise NotImplementedError

    def close(self) -> None:
        self.closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
