"""Writing rows over librdkafka's idempotent producer.

Purpose: Arrow columns to librdkafka's queue with as little Python per row as can be, and the
certainty that every row was confirmed. Invariant: `flush` returns only when no row is
outstanding and none has failed; no wait is longer than `delivery.timeout.ms`. What it must not
know: Spark.

How rows are confirmed. Successful deliveries are silent (`delivery.report.only.error`): librdkafka
counts a message as outstanding from `produce` until its broker has acknowledged it or its failure
has been reported to `_Deliveries`. Nothing outstanding and nothing reported is thus every row
confirmed, without a call into Python for each.
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
    BAD_TIMESTAMP,
    NO_SUCH_PARTITION,
    NOT_WRITTEN,
    DeliveryErrors,
    too_large_remedy,
    topic_remedy,
)
from pyspark_kafka.client.librdkafka.errors import LOG, ErrorEvents, code_of, error_class, translate
from pyspark_kafka.errors import AccessError, DeliveryError, KafkaError, RowError

PRODUCER_DEFAULTS: Final[Mapping[str, str]] = {
    # Java's defaults where librdkafka's differ and the user would notice.
    "delivery.timeout.ms": "120000",
    "message.max.bytes": "1048576",
    "partitioner": "murmur2_random",
    # A task's last rows do not wait for this: flushing sends at once. So batches may fill up.
    "linger.ms": "50",
    "queue.buffering.max.messages": "200000",
    "queue.buffering.max.kbytes": "65536",
}
"""Ours where the user says nothing; measured with 100-byte values on a local broker."""

PRODUCER_OWNED: Final[Mapping[str, str | bool]] = {
    "enable.idempotence": "true",
    "acks": "all",
    "delivery.report.only.error": True,
}
"""What "confirmed" relies on; not the user's to set."""

_PARTITIONER_CHOOSES: Final = -1
_NOW: Final = 0
_WAIT_SLICE_S: Final = 0.1
_LOOKS: Final = 3
_LOOK_S: Final = 5.0
_GRACE_S: Final = 5.0
"""Beyond `delivery.timeout.ms`, for librdkafka to notice and tell."""
_IDLE_S_MAX: Final = 300.0
_ABORT_S: Final = 5.0
_NO_SUCH_TOPIC: Final = (Code._UNKNOWN_TOPIC, Code.UNKNOWN_TOPIC_OR_PART, Code.TOPIC_EXCEPTION)


@dataclass(slots=True)
class _Deliveries:
    """The first failed delivery, as text: librdkafka's message does not outlive its callback."""

    events: ErrorEvents
    faults: DeliveryErrors
    failed: KafkaError | None = None

    def __call__(self, error: Code | None, message: Message) -> None:
        """The `on_delivery` of the producer; called for failures only."""
        if error is None or self.failed is not None:
            return
        self.failed = self._failure(error, message)

    def _failure(self, error: Code, message: Message) -> KafkaError:
        partition = message.partition()
        where = f"{message.topic()}-{partition}" if partition is not None else f"{message.topic()}"
        if issubclass(error_class(error), AccessError):
            servers = self.events.bootstrap_servers
            return translate(error, doing=f"writing to {where}", bootstrap_servers=servers)
        remedy = {
            Code.MSG_SIZE_TOO_LARGE: too_large_remedy("the value", len(message)),
            Code._MSG_TIMED_OUT: self.faults.unconfirmed_remedy(self.events.unreachable()),
            **dict.fromkeys(_NO_SUCH_TOPIC, topic_remedy(message.topic() or "")),
            Code._UNKNOWN_PARTITION: NO_SUCH_PARTITION,
            Code.INVALID_TIMESTAMP: BAD_TIMESTAMP,
        }.get(error.code(), NOT_WRITTEN)
        return self.faults.not_written(where, f"{error.str()} ({error.name()})", remedy)


@dataclass(slots=True, kw_only=True)
class LibrdkafkaProducer:
    """See `client.port.Producer`."""

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
                self._queue_if_grown(row, code_of(error))
        self._rd.poll(0)
        self._raise_if_failed()

    def flush(self) -> None:
        deadline = self._deadline()
        while self._rd.flush(_WAIT_SLICE_S) > 0:
            self._raise_if_failed()
            if time.monotonic() >= deadline:
                raise self._unconfirmed(f"{len(self._rd)} records")
        # All is answered: what a broker refused meanwhile, another one has taken.
        if self._deliveries.failed is not None:
            raise self._deliveries.failed

    def close(self) -> None:
        self._give_back(self)

    def abort(self) -> None:
        # Purging reports every message as failed, so nothing is outstanding any more, and closing
        # (which waits for what is) returns.
        self._rd.purge(in_queue=True, in_flight=True, blocking=True)
        if self._rd.flush(_ABORT_S) == 0:
            self._rd.close()

    def end(self) -> None:
        """Close for good; only with nothing outstanding."""
        self._rd.close()

    def forget_trouble(self) -> None:
        """What the brokers' connections went through before belongs to another task."""
        self._rd.poll(0)
        self._events.forget()

    def _send_when_there_is_room(self, row: tuple[Any, ...]) -> None:
        deadline = self._deadline()
        while True:
            self._rd.poll(_WAIT_SLICE_S)
            self._raise_if_failed()
            try:
                self._rd.produce(*row)
                return
            except BufferError:
                if time.monotonic() >= deadline:
                    raise self._unconfirmed("the send buffer is full, and no record") from None
            except KafkaException as error:
                self._queue_if_grown(row, code_of(error))
                return

    def _queue_if_grown(self, row: tuple[Any, ...], error: Code) -> None:
        """Queue a row for a partition that the topic has got since librdkafka looked last.

        It looks every five minutes, and refuses what it does not know. Raises what `_not_queued`
        says where the partition stays unknown, and for every other error.
        """
        for _ in range(_LOOKS):
            if error.code() != Code._UNKNOWN_PARTITION:
                break
            with suppress(KafkaException):  # what it does not find, the next look may
                self._rd.list_topics(row[0], timeout=_LOOK_S)
            try:
                self._rd.produce(*row)
            except BufferError:
                self._send_when_there_is_room(row)
                return
            except KafkaException as exception:
                error = code_of(exception)
                self._rd.poll(_WAIT_SLICE_S)  # the broker asked may not have heard of it yet
            else:
                return
        raise self._not_queued(error, row)

    def _deadline(self) -> float:
        return time.monotonic() + self._delivery_timeout_s + _GRACE_S

    def _raise_if_failed(self) -> None:
        if self._deliveries.failed is not None:
            raise self._deliveries.failed
        self._events.raise_if_refused("writing")

    def _unconfirmed(self, what: str) -> KafkaError:
        reason = self._events.unreachable()
        return DeliveryError(
            f"{what} could be confirmed by {self._events.bootstrap_servers} within "
            f"{self._delivery_timeout_s + _GRACE_S:g} s"
            + (f" ({reason})" if reason else "")
            + "; check that the brokers run and are reached, or raise 'kafka.delivery.timeout.ms'"
        )

    def _not_queued(self, error: Code, row: tuple[Any, ...]) -> Exception:
        """librdkafka would not take the record at all."""
        topic, value, key = row[:3]
        partition = row[3] if len(row) > 3 else _PARTITIONER_CHOOSES
        headers = row[7] if len(row) > 7 else None
        where = topic if partition == _PARTITIONER_CHOOSES else f"{topic}-{partition}"
        faults = self._deliveries.faults
        if error.code() == Code.MSG_SIZE_TOO_LARGE:
            return faults.record_too_large(
                where,
                value_bytes=len(value or b""),
                key_bytes=len(key or b""),
                header_bytes=sum(len(name.encode()) + len(v or b"") for name, v in headers or ()),
            )
        if error.code() == Code._UNKNOWN_PARTITION:
            return faults.no_such_partition(topic, partition)
        remedy = topic_remedy(topic) if error.code() in _NO_SUCH_TOPIC else NOT_WRITTEN
        return faults.not_written(where, f"{error.str()} ({error.name()})", remedy)


def _rows(batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    """Arguments of librdkafka's `produce`, by position: a column at a time becomes Python's.

    Absent columns at the end are left out, since each argument costs.
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
        columns += [repeat(None), repeat(None)]  # `callback` and `on_delivery` of its own: none
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
    """Raises `RowError` for the one time that librdkafka cannot send."""
    if "timestamp" not in batch.schema.names:
        return
    if pc.any(pc.equal(batch.column("timestamp").cast(pa.int64()), _NOW)).as_py():
        raise RowError(
            "a row has the timestamp 1970-01-01T00:00:00.000Z, which librdkafka takes for "
            '"now": make it null if that is meant, or move it by a millisecond'
        )


@dataclass(slots=True, kw_only=True)
class IdleProducer:
    """Keeps the one producer that was given back, since a new one needs half a second to start.

    An idempotent producer must ask the brokers for its id, and librdkafka asks on a timer.
    """

    properties: Mapping[str, str] = field(repr=False)
    bootstrap_servers: str
    _idle: LibrdkafkaProducer | None = None

    def lend(self) -> LibrdkafkaProducer:
        """The idle producer if it is fresh, else a new one."""
        idle, self._idle = self._idle, None
        if idle is not None and time.monotonic() - idle.idle_since < _IDLE_S_MAX:
            idle.forget_trouble()
            return idle
        if idle is not None:
            idle.end()
        return self._open()

    def close(self) -> None:
        idle, self._idle = self._idle, None
        if idle is not None:
            idle.end()

    def _open(self) -> LibrdkafkaProducer:
        properties = {**PRODUCER_DEFAULTS, **self.properties}
        events = ErrorEvents(self.bootstrap_servers)
        faults = DeliveryErrors(
            bootstrap_servers=self.bootstrap_servers,
            record_bytes_max=int(properties["message.max.bytes"]),
        )
        deliveries = _Deliveries(events, faults)
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
