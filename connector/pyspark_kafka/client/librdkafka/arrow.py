"""Converts librdkafka's messages to Arrow record batches.

Only the required columns are built, one column at a time. Invariant: the batches have the types of
`columns.SOURCE_SCHEMA`, and binary columns are far smaller than Arrow's limit of 2 GiB.
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
    """Yield the messages of one topic partition as batches.

    A batch with more than `bytes_max` bytes of payload is split in half, repeatedly if necessary. A
    batch with a single row is not split.
    """
    if len(messages) > 1 and payload_bytes(messages, columns) > bytes_max:
        middle = len(messages) // 2
        yield from record_batch(messages[:middle], columns, bytes_max=bytes_max)
        yield from record_batch(messages[middle:], columns, bytes_max=bytes_max)
        return
    yield pa.RecordBatch.from_arrays(
        [_COLUMNS[name](messages) for name in columns],
        schema=pa.schema([SOURCE_SCHEMA.field(name) for name in columns]),
    )


def payload_bytes(messages: list[Message], columns: tuple[str, ...]) -> int:
    """Return the number of bytes in the values, keys and headers, if their columns are selected."""
    total = 0
    if "value" in columns:
        total += sum(map(len, messages))
    if "key" in columns:
        total += sum(len(key) for key in map(Message.key, messages) if key)
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
    """Return timestamps in microseconds.

    A record without a timestamp gets the timestamp -1 ms, as in Spark's connector. Raises
    `KafkaError` for a timestamp outside Spark's range.
    """
    stamps = [m.timestamp() for m in messages]
    milliseconds = pa.array([at if kind else -1 for kind, at in stamps], pa.int64())
    try:
        return pc.multiply_checked(milliseconds, 1000).cast(_TIMESTAMP)
    except pa.ArrowInvalid:
        worst = max(messages, key=lambda m: abs(m.timestamp()[1]))
        raise KafkaError(
            f"The record at offset {worst.offset()} of {worst.topic()}-{worst.partition()} has the "
            f"timestamp {worst.timestamp()[1]} ms, which is outside the range of Spark's "
            "timestamps. The producer probably used a unit other than milliseconds.",
            advice="To read this record, pass a schema without the 'timestamp' column to "
            "`schema()`.",
            column="timestamp",
            topic=worst.topic(),
            partition=worst.partition(),
            offset=worst.offset(),
        ) from None


def _timestamp_types(messages: list[Message]) -> Any:
    """Return the timestamp types: -1 for none, 0 for CreateTime, and 1 for LogAppendTime."""
    return pa.array([m.timestamp()[0] - 1 for m in messages], pa.int32())


def _headers(messages: list[Message]) -> Any:
    return pa.array(_header_lists(messages), HEADERS_TYPE)


def _header_lists(messages: list[Message]) -> list[list[tuple[str, bytes | None]] | None]:
    """Return the headers of each record in order, or None for a record without headers.

    Repeated keys are retained. Raises `KafkaError` for a header key that is not UTF-8. For such a
    key, confluent-kafka returns an incomplete list and sets an exception. If `map` calls
    `Message.headers`, Python raises an error. A direct call crashes the process (confluent-kafka
    2.16, Python 3.11).
    """
    lists: list[Any] = []
    try:
        for headers in map(Message.headers, messages):
            lists.append(headers or None)  # noqa: PERF401, the length is the failed message's index
    except (SystemError, UnicodeDecodeError):
        failed = messages[len(lists)]
        raise KafkaError(
            f"The record at offset {failed.offset()} of {failed.topic()}-{failed.partition()} has "
            "a header whose key is not valid UTF-8. The librdkafka engine cannot decode such keys.",
            advice="To read this record, remove the 'includeHeaders' option.",
            column="headers",
            topic=failed.topic(),
            partition=failed.partition(),
            offset=failed.offset(),
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
