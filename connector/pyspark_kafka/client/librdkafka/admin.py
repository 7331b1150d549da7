"""`KafkaClient` over confluent-kafka: metadata, offsets, and the makers of readers and producers.

Purpose: the port's answers out of librdkafka's futures. Invariant: nothing is ever created on the
cluster by asking; every answer comes within `default.api.timeout.ms`, or an error does. What it
must not know: Spark, and how its answers are used.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import pyarrow as pa
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicCollection
from confluent_kafka import IsolationLevel as RdIsolationLevel
from confluent_kafka import KafkaError as Code
from confluent_kafka import TopicPartition as RdTopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from pyspark_kafka.client.base import (
    EARLIEST,
    LATEST,
    AtTimestamp,
    FetchRange,
    IsolationLevel,
    OffsetQuery,
    Producer,
    TopicDescription,
    TopicPartition,
)
from pyspark_kafka.client.librdkafka.faults import (
    LOG,
    ErrorEvents,
    code_of,
    error_class,
    translate,
    unreachable,
)
from pyspark_kafka.client.librdkafka.fetch import ExistingOffsets, RangeReader
from pyspark_kafka.client.librdkafka.producer import IdleProducer
from pyspark_kafka.client.librdkafka.settings import LibrdkafkaSettings, opening
from pyspark_kafka.errors import (
    AuthenticationFailed,
    BrokerUnreachable,
    KafkaError,
    UnknownTopicOrPartition,
)

T = TypeVar("T")

_POLL_S: Final = 0.1
_NO_OFFSET: Final = -1
_LOCAL_CODES_END: Final = -100
"""RD_KAFKA_RESP_ERR__END: codes below are librdkafka's own, the others a broker's answer."""
_RD_ISOLATION_LEVEL: Final = {
    IsolationLevel.READ_UNCOMMITTED: RdIsolationLevel.READ_UNCOMMITTED,
    IsolationLevel.READ_COMMITTED: RdIsolationLevel.READ_COMMITTED,
}
_TRANSIENT: Final = frozenset(
    {
        Code.COORDINATOR_LOAD_IN_PROGRESS,
        Code.COORDINATOR_NOT_AVAILABLE,
        Code.FENCED_LEADER_EPOCH,
        Code.KAFKA_STORAGE_ERROR,
        Code.LEADER_NOT_AVAILABLE,
        Code.LISTENER_NOT_FOUND,
        Code.NOT_COORDINATOR,
        Code.NOT_LEADER_FOR_PARTITION,
        Code.OFFSET_NOT_AVAILABLE,
        Code.REPLICA_NOT_AVAILABLE,
        Code.UNKNOWN_LEADER_EPOCH,
    }
)
"""Answers that a cluster gives while it moves leaders."""
_FINAL: Final = (AuthenticationFailed, BrokerUnreachable, UnknownTopicOrPartition)
"""Errors that another try does not help, or that have waited for their timeout already."""


class LibrdkafkaClient:
    """See `KafkaClient`. Holds one connection for metadata; readers and producers make their own.

    Raises `OptionError` when librdkafka refuses the settings.
    """

    def __init__(self, settings: LibrdkafkaSettings) -> None:
        self._settings = settings
        self._events = ErrorEvents(settings.bootstrap_servers)
        self._producers = IdleProducer(
            properties=settings.producer, bootstrap_servers=settings.bootstrap_servers
        )
        with opening(settings.admin):
            configuration: dict[str, Any] = {**settings.admin, "error_cb": self._events}
            self._admin = AdminClient(configuration, logger=LOG)

    def list_topics(self) -> Collection[str]:
        names = [
            name
            for name, topic in self._metadata().topics.items()
            if topic.error is None or error_class(topic.error) is not UnknownTopicOrPartition
        ]
        # Only DescribeTopics tells which topics are internal, and all of Kafka's begin so.
        suspects = [name for name in names if name.startswith("__")]
        internal = {
            name for name, topic in self.describe_topics(suspects).items() if topic.is_internal
        }
        return sorted(set(names) - internal)

    def describe_topics(self, topics: Collection[str]) -> Mapping[str, TopicDescription]:
        if not topics:
            return {}

        def ask() -> Mapping[str, TopicDescription]:
            futures = self._admin.describe_topics(
                TopicCollection(sorted(topics)), request_timeout=self._settings.api_timeout_s
            )
            described = {}
            for name, future in futures.items():
                try:
                    answer: Any = self._answer(future, f"describing topic {name}")
                except UnknownTopicOrPartition:
                    continue
                described[name] = TopicDescription(
                    name=name,
                    topic_id=_topic_id(answer.topic_id),
                    partitions=tuple(sorted(p.id for p in answer.partitions)),
                    is_internal=answer.is_internal,
                )
            return described

        return self._retried(ask)

    def list_offsets(
        self, queries: Mapping[TopicPartition, OffsetQuery], isolation_level: IsolationLevel
    ) -> Mapping[TopicPartition, int | None]:
        if not queries:
            return {}

        def ask() -> Mapping[TopicPartition, int | None]:
            futures = self._admin.list_offsets(
                {_rd(partition): _offset_spec(query) for partition, query in queries.items()},
                isolation_level=_RD_ISOLATION_LEVEL[isolation_level],
                request_timeout=self._settings.api_timeout_s,
            )
            offsets: dict[TopicPartition, int | None] = {}
            for rd_partition, future in futures.items():
                partition = TopicPartition(rd_partition.topic, rd_partition.partition)
                answer: Any = self._answer(future, f"listing offsets of {partition}")
                offsets[partition] = None if answer.offset == _NO_OFFSET else answer.offset
            return offsets

        try:
            return self._retried(ask)
        except _FINAL:
            raise
        except KafkaError:
            # librdkafka says "no leader" for a partition that is not there as well.
            self._raise_missing(queries)
            raise

    def committed_offsets(
        self, group_id: str, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int | None]:
        if not partitions:
            return {}

        def ask() -> Mapping[TopicPartition, int | None]:
            answered = self._group_answer(
                self._admin.list_consumer_group_offsets(
                    [ConsumerGroupTopicPartitions(group_id, [_rd(p) for p in partitions])],
                    request_timeout=self._settings.api_timeout_s,
                ),
                f"reading the committed offsets of group {group_id!r}",
            )
            return {
                partition: offset if offset >= 0 else None for partition, offset in answered.items()
            }

        return self._retried(ask)

    def fetch(
        self, fetch_range: FetchRange, columns: tuple[str, ...], isolation_level: IsolationLevel
    ) -> Iterator[pa.RecordBatch]:
        return RangeReader(
            fetch_range=fetch_range,
            columns=columns,
            isolation_level=isolation_level,
            properties=self._settings.consumer,
            events=ErrorEvents(self._settings.bootstrap_servers),
            poll_timeout_ms=self._settings.poll_timeout_ms,
            existing_offsets=lambda: self._existing_offsets(fetch_range.topic_partition),
        ).batches()

    def producer(self) -> Producer:
        return self._producers.lend()

    def close(self) -> None:
        """Ends the idle producer; librdkafka's admin handle ends with its last reference."""
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

    def _metadata(self) -> Any:
        doing = "listing topics"
        self._forget_trouble()
        deadline = time.monotonic() + self._settings.api_timeout_s
        while True:
            try:
                # Asked in slices, so that a refused login is noticed at once.
                return self._admin.list_topics(
                    timeout=min(1.0, max(_POLL_S, deadline - time.monotonic()))
                )
            except KafkaException as error:
                self._raise_if_refused(doing, code_of(error))
                if time.monotonic() >= deadline:
                    raise self._failed(code_of(error), doing) from None

    def _answer(self, future: Future[T], doing: str) -> T:
        """Wait for librdkafka, noticing a refused login early. Raises `KafkaError`s."""
        deadline = time.monotonic() + self._settings.api_timeout_s + 1
        while True:
            try:
                return future.result(timeout=_POLL_S)
            except FutureTimeoutError:
                self._raise_if_refused(doing)
                if time.monotonic() >= deadline:
                    raise self._failed(Code(Code._TIMED_OUT), doing) from None
            except KafkaException as error:
                self._raise_if_refused(doing, code_of(error))
                raise self._failed(code_of(error), doing) from None

    def _forget_trouble(self) -> None:
        """Before every question: this handle lives as long as a query, and refusals pass."""
        self._admin.poll(0)
        self._events.forget()

    def _raise_if_refused(self, doing: str, error: Code | None = None) -> None:
        """Where an `error` is a broker's own answer, that answer counts and no other one's."""
        self._admin.poll(0)
        if error is None or error.code() < _LOCAL_CODES_END:
            self._events.raise_if_refused(doing)

    def _group_answer(self, futures: Mapping[str, Future[Any]], doing: str) -> dict[Any, int]:
        (future,) = futures.values()
        offsets = {}
        for rd_partition in self._answer(future, doing).topic_partitions:
            partition = TopicPartition(rd_partition.topic, rd_partition.partition)
            if rd_partition.error is not None:
                raise self._failed(rd_partition.error, f"{doing}, {partition},")
            offsets[partition] = rd_partition.offset
        return offsets

    def _failed(self, error: Code, doing: str) -> KafkaError:
        if error.code() == Code._NOENT:
            return KafkaError(f"{doing} failed: the partition has no leader now; try again later")
        if error.code() in _TRANSIENT:
            return KafkaError(f"{doing} failed: {error.str()} ({error.name()}); try again later")
        reason = self._events.unreachable()
        servers = self._settings.bootstrap_servers
        if error_class(error) is BrokerUnreachable and reason is not None:
            return unreachable(
                doing,
                bootstrap_servers=servers,
                waited_s=self._settings.api_timeout_s,
                reason=reason,
            )
        return translate(error, doing=doing, bootstrap_servers=servers)

    def _retried(self, ask: Callable[[], T]) -> T:
        """Ask `fetchOffset.numRetries` times in all, as Spark's connector counts."""
        attempts = self._settings.fetch_offset_num_retries
        for attempt in range(1, attempts + 1):
            self._forget_trouble()
            try:
                return ask()
            except _FINAL:
                raise
            except KafkaError as error:
                if attempt == attempts:
                    raise
                LOG.warning("attempt %d of %d: %s", attempt, attempts, error)
                time.sleep(self._settings.fetch_offset_retry_interval_ms / 1000)
        raise AssertionError("fetchOffset.numRetries is at least 1")

    def _raise_missing(self, partitions: Collection[TopicPartition]) -> None:
        """Raises `UnknownTopicOrPartition` for the first one that is not there, if any."""
        topics = self.describe_topics({p.topic for p in partitions})
        for partition in sorted(partitions):
            topic = topics.get(partition.topic)
            if topic is None:
                raise UnknownTopicOrPartition(
                    f"topic {partition.topic!r} does not exist at "
                    f"{self._settings.bootstrap_servers}, or may not be seen: create it, correct "
                    "its name, or grant DESCRIBE"
                )
            if partition.partition not in topic.partitions:
                raise UnknownTopicOrPartition(
                    f"topic {partition.topic!r} has {len(topic.partitions)} partitions, and no "
                    f"partition {partition.partition}"
                )

    def _existing_offsets(self, partition: TopicPartition) -> ExistingOffsets:
        def ask(query: int, isolation_level: IsolationLevel) -> int:
            offset = self.list_offsets({partition: query}, isolation_level)[partition]
            assert offset is not None  # only a timestamp can have no offset
            return offset

        return ExistingOffsets(
            log_start_offset=ask(EARLIEST, IsolationLevel.READ_UNCOMMITTED),
            last_stable_offset=ask(LATEST, IsolationLevel.READ_COMMITTED),
            high_watermark=ask(LATEST, IsolationLevel.READ_UNCOMMITTED),
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
    raise ValueError(f"no offset query: {query!r}")


def _topic_id(uuid: object) -> str | None:
    """A topic id as Kafka prints it; brokers before 2.8 send none, which is all zeros."""
    text = str(uuid) if uuid is not None else ""
    return text if text.strip("A=") else None
