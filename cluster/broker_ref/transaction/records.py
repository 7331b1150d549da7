"""The records of `__transaction_state`, in the exact format of Apache Kafka 4.3.

    key     TransactionLogKey v0    int16 0, string transactional_id
    value   TransactionLogValue v1  if transaction.version is at least 1: int16 1, int64
                                    producer_id, int16 producer_epoch, int32 timeout (ms), int8
                                    state, compact nullable array of topics: compact string topic,
                                    compact array of int32 partitions, tagged fields (none); int64
                                    last_update_timestamp (ms), int64 start_timestamp (ms), tagged
                                    fields: 0 int64 previous_producer_id, 1 int64
                                    next_producer_id, 2 int16 client_transaction_version, 3 int16
                                    next_producer_epoch; default values are not written
            TransactionLogValue v0  the same with plain strings and arrays, without tagged fields
            null                    a tombstone: the transactional id is removed

This module encodes and decodes these records. Invariant: decoding a version 1 value returns the
encoded value, except for `last_producer_epoch`, which the log does not contain. Kafka 4.3 neither
writes nor reads next_producer_epoch. In the Empty state, the array of topics is null. Source:
Kafka's TransactionLogKey.json, TransactionLogValue.json and `TransactionLog`.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.log.errors import LogError
from broker_ref.protocol.reader import Cursor, MalformedRequestError, skip_tagged_fields
from broker_ref.replication.partition import PartitionKey
from broker_ref.transaction.partitions import by_topic
from broker_ref.transaction.states import TransactionState
from broker_ref.transaction.transitions import NO_PRODUCER_ID, Transaction

KEY_VERSION: Final = 0
VALUE_VERSIONS: Final = range(2)
FIRST_FLEXIBLE_VALUE_VERSION: Final = 1

PREVIOUS_PRODUCER_ID_TAG: Final = 0
NEXT_PRODUCER_ID_TAG: Final = 1
CLIENT_TRANSACTION_VERSION_TAG: Final = 2

_INT8: Final = struct.Struct(">b")
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")
_HEAD: Final = struct.Struct(">hqhib")
_TIMESTAMPS: Final = struct.Struct(">qq")


class UnreadableTransactionError(LogError):
    """A record of `__transaction_state` cannot be decoded."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.kafka_storage_error, f"__transaction_state: {message}")


def encode_key(transactional_id: str) -> bytes:
    """Encode the key of a transactional id."""
    return _INT16.pack(KEY_VERSION) + _string(transactional_id)


def encode_value(transaction: Transaction, *, version: int) -> bytes:
    """Encode a value. `version` is one of `VALUE_VERSIONS`."""
    flexible = version >= FIRST_FLEXIBLE_VALUE_VERSION
    return b"".join(
        (
            _HEAD.pack(
                version,
                transaction.producer_id,
                transaction.producer_epoch,
                transaction.timeout_ms,
                transaction.state.value,
            ),
            _topics(transaction, flexible=flexible),
            _TIMESTAMPS.pack(transaction.last_update_timestamp_ms, transaction.start_timestamp_ms),
            _tagged(transaction) if flexible else b"",
        )
    )


def decode_key(data: bytes) -> str | None:
    """Return the transactional id, or None if the version of the key is unknown."""
    cursor = Cursor(data)
    try:
        if cursor.fixed(_INT16, "the version") != KEY_VERSION:
            return None
        return _read_string(cursor, flexible=False, what="the transactional id")
    except (MalformedRequestError, UnicodeDecodeError) as error:
        raise UnreadableTransactionError(f"invalid key {data[:100]!r}: {error}") from error


def is_known(data: bytes) -> bool:
    """Return whether the version of a value is known. Values with other versions are ignored."""
    return int.from_bytes(data[: _INT16.size]) in VALUE_VERSIONS


def decode_value(data: bytes) -> Transaction:
    """Decode a value. Raises: UnreadableTransactionError."""
    cursor = Cursor(data)
    try:
        version = cursor.fixed(_INT16, "the version")
        if version not in VALUE_VERSIONS:
            raise UnreadableTransactionError(f"the value has unknown version {version}")
        return _read_value(cursor, flexible=version >= FIRST_FLEXIBLE_VALUE_VERSION)
    except (MalformedRequestError, UnicodeDecodeError, ValueError) as error:
        raise UnreadableTransactionError(f"invalid value {data[:100]!r}: {error}") from error


def _topics(transaction: Transaction, *, flexible: bool) -> bytes:
    if transaction.state is TransactionState.EMPTY:
        return b"\x00" if flexible else _INT32.pack(-1)
    topics = by_topic(transaction.partitions)
    parts = [_count(topics, flexible=flexible)]
    for topic, partitions in topics.items():
        name = topic.encode()
        parts += (
            _varint(len(name) + 1) + name if flexible else _string(topic),
            _count(partitions, flexible=flexible),
            struct.pack(f">{len(partitions)}i", *partitions),
            b"\x00" if flexible else b"",
        )
    return b"".join(parts)


def _tagged(transaction: Transaction) -> bytes:
    fields = (
        (PREVIOUS_PRODUCER_ID_TAG, _INT64, transaction.previous_producer_id, NO_PRODUCER_ID),
        (NEXT_PRODUCER_ID_TAG, _INT64, transaction.next_producer_id, NO_PRODUCER_ID),
        (CLIENT_TRANSACTION_VERSION_TAG, _INT16, transaction.client_transaction_version, 0),
    )
    written = [
        _varint(tag) + _varint(layout.size) + layout.pack(value)
        for tag, layout, value, default in fields
        if value != default
    ]
    return _varint(len(written)) + b"".join(written)


def _read_value(cursor: Cursor, *, flexible: bool) -> Transaction:
    producer_id = cursor.fixed(_INT64, "the producer id")
    producer_epoch = cursor.fixed(_INT16, "the producer epoch")
    timeout_ms = cursor.fixed(_INT32, "the timeout")
    state = TransactionState(cursor.fixed(_INT8, "the state"))
    if state is TransactionState.DEAD:
        raise ValueError("the state Dead is valid only for a tombstone")
    partitions = frozenset(_read_partitions(cursor, flexible=flexible))
    last_update_timestamp_ms = cursor.fixed(_INT64, "the last update timestamp")
    start_timestamp_ms = cursor.fixed(_INT64, "the start timestamp")
    tagged = _read_tagged(cursor) if flexible else {}
    return Transaction(
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        timeout_ms=timeout_ms,
        state=state,
        partitions=partitions,
        last_update_timestamp_ms=last_update_timestamp_ms,
        start_timestamp_ms=start_timestamp_ms,
        previous_producer_id=tagged.get(PREVIOUS_PRODUCER_ID_TAG, NO_PRODUCER_ID),
        next_producer_id=tagged.get(NEXT_PRODUCER_ID_TAG, NO_PRODUCER_ID),
        client_transaction_version=tagged.get(CLIENT_TRANSACTION_VERSION_TAG, 0),
    )


def _read_partitions(cursor: Cursor, *, flexible: bool) -> Iterator[PartitionKey]:
    for _ in range(cursor.array_length(flexible=flexible, what="the topics")):
        topic = _read_string(cursor, flexible=flexible, what="a topic")
        for _ in range(cursor.array_length(flexible=flexible, what="the partitions")):
            yield PartitionKey(topic=topic, partition=cursor.fixed(_INT32, "a partition"))
        if flexible:
            skip_tagged_fields(cursor)


def _read_tagged(cursor: Cursor) -> dict[int, int]:
    fields = {}
    for _ in range(cursor.unsigned_varint("the number of tagged fields")):
        tag = cursor.unsigned_varint("a tag")
        data = cursor.take(cursor.unsigned_varint("the size of a tagged field"), "a tagged field")
        fields[tag] = int.from_bytes(data, signed=True)
    return fields


def _read_string(cursor: Cursor, *, flexible: bool, what: str) -> str:
    length = cursor.unsigned_varint(what) - 1 if flexible else cursor.fixed(_INT16, what)
    return cursor.take(length, what).decode()


def _string(text: str) -> bytes:
    data = text.encode()
    return _INT16.pack(len(data)) + data


def _count(items: Collection[object], *, flexible: bool) -> bytes:
    return _varint(len(items) + 1) if flexible else _INT32.pack(len(items))


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
