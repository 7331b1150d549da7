"""Reads one range of a topic partition with librdkafka's consumer.

The consumer does not join a group. It starts at an explicit offset and reads to the end of the
range. Invariant: the visible records of the range are yielded once and in order, and every wait
ends after `poll_timeout_ms` without progress.

The last offsets of a range may contain no visible records, because of control records, aborted
transactions or compaction. The range is complete once librdkafka has returned a record at the
range's last offset or later, or an "end of partition" event at the range's end offset or later. If
the event has a lower offset, the high watermark (with read_committed, the last stable offset) is
lower than the end offset, and the reader waits for new records.

While librdkafka skips the records of an aborted transaction, it returns no messages. The
`next_offset` field in librdkafka's statistics advances with every fetch response, so the reader
also uses this field to detect progress.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
from confluent_kafka import Consumer, Message
from confluent_kafka import KafkaError as Code
from confluent_kafka import TopicPartition as Assignment

from pyspark_kafka.client.fetch_errors import TIMEOUT_OPTION, ExistingOffsets, FetchErrors
from pyspark_kafka.client.librdkafka.arrow import payload_bytes, record_batch
from pyspark_kafka.client.librdkafka.errors import (
    LOG,
    ErrorEvents,
    error_class,
    translate,
    unreachable,
)
from pyspark_kafka.errors import (
    BrokerUnreachableError,
    KafkaError,
    LeaderNotAvailableError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
    reason_of,
    sentence,
)
from pyspark_kafka.kafka.offsets import FetchRange
from pyspark_kafka.kafka.topics import TopicPartition

ROWS_PER_BATCH: Final = 10_000
BYTES_PER_BATCH: Final = 16 * 1024 * 1024
_MESSAGES_PER_CALL: Final = 5_000
_WAIT_SLICE_S: Final = 0.2
_STATISTICS_MS_MAX: Final = 1_000

CONSUMER_DEFAULTS: Final[Mapping[str, str]] = {
    # With the default, fetching stops for a second when the queue is full. These delays make
    # fetching 4 times slower.
    "fetch.queue.backoff.ms": "5",
    # The last fetch of a range is often empty. With the default, this fetch takes half a second.
    "fetch.wait.max.ms": "25",
    "queued.min.messages": "50000",
    "queued.max.messages.kbytes": "32768",
    "check.crcs": "true",
}
"""The connector's defaults, tuned with record values of 100 bytes on a local broker."""

CONSUMER_OWNED: Final[Mapping[str, str]] = {
    "enable.auto.commit": "false",
    "enable.auto.offset.store": "false",
    "enable.partition.eof": "true",
    "auto.offset.reset": "error",
    "allow.auto.create.topics": "false",
}
"""Properties that users cannot set, because a read of exactly one range requires these values."""


@dataclass(slots=True, kw_only=True)
class Progress:
    """The progress of reading one offset range. `position` is the offset after the last record."""

    fetch_range: FetchRange
    position: int
    end_of_partition: int | None = None
    failed: Code | None = None
    done: bool = False

    @property
    def operation(self) -> str:
        return f"fetching {self.fetch_range.topic_partition} at offset {self.position}"

    def failure(self) -> Code | None:
        """Return the error that stops the read, or None. Errors beyond the range are ignored."""
        return None if self.done else self.failed

    def take(self, messages: list[Message]) -> list[Message]:
        """Return the messages in the range. Store the first error and the end of the partition.

        Messages after an error are dropped, because librdkafka continues after a corrupt batch.
        """
        if all(message.error() is None for message in messages):
            return self._in_range(messages)
        records = []
        for message in messages:
            error = message.error()
            if error is None:
                records.append(message)
            elif error.code() == Code._PARTITION_EOF:
                self.end_of_partition = message.offset()
            elif error_class(error) is BrokerUnreachableError:
                LOG.info("Fetching %s failed: %s", self.fetch_range.topic_partition, error.str())
            elif error.code() != Code.GROUP_AUTHORIZATION_FAILED:  # The reader uses no group.
                self.failed = error
                break
        in_range = self._in_range(records)
        if self.end_of_partition is not None:
            self.done = self.done or self.end_of_partition >= self.fetch_range.end_offset
        return in_range

    def _in_range(self, records: list[Message]) -> list[Message]:
        if not records:
            return records
        end_offset = self.fetch_range.end_offset
        last_offset: int = records[-1].offset()  # type: ignore[assignment]
        self.position = last_offset + 1
        if last_offset < end_offset - 1:
            return records
        self.done = True
        return [r for r in records if r.offset() < end_offset]  # type: ignore[operator]


@dataclass(slots=True)
class _MessageBuffer:
    """A buffer of messages that have not been yielded yet, limited in rows and in bytes."""

    columns: tuple[str, ...]
    messages: list[Message] = field(default_factory=list)
    size_bytes: int = 0

    def add(self, messages: list[Message]) -> None:
        self.messages += messages
        # A message contains its key and value even if their columns are not selected. It also
        # contains its headers, but reading headers with invalid keys can crash the process.
        self.size_bytes += payload_bytes(messages, (*self.columns, "key", "value"))

    @property
    def is_full(self) -> bool:
        return len(self.messages) >= ROWS_PER_BATCH or self.size_bytes >= BYTES_PER_BATCH

    def drain(self) -> Iterator[pa.RecordBatch]:
        messages, self.messages, self.size_bytes = self.messages, [], 0
        if messages:
            yield from record_batch(messages, self.columns, bytes_max=BYTES_PER_BATCH)


@dataclass(slots=True)
class _Fetched:
    """The next offset that librdkafka will fetch, as reported in its statistics."""

    partition: TopicPartition
    next_offset: int | None = None

    def __call__(self, statistics: str) -> None:
        """Store the next offset.

        The consumer calls this method as its `stats_cb` (see librdkafka's STATISTICS.md).
        """
        topic = json.loads(statistics)["topics"].get(self.partition.topic, {})
        partition = topic.get("partitions", {}).get(str(self.partition.partition), {})
        self.next_offset = partition.get("next_offset", self.next_offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeReader:
    """Reads one offset range. A reader can be used only once.

    `existing_offsets` is called only for error messages. `check_existence` raises
    `UnknownTopicOrPartitionError` if the cluster confirms that the partition does not exist.
    """

    errors: FetchErrors
    columns: tuple[str, ...]
    properties: Mapping[str, str] = field(repr=False)
    events: ErrorEvents
    existing_offsets: Callable[[], ExistingOffsets]
    check_existence: Callable[[], None]

    @property
    def fetch_range(self) -> FetchRange:
        """The range to read."""
        return self.errors.fetch_range

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the records of the range, as `KafkaReadClient.fetch` does."""
        if self.fetch_range.size <= 0:
            return
        fetched = _Fetched(self.fetch_range.topic_partition)
        configuration: dict[str, Any] = {
            **CONSUMER_DEFAULTS,
            **self.properties,
            **CONSUMER_OWNED,
            "statistics.interval.ms": min(
                _STATISTICS_MS_MAX, max(1, self.errors.poll_timeout_ms // 4)
            ),
            "stats_cb": fetched,
            "isolation.level": self.errors.isolation_level.name.lower(),
            "error_cb": self.events,
        }
        consumer = Consumer(configuration, logger=LOG)
        try:
            self._seek(consumer, self.fetch_range.start_offset)
            yield from self._read(consumer, fetched)
        finally:
            consumer.close()

    def _seek(self, consumer: Consumer, offset: int) -> None:
        """Continue at `offset`, and discard messages that librdkafka has already fetched."""
        partition = self.fetch_range.topic_partition
        consumer.assign([Assignment(partition.topic, partition.partition, offset)])

    def _read(self, consumer: Consumer, fetched: _Fetched) -> Iterator[pa.RecordBatch]:
        progress = Progress(fetch_range=self.fetch_range, position=self.fetch_range.start_offset)
        pending = _MessageBuffer(self.columns)
        deadline = self._deadline()
        while not progress.done:
            # Take the available messages. If there are none, wait for only one message: at the end
            # of a range, waiting for several would always last until the timeout.
            before = (progress.position, progress.end_of_partition, fetched.next_offset)
            messages = consumer.consume(_MESSAGES_PER_CALL, 0)
            messages = messages or consumer.consume(1, _WAIT_SLICE_S)
            pending.add(progress.take(messages))
            after = (progress.position, progress.end_of_partition, fetched.next_offset)
            has_progress = before != after
            failed = progress.failure()
            if pending.is_full or (failed is not None and pending.messages):
                yield from pending.drain()
                has_progress = True  # The deadline excludes the time that Spark needs for a batch.
            if has_progress:
                deadline = self._deadline()
            if failed is not None:
                self._raise_unless_new_partition(progress, failed)
                self._seek(consumer, progress.position)  # `take` dropped later messages.
            if not messages:
                self.events.raise_if_unauthorized(progress.operation)
            if time.monotonic() >= deadline:
                yield from pending.drain()
                raise self._timeout(progress)
        yield from pending.drain()

    def _deadline(self) -> float:
        return time.monotonic() + self.errors.timeout_s

    def _raise_unless_new_partition(self, progress: Progress, error: Code) -> None:
        """Raise the error, unless the partition exists and a broker merely has stale metadata."""
        if error_class(error) is not UnknownTopicOrPartitionError:
            raise self._failure(progress, error)
        self.check_existence()
        LOG.info(
            "%s failed (%s), but the partition exists.", sentence(progress.operation), error.str()
        )
        progress.failed = None

    def _failure(self, progress: Progress, error: Code) -> KafkaError:
        if error_class(error) is not OffsetOutOfRangeError:
            servers = self.events.bootstrap_servers
            return translate(
                error,
                operation=progress.operation,
                bootstrap_servers=servers,
                topic=self.fetch_range.topic_partition.topic,
                partition=self.fetch_range.topic_partition.partition,
                offset=progress.position,
            )
        return self.errors.out_of_range(progress.position, self.existing_offsets())

    def _timeout(self, progress: Progress) -> KafkaError:
        """Return the timeout error.

        Raises `UnknownTopicOrPartitionError` if the topic does not exist.
        """
        try:
            existing = self.existing_offsets()
        except BrokerUnreachableError as error:
            return unreachable(
                progress.operation,
                bootstrap_servers=self.errors.bootstrap_servers,
                timeout_s=self.errors.timeout_s,
                reason=self.events.unreachable() or reason_of(error),
                option=TIMEOUT_OPTION,
                topic=self.fetch_range.topic_partition.topic,
                partition=self.fetch_range.topic_partition.partition,
                offset=progress.position,
            )
        except LeaderNotAvailableError:
            return self.errors.no_leader(progress.position)
        return self.errors.no_data(progress.position, existing)
