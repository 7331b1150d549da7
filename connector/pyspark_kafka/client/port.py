"""The port `KafkaClient`: all that the connector asks of a Kafka client.

Purpose: one seam between planning, reading and writing on this side and an engine on the other
(`native`, `librdkafka`). Shapes are plain frozen values; record payloads cross only
as Arrow. Invariant: every call is bounded in time and fails with an error of
`pyspark_kafka.errors`. What it must not know: Spark.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from types import TracebackType
from typing import Protocol, Self

import pyarrow as pa

from pyspark_kafka.kafka.offsets import FetchRange, IsolationLevel, OffsetQuery
from pyspark_kafka.kafka.topics import TopicDescription, TopicPartition


class Producer(Protocol):
    """Idempotent, acks=all. Rows are confirmed when `flush` returns, and only then.

    Its user ends with `close` after a `flush` that went well, and with `abort` after anything else.
    """

    def send(self, batch: pa.RecordBatch) -> None:
        """Queue rows with columns of `columns.PRODUCE_SCHEMA`, all validated.

        `topic` and `value` must be there; other columns may be missing, which is as if they were
        null. Blocks while the send buffer is full. Raises `RowError` for a record larger than the
        client may send, `DeliveryError` as soon as a row is known to have failed, and
        `AccessError` when the brokers refuse us.
        """

    def flush(self) -> None:
        """Wait until the brokers have confirmed every row sent.

        Raises `DeliveryError` naming topic, partition and what the broker said, or that it said
        nothing within `kafka.delivery.timeout.ms`, and `AccessError`.
        """

    def close(self) -> None:
        """Give the producer back to its client, which may lend it again."""

    def abort(self) -> None:
        """Drop what is not sent yet, and give up the connection; never raises."""


class KafkaReads(Protocol):
    """What reading asks of a cluster, made from validated options. Close it, or use `with`.

    A question about topics or offsets is asked until it is answered while leaders or coordinators
    move and brokers restart, for `kafka.default.api.timeout.ms` in all; the caller need not. It
    raises `LeaderNotAvailableError` or `BrokerUnreachableError` when that time is over. Any other error is
    raised after `fetchOffset.numRetries` tries, unless another try cannot help.
    """

    def list_topics(self) -> Collection[str]:
        """Names of all topics the principal may see, internal ones left out."""

    def describe_topics(self, topics: Collection[str]) -> Mapping[str, TopicDescription]:
        """Describe these topics; one that does not exist is left out of the answer.

        Must not auto-create anything.
        """

    def list_offsets(
        self, queries: Mapping[TopicPartition, OffsetQuery], isolation_level: IsolationLevel
    ) -> Mapping[TopicPartition, int | None]:
        """Resolve every query; None where no record is at or after the timestamp asked for.

        Raises `UnknownTopicOrPartitionError` naming the first partition that does not exist.
        """

    def committed_offsets(
        self, group_id: str, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int | None]:
        """A group's committed offsets; None where it has committed none."""

    def commit_offsets(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit a group's offsets outside of any transaction, as a group without members.

        Brokers refuse that while the group has members. Raises `AccessError` for a group
        that we may not read.
        """

    @property
    def pins_topic_ids(self) -> bool:
        """Whether `fetch` heeds `topic_id`; where not, its caller looks before it fetches."""

    def fetch(
        self,
        fetch_range: FetchRange,
        columns: tuple[str, ...],
        isolation_level: IsolationLevel,
        *,
        topic_id: str | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records of the range as Arrow batches with exactly these columns.

        `columns` are names of `columns.SOURCE_SCHEMA` in the order wanted. Gaps
        (control records, aborted transactions, compaction) are not errors. Ends when the range
        is read to its end, even where its last offsets hold nothing visible. Raises
        `OffsetOutOfRangeError` (with the range that exists), `UnknownTopicOrPartitionError` (also where
        the topic of this name has another id than `topic_id`),
        `FetchTimeoutError` when nothing arrives for `kafkaConsumer.pollTimeoutMs`, or
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
    """An engine: what reading and writing ask of a cluster."""

    def producer(self) -> Producer:
        """A producer with nothing queued; end it with `close` or `abort`."""
