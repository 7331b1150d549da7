"""The `KafkaClient` of the `librdkafka` engine, which sends topic and offset requests.

The client also creates range readers and producers. Invariant: requests never create topics.
`retry_loop` implements the retries.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from types import TracebackType
from typing import Any, ClassVar, Final, Self

import pyarrow as pa
from confluent_kafka import IsolationLevel as RdIsolationLevel
from confluent_kafka import KafkaError as Code
from confluent_kafka import TopicCollection
from confluent_kafka import TopicPartition as RdTopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from pyspark_kafka.client.fetch_errors import ExistingOffsets, FetchErrors
from pyspark_kafka.client.librdkafka.errors import LOG, ErrorEvents, error_class
from pyspark_kafka.client.librdkafka.fetch import RangeReader
from pyspark_kafka.client.librdkafka.groups import GroupOffsets
from pyspark_kafka.client.librdkafka.producer import IdleProducer
from pyspark_kafka.client.librdkafka.retry_loop import NoResponseError, RetryLoop
from pyspark_kafka.client.librdkafka.settings import (
    LibrdkafkaSettings,
    rejected_properties_as_option_errors,
)
from pyspark_kafka.client.port import Producer
from pyspark_kafka.errors import UnknownTopicOrPartitionError, counted
from pyspark_kafka.kafka.offsets import (
    EARLIEST,
    LATEST,
    AtTimestamp,
    FetchRange,
    IsolationLevel,
    OffsetQuery,
)
from pyspark_kafka.kafka.topics import TopicDescription, TopicPartition

_NO_OFFSET: Final = -1
_DIAGNOSIS_TIMEOUT_S: Final = 5.0
"""The timeout for requests that only add details to an error message."""
_RD_ISOLATION_LEVEL: Final = {
    IsolationLevel.READ_UNCOMMITTED: RdIsolationLevel.READ_UNCOMMITTED,
    IsolationLevel.READ_COMMITTED: RdIsolationLevel.READ_COMMITTED,
}


class LibrdkafkaClient:
    """Implements `KafkaClient`. Raises `OptionError` if librdkafka rejects the settings.

    The client has one admin handle. Each reader and each producer has a separate handle.
    """

    checks_topic_ids: ClassVar[bool] = False

    def __init__(self, settings: LibrdkafkaSettings) -> None:
        self._settings = settings
        self._events = ErrorEvents(settings.bootstrap_servers)
        self._producers = IdleProducer(
            properties=settings.producer, bootstrap_servers=settings.bootstrap_servers
        )
        with rejected_properties_as_option_errors(settings.admin):
            configuration: dict[str, Any] = {**settings.admin, "error_cb": self._events}
            self._admin = AdminClient(configuration, logger=LOG)
        self._requests = RetryLoop(handle=self._admin, events=self._events, settings=settings)

    def list_topics(self) -> Collection[str]:
        metadata = self._requests.retry(
            lambda try_s: self._requests.metadata("listing topics", try_s=try_s)
        )
        names = [
            name
            for name, topic in metadata.topics.items()
            if topic.error is None or error_class(topic.error) is not UnknownTopicOrPartitionError
        ]
        # Only DescribeTopics returns `is_internal`. Names of internal topics start with "__".
        candidates = [name for name in names if name.startswith("__")]
        internal = {
            name for name, topic in self.describe_topics(candidates).items() if topic.is_internal
        }
        return sorted(set(names) - internal)

    def describe_topics(self, topics: Collection[str]) -> Mapping[str, TopicDescription]:
        return self._describe_topics(topics)

    def _describe_topics(
        self, topics: Collection[str], *, timeout_s: float | None = None
    ) -> Mapping[str, TopicDescription]:
        if not topics:
            return {}

        def call(try_s: float) -> Mapping[str, TopicDescription]:
            futures = self._admin.describe_topics(
                TopicCollection(sorted(topics)), request_timeout=try_s
            )
            described = {}
            for name, future in futures.items():
                operation = f"describing topic {name!r}"
                try:
                    result: Any = self._requests.result(future, operation, try_s=try_s, topic=name)
                except NoResponseError as no_response:
                    if error_class(no_response.error) is UnknownTopicOrPartitionError:
                        continue
                    raise
                described[name] = TopicDescription(
                    name=name,
                    topic_id=_topic_id(result.topic_id),
                    partitions=tuple(sorted(p.id for p in result.partitions)),
                    is_internal=result.is_internal,
                )
            return described

        return self._requests.retry(call, timeout_s=timeout_s)

    def list_offsets(
        self, queries: Mapping[TopicPartition, OffsetQuery], isolation_level: IsolationLevel
    ) -> Mapping[TopicPartition, int | None]:
        return self._list_offsets(queries, isolation_level)

    def _list_offsets(
        self,
        queries: Mapping[TopicPartition, OffsetQuery],
        isolation_level: IsolationLevel,
        *,
        timeout_s: float | None = None,
    ) -> Mapping[TopicPartition, int | None]:
        if not queries:
            return {}

        def call(try_s: float) -> Mapping[TopicPartition, int | None]:
            futures = self._admin.list_offsets(
                {_rd(partition): _offset_spec(query) for partition, query in queries.items()},
                isolation_level=_RD_ISOLATION_LEVEL[isolation_level],
                request_timeout=try_s,
            )
            offsets: dict[TopicPartition, int | None] = {}
            for rd_partition, future in futures.items():
                partition = TopicPartition(rd_partition.topic, rd_partition.partition)
                operation = f"listing offsets of {partition}"
                result: Any = self._requests.result(
                    future,
                    operation,
                    try_s=try_s,
                    topic=partition.topic,
                    partition=partition.partition,
                )
                if result.offset < _NO_OFFSET:
                    # librdkafka returns this value if only the request to this leader failed.
                    error = Code(Code.LEADER_NOT_AVAILABLE, "the leader did not respond")
                    raise NoResponseError(
                        error, operation, topic=partition.topic, partition=partition.partition
                    )
                offsets[partition] = None if result.offset == _NO_OFFSET else result.offset
            return offsets

        return self._requests.retry(
            call,
            timeout_s=timeout_s,
            check_existence=lambda left_s: self._raise_missing(queries, timeout_s=left_s),
        )

    def committed_offsets(
        self, group_id: str, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int | None]:
        if not partitions:
            return {}

        with GroupOffsets.of(self._settings, group_id) as group:
            return group.read(
                partitions,
                check_existence=lambda left_s: self._raise_missing(partitions, timeout_s=left_s),
            )

    def commit_offsets(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        if not offsets:
            return
        with GroupOffsets.of(self._settings, group_id) as group:
            group.write(
                offsets,
                check_existence=lambda left_s: self._raise_missing(offsets, timeout_s=left_s),
            )

    def fetch(
        self,
        fetch_range: FetchRange,
        columns: tuple[str, ...],
        isolation_level: IsolationLevel,
        *,
        topic_id: str | None = None,  # noqa: ARG002, see `checks_topic_ids`
    ) -> Iterator[pa.RecordBatch]:
        return RangeReader(
            errors=FetchErrors(
                fetch_range=fetch_range,
                isolation_level=isolation_level,
                bootstrap_servers=self._settings.bootstrap_servers,
                poll_timeout_ms=self._settings.poll_timeout_ms,
            ),
            columns=columns,
            properties=self._settings.consumer,
            events=ErrorEvents(self._settings.bootstrap_servers),
            existing_offsets=lambda: self._existing_offsets(fetch_range.topic_partition),
            check_existence=lambda: self._raise_missing([fetch_range.topic_partition]),
        ).batches()

    def producer(self) -> Producer:
        return self._producers.lend()

    def close(self) -> None:
        """Close the idle producer. Python closes the admin handle when nothing references it."""
        self._producers.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _raise_missing(
        self, partitions: Collection[TopicPartition], *, timeout_s: float | None = None
    ) -> None:
        """Raise `UnknownTopicOrPartitionError` for the first partition that does not exist."""
        topics = self._describe_topics({p.topic for p in partitions}, timeout_s=timeout_s)
        for partition in sorted(partitions):
            topic = topics.get(partition.topic)
            if topic is None:
                raise UnknownTopicOrPartitionError(
                    f"Topic {partition.topic!r} does not exist on "
                    f"{self._settings.bootstrap_servers}, or the principal lacks the DESCRIBE ACL.",
                    topic=partition.topic,
                    partition=partition.partition,
                )
            if partition.partition not in topic.partitions:
                raise UnknownTopicOrPartitionError(
                    f"Partition {partition.partition} of topic {partition.topic!r} does not exist. "
                    f"The topic has {counted(len(topic.partitions), 'partition')}.",
                    advice="Correct the partition number.",
                    topic=partition.topic,
                    partition=partition.partition,
                )

    def _existing_offsets(self, partition: TopicPartition) -> ExistingOffsets:
        def offset_of(query: int, isolation_level: IsolationLevel) -> int:
            offset = self._list_offsets(
                {partition: query},
                isolation_level,
                timeout_s=min(_DIAGNOSIS_TIMEOUT_S, self._settings.api_timeout_s),
            )[partition]
            assert offset is not None  # Only a query by timestamp can return None.
            return offset

        return ExistingOffsets(
            log_start_offset=offset_of(EARLIEST, IsolationLevel.READ_UNCOMMITTED),
            last_stable_offset=offset_of(LATEST, IsolationLevel.READ_COMMITTED),
            high_watermark=offset_of(LATEST, IsolationLevel.READ_UNCOMMITTED),
        )


def _rd(partition: TopicPartition) -> RdTopicPartition:
    return RdTopicPartition(partition.topic, partition.partition)


def _offset_spec(query: OffsetQuery) -> Any:
    spec: Any = OffsetSpec
    match query:
        case AtTimestamp(timestamp_ms=timestamp_ms):
            return spec.for_timestamp(timestamp_ms)
        case int() if query == EARLIEST:
            return spec.earliest()
        case int() if query == LATEST:
            return spec.latest()
    raise ValueError(f"not an offset query: {query!r}")


def _topic_id(uuid: object) -> str | None:
    """Return the topic id as text. Return None for the all-zero id from brokers before 2.8."""
    text = str(uuid) if uuid is not None else ""
    return text if text.strip("A=") else None
