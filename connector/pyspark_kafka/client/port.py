"""The port `KafkaClient`, which the engines `native` and `librdkafka` implement.

Purpose: separate planning, reading and writing from the engines. Arguments and results are frozen
values; records are passed only as Arrow. Invariant: every call is bounded in time and fails with an
error of `pyspark_kafka.errors`. What it must not know: Spark.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from types import TracebackType
from typing import Protocol, Self

import pyarrow as pa

from pyspark_kafka.kafka.offsets import FetchRange, IsolationLevel, OffsetQuery
from pyspark_kafka.kafka.topics import TopicDescription, TopicPartition


class Producer(Protocol):
    """An idempotent producer with acks=all. Rows are confirmed only when `flush` returns.

    Callers end with `close` after a successful `flush`, and with `abort` otherwise.
    """

    def send(self, batch: pa.RecordBatch) -> None:
        """Queue validated rows with columns of `columns.PRODUCE_SCHEMA`.

        The columns `topic` and `value` are required; a missing column counts as null. Blocks while
        the send buffer is full. Raises `RowError` for a record that is too large to send,
        `DeliveryError` when a row has failed, and `AccessError`.
        """

    def flush(self) -> None:
        """Wait until the brokers have confirmed all rows.

        Raises `AccessError`, and `DeliveryError` with the topic, the partition and the broker's
        error code or the timeout (`kafka.delivery.timeout.ms`).
        """

    def close(self) -> None:
        """Return the producer to its client, which may lend it again."""

    def abort(self) -> None:
        """Drop unsent rows and close the connections; never raises."""


class KafkaReads(Protocol):
    """The requests of reading. Close it, or use `with`.

    Requests about topics and offsets are retried while leaders or coordinators move and brokers
    restart, for `kafka.default.api.timeout.ms` in total; then they raise `LeaderNotAvailableError`
    or `BrokerUnreachableError`. Other retriable errors are raised after `fetchOffset.numRetries`
    tries.
    """

    def list_topics(self) -> Collection[str]:
        """Return all topics that the principal may describe, without internal ones."""

    def describe_topics(self, topics: Collection[str]) -> Mapping[str, TopicDescription]:
        """Describe the topics that exist, without creating any."""

    def list_offsets(
        self, queries: Mapping[TopicPartition, OffsetQuery], isolation_level: IsolationLevel
    ) -> Mapping[TopicPartition, int | None]:
        """Resolve every query; None if no record is at or after the timestamp.

        Raises `UnknownTopicOrPartitionError` for the first partition that does not exist.
        """

    def committed_offsets(
        self, group_id: str, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int | None]:
        """Return a group's committed offsets; None for partitions without one."""

    def commit_offsets(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit a group's offsets without a transaction and without being a member.

        Brokers reject this while the group has members. Raises `AccessError` without the ACL READ
        on the group.
        """

    @property
    def pins_topic_ids(self) -> bool:
        """Whether `fetch` checks `topic_id`; if not, the caller checks it before."""

    def fetch(
        self,
        fetch_range: FetchRange,
        columns: tuple[str, ...],
        isolation_level: IsolationLevel,
        *,
        topic_id: str | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records of the range as Arrow batches with exactly these columns.

        `columns` are names of `columns.SOURCE_SCHEMA`, in any order. Gaps (control records, aborted
        transactions, compaction) are not errors; the last offsets of the range need not hold
        visible records. Raises `OffsetOutOfRangeError` (with the range that exists),
        `UnknownTopicOrPartitionError` (also if the topic has another id than `topic_id`),
        `FetchTimeoutError` if no data arrives for `kafkaConsumer.pollTimeoutMs`, or
        `CorruptBatchError`.
        """

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...


class KafkaClient(KafkaReads, Protocol):
    """A client for reading and writing."""

    def producer(self) -> Producer:
        """Return a producer without queued rows; end it with `close` or `abort`."""
