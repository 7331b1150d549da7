"""The producer of the `librdkafka` engine, which uses librdkafka's idempotent producer.

The producer adds the rows of Arrow batches to librdkafka's queue with little Python code per row.
Invariant: `flush` returns only if all rows are acknowledged, and no wait exceeds
`delivery.timeout.ms` by more than a few seconds.

librdkafka is configured to report only failed deliveries (`delivery.report.only.error`). After
`produce`, librdkafka counts a message as outstanding until the broker acknowledges the message or
librdkafka reports its failure to `_Deliveries`. If no message is outstanding and no failure was
reported, all rows are acknowledged. Because of this check, acknowledged rows require no Python
callback.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import KafkaError as Code
from confluent_kafka import KafkaException, Message
from confluent_kafka import Producer as RdProducer

from pyspark_kafka.client.delivery_errors import (
    PARTITION_ADVICE,
    SIZE_ADVICE,
    TIMEOUT_OPTION,
    TIMESTAMP_ADVICE,
    DeliveryErrors,
    format_place,
    missing_topic_advice,
)
from pyspark_kafka.client.librdkafka.errors import (
    LOG,
    ErrorEvents,
    code_of,
    describe,
    error_class,
    translate,
)
from pyspark_kafka.errors import AccessError, DeliveryError, KafkaError, RowError, counted

PRODUCER_DEFAULTS: Final[Mapping[str, str]] = {
    # Defaults of the Java client, for properties with noticeably different librdkafka defaults.
    "delivery.timeout.ms": "120000",
    "message.max.bytes": "1048576",
    "partitioner": "murmur2_random",
    # Gives batches time to fill. `flush` sends the last rows of a task immediately.
    "linger.ms": "50",
    "queue.buffering.max.messages": "200000",
    "queue.buffering.max.kbytes": "65536",
}
"""The connector's defaults, tuned with record values of 100 bytes on a local broker."""

PRODUCER_OWNED: Final[Mapping[str, str | bool]] = {
    "enable.idempotence": "true",
    "acks": "all",
    "delivery.report.only.error": True,
}
"""Properties that users cannot set, because reliable acknowledgments require these values."""

_PARTITIONER_CHOOSES: Final = -1
_NOW: Final = 0
_WAIT_SLICE_S: Final = 0.1
_PARTITION_CHECKS: Final = 3
_METADATA_TIMEOUT_S: Final = 5.0
_GRACE_S: Final = 5.0
"""The additional time for librdkafka to report failures after `delivery.timeout.ms`."""
_IDLE_S_MAX: Final = 300.0
_ABORT_S: Final = 5.0
_NO_SUCH_TOPIC: Final = (Code._UNKNOWN_TOPIC, Code.UNKNOWN_TOPIC_OR_PART, Code.TOPIC_EXCEPTION)


@dataclass(slots=True)
class _Deliveries:
    """Stores the error for the first failed delivery.

    The error is created in the callback, because librdkafka's message is valid only during the
    callback.
    """

    events: ErrorEvents
    errors: DeliveryErrors
    failed: KafkaError | None = None

    def __call__(self, error: Code | None, message: Message) -> None:
        """Store the first error. librdkafka calls this `on_delivery` callback only for failures."""
        if error is None or self.failed is not None:
            return
        self.failed = self._failure(error, message)

    def _failure(self, error: Code, message: Message) -> KafkaError:
        topic, partition = message.topic() or "", message.partition()
        if partition is not None and partition < 0:
            partition = None
        if issubclass(error_class(error), AccessError):
            return translate(
                error,
                operation=f"writing to {format_place(topic, partition)}",
                bootstrap_servers=self.events.bootstrap_servers,
                topic=topic,
                partition=partition,
            )
        code, reason = error.code(), describe(error)
        if code == Code._MSG_TIMED_OUT:
            return self.errors.unacknowledged(topic, partition, self.events.unreachable())
        if code == Code.MSG_SIZE_TOO_LARGE:
            reason += f". The value of the record is {len(message)} bytes long"
        advice = {
            Code.MSG_SIZE_TOO_LARGE: SIZE_ADVICE,
            **dict.fromkeys(_NO_SUCH_TOPIC, missing_topic_advice(topic)),
            Code._UNKNOWN_PARTITION: PARTITION_ADVICE,
            Code.INVALID_TIMESTAMP: TIMESTAMP_ADVICE,
        }.get(code)
        return self.errors.not_written(topic, partition, reason, advice=advice)


@dataclass(slots=True, kw_only=True)
class LibrdkafkaProducer:
    """Implements `client.port.Producer`."""

    _rd: RdProducer
    _deliveries: _Deliveries
    _events: ErrorEvents
    _delivery_timeout_s: float
    _give_back: Callable[[LibrdkafkaProducer], None]
    idle_since: float = field(default=0.0)

    def send(self, batch: pa.RecordBatch) -> None:
        _check_times(batch)
        produce = self._rd.produce
        for row in _rows(batch):
            try:
                produce(*row)
            except BufferError:
                self._send_when_there_is_room(row)
            except KafkaException as error:
                self._queue_for_new_partition(row, code_of(error))
        self._rd.poll(0)
        self._raise_if_failed()

    def flush(self) -> None:
        deadline = self._deadline()
        while self._rd.flush(_WAIT_SLICE_S) > 0:
            self._raise_if_failed()
            if time.monotonic() >= deadline:
                raise self._unacknowledged(len(self._rd))
        # Every row is acknowledged or has failed, so errors from `error_cb` can be ignored.
        if self._deliveries.failed is not None:
            raise self._deliveries.failed

    def close(self) -> None:
        self._give_back(self)

    def abort(self) -> None:
        # `close` waits for outstanding messages. After the purge, no message is outstanding,
        # because `purge` reports every message as failed.
        self._rd.purge(in_queue=True, in_flight=True, blocking=True)
        if self._rd.flush(_ABORT_S) == 0:
            self._rd.close()

    def end(self) -> None:
        """Close the handle. No message may be outstanding."""
        self._rd.close()

    def clear_failures(self) -> None:
        """Clear the failures of the previous task."""
        self._rd.poll(0)
        self._events.clear()

    def _send_when_there_is_room(self, row: tuple[Any, ...]) -> None:
        deadline = self._deadline()
        while True:
            self._rd.poll(_WAIT_SLICE_S)
            self._raise_if_failed()
            is_empty = len(self._rd) == 0
            try:
                self._rd.produce(*row)
                return
            except BufferError:
                if is_empty:
                    raise self._larger_than_buffer(row) from None
                if time.monotonic() >= deadline:
                    raise self._unacknowledged(len(self._rd)) from None
            except KafkaException as error:
                self._queue_for_new_partition(row, code_of(error))
                return

    def _queue_for_new_partition(self, row: tuple[Any, ...], error: Code) -> None:
        """Queue a row again after `produce` raised `error`, because the row's partition may be new.

        librdkafka refreshes its metadata every five minutes, and rejects partitions that are not in
        this metadata. Raises the error that `_not_queued` returns if the partition is still unknown
        after a metadata refresh, or if `error` has another cause.
        """
        for _ in range(_PARTITION_CHECKS):
            if error.code() != Code._UNKNOWN_PARTITION:
                break
            with suppress(KafkaException):  # the next attempt may succeed
                self._rd.list_topics(row[0], timeout=_METADATA_TIMEOUT_S)
            try:
                self._rd.produce(*row)
            except BufferError:
                self._send_when_there_is_room(row)
                return
            except KafkaException as exception:
                error = code_of(exception)
                self._rd.poll(_WAIT_SLICE_S)  # wait until brokers have the partition's metadata
            else:
                return
        raise self._not_queued(error, row)

    def _deadline(self) -> float:
        return time.monotonic() + self._delivery_timeout_s + _GRACE_S

    def _raise_if_failed(self) -> None:
        if self._deliveries.failed is not None:
            raise self._deliveries.failed
        self._events.raise_if_unauthorized("writing")

    def _unacknowledged(self, count: int) -> KafkaError:
        reason = self._events.unreachable() or "no error was reported"
        return DeliveryError(
            f"Not all records were written: {self._events.bootstrap_servers} did not "
            f"acknowledge {counted(count, 'record')} within "
            f"{self._delivery_timeout_s + _GRACE_S:g} s ({reason}).",
            advice="Check that the brokers are running and can be reached. To wait longer, raise "
            f"'{TIMEOUT_OPTION}'.",
        )

    def _larger_than_buffer(self, row: tuple[Any, ...]) -> RowError:
        topic, value = row[:2]
        return RowError(
            f"A record for {format_place(topic, None)} is too large. Its value has "
            f"{counted(len(value or b''), 'byte')}, which exceeds the size of the send buffer.",
            advice="Raise or remove 'kafka.buffer.memory' (or "
            "'kafka.queue.buffering.max.kbytes'), or write smaller records.",
            option="kafka.buffer.memory",
            topic=topic,
        )

    def _not_queued(self, error: Code, row: tuple[Any, ...]) -> Exception:
        """Return the error for a record that librdkafka did not queue."""
        topic, value, key = row[:3]
        partition = row[3] if len(row) > 3 and row[3] != _PARTITIONER_CHOOSES else None
        headers = row[7] if len(row) > 7 else None
        errors = self._deliveries.errors
        if error.code() == Code.MSG_SIZE_TOO_LARGE:
            return errors.record_too_large(
                topic,
                partition,
                value_bytes=len(value or b""),
                key_bytes=len(key or b""),
                header_bytes=sum(len(name.encode()) + len(v or b"") for name, v in headers or ()),
            )
        if error.code() == Code._UNKNOWN_PARTITION and partition is not None:
            return errors.no_such_partition(topic, partition)
        advice = missing_topic_advice(topic) if error.code() in _NO_SUCH_TOPIC else None
        return errors.not_written(topic, partition, describe(error), advice=advice)


def _rows(batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    """Yield the positional arguments of librdkafka's `produce` for each row.

    The values are converted column by column. Missing columns at the end are omitted, because
    passing an argument takes time.
    """
    names = set(batch.schema.names)

    def column(name: str) -> Any:
        return batch.column(name).to_pylist() if name in names else repeat(None)

    columns = [_topics(batch), column("value"), column("key")]
    has_times, has_headers = "timestamp" in names, "headers" in names
    if "partition" in names or has_times or has_headers:
        columns.append(
            batch.column("partition").fill_null(_PARTITIONER_CHOOSES).to_pylist()
            if "partition" in names
            else repeat(_PARTITIONER_CHOOSES)
        )
    if has_times or has_headers:
        columns += [repeat(None), repeat(None)]  # `callback` and `on_delivery`
        columns.append(
            batch.column("timestamp").cast(pa.int64()).fill_null(_NOW).to_pylist()
            if has_times
            else repeat(_NOW)
        )
    if has_headers:
        columns.append(map(_headers, batch.column("headers").to_pylist()))
    return zip(*columns, strict=False)


def _topics(batch: pa.RecordBatch) -> Any:
    topics = batch.column("topic")
    distinct = topics.unique()
    return repeat(distinct[0].as_py()) if len(distinct) == 1 else topics.to_pylist()


def _headers(headers: list[dict[str, Any]] | None) -> list[tuple[str, bytes | None]] | None:
    return [(h["key"], h["value"]) for h in headers] if headers else None


def _check_times(batch: pa.RecordBatch) -> None:
    """Raise `RowError` for the timestamp 0, which librdkafka cannot send."""
    if "timestamp" not in batch.schema.names:
        return
    if pc.any(pc.equal(batch.column("timestamp").cast(pa.int64()), _NOW)).as_py():
        raise RowError(
            "A row has the timestamp 1970-01-01T00:00:00.000Z, which librdkafka would replace "
            "with the current time.",
            advice="To use the current time, set the timestamp to null. Otherwise, add one "
            "millisecond to the timestamp.",
            column="timestamp",
        )


@dataclass(slots=True, kw_only=True)
class IdleProducer:
    """Keeps the last idle producer open for reuse, because a new producer is slow to start.

    An idempotent producer requests a producer id from the brokers. librdkafka sends this request on
    a timer, so a new producer waits for about half a second.
    """

    properties: Mapping[str, str] = field(repr=False)
    bootstrap_servers: str
    _idle: LibrdkafkaProducer | None = None

    def lend(self) -> LibrdkafkaProducer:
        """Return the idle producer, or a new one if there is none or it has been idle too long."""
        idle, self._idle = self._idle, None
        if idle is not None and time.monotonic() - idle.idle_since < _IDLE_S_MAX:
            idle.clear_failures()
            return idle
        if idle is not None:
            idle.end()
        return self._open()

    def close(self) -> None:
        """Close the idle producer."""
        idle, self._idle = self._idle, None
        if idle is not None:
            idle.end()

    def _open(self) -> LibrdkafkaProducer:
        properties = {**PRODUCER_DEFAULTS, **self.properties}
        record_bytes_max = int(properties["message.max.bytes"])
        buffer_name = "queue.buffering.max.kbytes"
        if buffer_name not in self.properties:  # The buffer must have room for any record.
            kbytes = max(int(properties[buffer_name]), record_bytes_max // 1024 + 1)
            properties[buffer_name] = str(kbytes)
        events = ErrorEvents(self.bootstrap_servers)
        errors = DeliveryErrors(
            bootstrap_servers=self.bootstrap_servers,
            record_bytes_max=record_bytes_max,
        )
        deliveries = _Deliveries(events, errors)
        configuration: dict[str, Any] = {
            **properties,
            **PRODUCER_OWNED,
            "error_cb": events,
            "on_delivery": deliveries,
        }
        return LibrdkafkaProducer(
            _rd=RdProducer(configuration, logger=LOG),
            _deliveries=deliveries,
            _events=events,
            _delivery_timeout_s=int(properties["delivery.timeout.ms"]) / 1000,
            _give_back=self._take_back,
        )

    def _take_back(self, producer: LibrdkafkaProducer) -> None:
        self.close()
        producer.idle_since = time.monotonic()
        self._idle = producer
