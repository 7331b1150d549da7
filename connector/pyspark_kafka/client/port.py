"""The `KafkaClient` interface, which the `native` and `librdkafka` engines implement.

The interface separates planning, reading and writing from the engines. Arguments and results are
immutable values, and records are passed only as Arrow batches. Invariant: every call is bounded in
time, and raises only errors of `pyspark_kafka.errors`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from types import TracebackType
from typing import Protocol, Self

import pyarrow as pa

from pyspark_kafka.kafka.offsets import FetchRange, IsolationLevel, OffsetQuery
from pyspark_kafka.kafka.topics import TopicDescription, TopicPartition


class Producer(Protocol):
    """An idempotent producer with acks=all. When `flush` returns, all rows are acknowledged.

    The caller must call `close` after a successful `flush`, and `abort` after an error.
    """

    def send(self, batch: pa.RecordBatch) -> None:
        """Queue validated rows with columns of `columns.PRODUCE_SCHEMA`.

        The `topic` and `value` columns are required. Other columns are treated as null if they are
        missing. Blocks while the send buffer is full. Raises `RowError` for a record that is too
        large or whose partition does not exist. Raises `DeliveryError` if an earlier row could not
        be written, and `AccessError` if access is denied.
        """

    def flush(self) -> None:
        """Wait until the brokers have acknowledged all rows.

        Raises `AccessError` or `DeliveryError`. A `DeliveryError` contains the topic, the
        partition, and the broker's error code or the timeout (`kafka.delivery.timeout.ms`).
        """

    def close(self) -> None:
        """Return the producer to its client, which may reuse it."""

    def abort(self) -> None:
        """Discard unsent rows and close the connections. Never raises an error."""


class KafkaReadClient(Protocol):
    """A client for reading. Close it, or use it in a `with` statement.

    While leaders or coordinators move or brokers restart, requests about topics and offsets are
    retried for `kafka.default.api.timeout.ms`. After this timeout, `LeaderNotAvailableError` or
    `BrokerUnreachableError` is raised. Other errors that may be temporary are raised after
    `fetchOffset.numRetries` attempts.
    """

    def list_topics(self) -> Collection[str]:
        """Return all topics that the principal may describe, except internal topics."""

    def describe_topics(self, topics: Collection[str]) -> Mapping[str, TopicDescription]:
        """Describe topics, without creating them. The result omits topics that do not exist."""

    def list_offsets(
        self, queries: Mapping[TopicPartition, OffsetQuery], isolation_level: IsolationLevel
    ) -> Mapping[TopicPartition, int | None]:
        """Return the requested offset of each partition.

        The offset is None if no record has the requested timestamp or a later timestamp. Raises
        `UnknownTopicOrPartitionError` for the first partition that does not exist.
        """

    def committed_offsets(
        self, group_id: str, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int | None]:
        """Return the group's committed offset for each partition, or None if it has none."""

    def commit_offsets(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets for a group, without a transaction and without joining the group.

        Brokers reject the request while the group has members. Raises `AccessError` if the
        principal lacks the READ ACL on the group.
        """

    @property
    def checks_topic_ids(self) -> bool:
        """Whether `fetch` checks `topic_id`. If False, callers must check the id before a fetch."""

    def fetch(
        self,
        fetch_range: FetchRange,
        columns: tuple[str, ...],
        isolation_level: IsolationLevel,
        *,
        topic_id: str | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records of the range as Arrow batches that contain only the given columns.

        `columns` are column names from `columns.SOURCE_SCHEMA`, in any order. Gaps in the offsets,
        including a gap at the end of the range, are not errors. They are caused by control records,
        aborted transactions and compaction. Raises `OffsetOutOfRangeError`,
        `UnknownTopicOrPartitionError`, `FetchTimeoutError` or `CorruptBatchError`. The message of
        an `OffsetOutOfRangeError` contains the available offsets. An `UnknownTopicOrPartitionError`
        is also raised if the topic's id is not `topic_id`. A `FetchTimeoutError` is raised if no
        data arrives for `kafkaConsumer.pollTimeoutMs`.
        """

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...


class KafkaClient(KafkaReadClient, Protocol):
    """A client for reading and writing."""

    def producer(self) -> Producer:
        """Return a producer without queued rows. The caller must call `close` or `abort` on it."""
