"""librdkafka's messages as Arrow record batches.

Purpose: build only the columns that are wanted, a column at a time. Invariant: the batches have
the types of `columns.SOURCE_SCHEMA` and no binary column comes near Arrow's 2 GiB of 32-bit
offsets. What it must not know: where messages come from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Message

from pyspark_kafka.columns import HEADERS_TYPE, SOURCE_SCHEMA
from pyspark_kafka.errors import KafkaError

_TIMESTAMP: Final = SOURCE_SCHEMA.field("timestamp").type


def record_batch(
    messages: list[Message], columns: tuple[str, ...], *, bytes_max: int
) -> Iterator[pa.RecordBatch]:
    """Yield the messages, all of one topic partition, in as many batches as their bytes ask for.

    A batch is cut in two while its wanted payload is above `bytes_max` and it has two rows.
    """
    if len(messages) > 1 and _payload_bytes(messages, columns) > bytes_max:
        middle = len(messages) // 2
        yield from record_batch(messages[:middle], columns, bytes_max=bytes_max)
        yield from record_batch(messages[middle:], columns, bytes_max=bytes_max)
        return
    yield pa.RecordBatch.from_arrays(
        [_COLUMNS[name](messages) for name in columns],
        schema=pa.schema([SOURCE_SCHEMA.field(name) for name in columns]),
    )


def _payload_bytes(messages: list[Message], columns: tuple[str, ...]) -> int:
    total = 0
    if "value" in columns:
        total += sum(map(len, messages))
    if "key" in columns:
        total += sum(len(m.key() or b"") for m in messages)
    if "headers" in columns:
        total += sum(
            len(key) + len(value or b"")
            for headers in _header_lists(messages)
            for key, value in headers or ()
        )
    return total


def _keys(messages: list[Message]) -> Any:
    return pa.array([m.key() for m in messages], pa.binary())


def _values(messages: list[Message]) -> Any:
    return pa.array([m.value() for m in messages], pa.binary())


def _topics(messages: list[Message]) -> Any:
    return pa.repeat(pa.scalar(messages[0].topic(), pa.string()), len(messages))


def _partitions(messages: list[Message]) -> Any:
    return pa.repeat(pa.scalar(messages[0].partition(), pa.int32()), len(messages))


def _offsets(messages: list[Message]) -> Any:
    return pa.array([m.offset() for m in messages], pa.int64())


def _timestamps(messages: list[Message]) -> Any:
    """Milliseconds become Arrow's microseconds; a record without a timestamp is at -1, as Spark's.

    Raises `KafkaError` where a timestamp, in milliseconds, is no time that Spark could hold.
    """
    stamps = [m.timestamp() for m in messages]
    milliseconds = pa.array([at if kind else -1 for kind, at in stamps], pa.int64())
    try:
        return pc.multiply_checked(milliseconds, 1000).cast(_TIMESTAMP)
    except pa.ArrowInvalid:
        worst = max(messages, key=lambda m: abs(m.timestamp()[1]))
        raise KafkaError(
            f"{worst.topic()}-{worst.partition()}: the record at offset {worst.offset()} has the "
            f"timestamp {worst.timestamp()[1]}, which as milliseconds is beyond what Spark can "
            "hold; its producer probably wrote another unit. Read it with a schema that leaves "
            "the column 'timestamp' out"
        ) from None


def _timestamp_types(messages: list[Message]) -> Any:
    """Spark's numbers, which are Kafka's ids: -1 none, 0 CreateTime, 1 LogAppendTime."""
    return pa.array([m.timestamp()[0] - 1 for m in messages], pa.int32())


def _headers(messages: list[Message]) -> Any:
    return pa.array(_header_lists(messages), HEADERS_TYPE)


def _header_lists(messages: list[Message]) -> list[list[tuple[str, bytes | None]] | None]:
    """Each record's headers in their order, repeated keys kept; None where there are none.

    Raises `KafkaError` naming the record with a header key that is not UTF-8. confluent-kafka then
    returns a broken list with an exception set. `map` calls in a way that notices; a plain call
    in the interpreter's fast path does not, and crashes (seen with 2.16 on Python 3.11).
    """
    lists: list[Any] = []
    try:
        for headers in map(Message.headers, messages):
            lists.append(headers or None)  # noqa: PERF401, their number tells which one failed
    except (SystemError, UnicodeDecodeError):
        failed = messages[len(lists)]
        raise KafkaError(
            f"{failed.topic()}-{failed.partition()}: the record at offset {failed.offset()} has a "
            "header whose key is not UTF-8, which this engine cannot decode; read it without "
            "'includeHeaders'"
        ) from None
    return lists


_COLUMNS: Final[Mapping[str, Callable[[list[Message]], Any]]] = {
    "key": _keys,
    "value": _values,
    "topic": _topics,
    "partition": _partitions,
    "offset": _offsets,
    "timestamp": _timestamps,
    "timestampType": _timestamp_types,
    "headers": _headers,
}
