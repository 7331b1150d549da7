"""Reading one range of one topic partition as Arrow batches.

Purpose: a consumer that is assigned an explicit offset and never joins a group, read until the
range is covered. Invariant: what is yielded are the visible records of the range, each once and
in order; every wait ends after `poll_timeout_ms` without news. What it must not know: Spark,
and how ranges are planned.

How the end is found. The offsets at the end of a range need not hold a visible record (control
records, aborted transactions, compaction), so the range is read to its end when the first of
these is seen: a record at its last offset or beyond, or librdkafka's "end of partition" event
at its end or beyond. The event below the end means that the log, or under read_committed the last
stable offset, has not come so far yet; it is waited for.

Nor does an aborted transaction hand anything over while it is read past, however large it is. That
bytes flow is told by librdkafka's statistics, whose `next_offset` moves with every fetch response.
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
from pyspark_kafka.client.librdkafka.arrow import record_batch
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
)
from pyspark_kafka.kafka.offsets import FetchRange
from pyspark_kafka.kafka.topics import TopicPartition

ROWS_PER_BATCH: Final = 10_000
BYTES_PER_BATCH: Final = 16 * 1024 * 1024
_MESSAGES_PER_CALL: Final = 5_000
_WAIT_SLICE_S: Final = 0.2
_STATISTICS_MS_MAX: Final = 1_000

CONSUMER_DEFAULTS: Final[Mapping[str, str]] = {
    # Without this, librdkafka pauses a second whenever its queue has filled up: 4 times slower.
    "fetch.queue.backoff.ms": "5",
    # The end of a range is often told by an empty fetch; half a second would be the default.
    "fetch.wait.max.ms": "25",
    "queued.min.messages": "50000",
    "queued.max.messages.kbytes": "32768",
    "check.crcs": "true",
}
"""Ours where the user says nothing; measured with 100-byte values on a local broker."""

CONSUMER_OWNED: Final[Mapping[str, str]] = {
    "enable.auto.commit": "false",
    "enable.auto.offset.store": "false",
    "enable.partition.eof": "true",
    "auto.offset.reset": "error",
    "allow.auto.create.topics": "false",
}
"""What reading exactly one range relies on; not the user's to set."""


@dataclass(slots=True, kw_only=True)
class Progress:
    """How far a range is read. `position` is one beyond the last record seen."""

    fetch_range: FetchRange
    position: int
    end_of_partition: int | None = None
    failed: Code | None = None
    done: bool = False

    @property
    def doing(self) -> str:
        return f"fetching {self.fetch_range.topic_partition} at offset {self.position}"

    def failure(self) -> Code | None:
        """What went wrong before the end; what is wrong behind it is none of ours."""
        return None if self.done else self.failed

    def take(self, messages: list[Message]) -> list[Message]:
        """The records of the range among what came; notes events and the end.

        What comes behind a failure is not taken: librdkafka goes on after a damaged batch.
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
                LOG.info("%s: %s", self.fetch_range.topic_partition, error.str())
            elif error.code() != Code.GROUP_AUTHORIZATION_FAILED:  # no group is ever joined
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
class _Pending:
    """Records seen and not yet yielded: a bounded number of rows and of bytes."""

    columns: tuple[str, ...]
    messages: list[Message] = field(default_factory=list)
    value_bytes: int = 0

    def add(self, messages: list[Message]) -> None:
        self.messages += messages
        self.value_bytes += sum(map(len, messages))

    @property
    def is_full(self) -> bool:
        return len(self.messages) >= ROWS_PER_BATCH or self.value_bytes >= BYTES_PER_BATCH

    def drain(self) -> Iterator[pa.RecordBatch]:
        messages, self.messages, self.value_bytes = self.messages, [], 0
        if messages:
            yield from record_batch(messages, self.columns, bytes_max=BYTES_PER_BATCH)


@dataclass(slots=True)
class _Fetched:
    """How far librdkafka itself has fetched, aborted transactions included."""

    partition: TopicPartition
    next_offset: int | None = None

    def __call__(self, statistics: str) -> None:
        """The `stats_cb` of the consumer; see librdkafka's STATISTICS.md."""
        topic = json.loads(statistics)["topics"].get(self.partition.topic, {})
        partition = topic.get("partitions", {}).get(str(self.partition.partition), {})
        self.next_offset = partition.get("next_offset", self.next_offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeReader:
    """Reads one range, once.

    `existing_offsets` is asked only to phrase an error. `check_existence` raises
    `UnknownTopicOrPartitionError` where that is certain.
    """

    faults: FetchErrors
    columns: tuple[str, ...]
    properties: Mapping[str, str] = field(repr=False)
    events: ErrorEvents
    existing_offsets: Callable[[], ExistingOffsets]
    check_existence: Callable[[], None]

    @property
    def fetch_range(self) -> FetchRange:
        """What is wanted."""
        return self.faults.fetch_range

    def batches(self) -> Iterator[pa.RecordBatch]:
        """See `KafkaClient.fetch`."""
        if self.fetch_range.size <= 0:
            return
        fetched = _Fetched(self.fetch_range.topic_partition)
        configuration: dict[str, Any] = {
            **CONSUMER_DEFAULTS,
            **self.properties,
            **CONSUMER_OWNED,
            "statistics.interval.ms": min(
                _STATISTICS_MS_MAX, max(1, self.faults.poll_timeout_ms // 4)
            ),
            "stats_cb": fetched,
            "isolation.level": self.faults.isolation_level.name.lower(),
            "error_cb": self.events,
        }
        consumer = Consumer(configuration, logger=LOG)
        try:
            self._begin_at(consumer, self.fetch_range.start_offset)
            yield from self._read(consumer, fetched)
        finally:
            consumer.close()

    def _begin_at(self, consumer: Consumer, offset: int) -> None:
        """Have the consumer hand over what is at `offset` next, and nothing fetched before."""
        partition = self.fetch_range.topic_partition
        consumer.assign([Assignment(partition.topic, partition.partition, offset)])

    def _read(self, consumer: Consumer, fetched: _Fetched) -> Iterator[pa.RecordBatch]:
        progress = Progress(fetch_range=self.fetch_range, position=self.fetch_range.start_offset)
        pending = _Pending(self.columns)
        deadline = self._deadline()
        while not progress.done:
            # Take what is there without waiting; only when nothing is, wait for one. Asking for
            # many with a timeout would wait for the last of them at the end of every range.
            before = (progress.position, progress.end_of_partition, fetched.next_offset)
            messages = consumer.consume(_MESSAGES_PER_CALL, 0)
            messages = messages or consumer.consume(1, _WAIT_SLICE_S)
            pending.add(progress.take(messages))
            after = (progress.position, progress.end_of_partition, fetched.next_offset)
            is_news = before != after
            failed = progress.failure()
            if pending.is_full or (failed is not None and pending.messages):
                yield from pending.drain()
                is_news = True  # What Spark does with a batch is none of the brokers' time.
            if is_news:
                deadline = self._deadline()
            if failed is not None:
                self._raise_unless_unheard_of(progress, failed)
                self._begin_at(consumer, progress.position)  # Records came behind it, not taken.
            if not messages:
                self.events.raise_if_refused(progress.doing)
            if time.monotonic() >= deadline:
                yield from pending.drain()
                raise self._timeout(progress)
        yield from pending.drain()

    def _deadline(self) -> float:
        return time.monotonic() + self.faults.waited_s

    def _raise_unless_unheard_of(self, progress: Progress, error: Code) -> None:
        """A broker may not have heard yet of a partition that is new; librdkafka asks others."""
        if error_class(error) is not UnknownTopicOrPartitionError:
            raise self._failure(progress, error)
        self.check_existence()
        LOG.info("%s: %s; it is there by now", progress.doing, error.str())
        progress.failed = None

    def _failure(self, progress: Progress, error: Code) -> KafkaError:
        if error_class(error) is not OffsetOutOfRangeError:
            servers = self.events.bootstrap_servers
            return translate(error, doing=progress.doing, bootstrap_servers=servers)
        return self.faults.out_of_range(progress.position, self.existing_offsets())

    def _timeout(self, progress: Progress) -> KafkaError:
        """Why nothing came for so long, as well as can be told.

        Raises `UnknownTopicOrPartitionError` where the topic is gone.
        """
        try:
            existing = self.existing_offsets()
        except BrokerUnreachableError as error:
            return unreachable(
                progress.doing,
                bootstrap_servers=self.faults.bootstrap_servers,
                waited_s=self.faults.waited_s,
                reason=self.events.unreachable() or str(error),
                option=TIMEOUT_OPTION,
            )
        except LeaderNotAvailableError:
            return self.faults.no_leader(progress.position)
        return self.faults.nothing_came(progress.position, existing)
