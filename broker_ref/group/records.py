"""The records of `__consumer_offsets`, byte for byte as Apache Kafka 4.3 writes them.

    key     OffsetCommitKey v1     int16 1, string group, string topic, int32 partition
    value   OffsetCommitValue v4   int16 4, int64 offset, int32 leader_epoch, compact string
                                   metadata, int64 commit_timestamp (ms), tagged fields:
                                   0 uuid topic_id; null instead: the offset is deleted

Purpose: those bytes, and those of values of versions 0 to 3, which have plain strings and no
tagged fields. A plain string is its length in bytes as int16, then UTF-8; a compact one has its
length plus one as a varint. All else is big-endian. Invariant: what `encode_*` wrote, `decode_*`
reads back equal. What it must not know: where the records are kept.
Source: Kafka's OffsetCommitKey.json and OffsetCommitValue.json.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.log.errors import LogError
from broker_ref.protocol.identifiers import ZERO_UUID, Uuid
from broker_ref.protocol.reader import Cursor, MalformedRequestError

OFFSET_KEY_VERSIONS: Final = (0, 1)
KEY_VERSION: Final = 1
FIRST_VALUE_VERSION_OF_LEADER_EPOCH: Final = 3
FIRST_FLEXIBLE_VALUE_VERSION: Final = 4
VALUE_VERSION: Final = 4
TOPIC_ID_TAG: Final = 0

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")


class UnreadableOffsetError(LogError):
    """A record of `__consumer_offsets` is none of the versions known here."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.kafka_storage_error, f"__consumer_offsets: {message}")


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitKey:
    """Whose offset of which partition."""

    group: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitValue:
    """A committed offset.

    `leader_epoch` is -1 where the consumer did not say, `topic_id` zero in old records.
    """

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    topic_id: Uuid = ZERO_UUID


def encode_key(key: OffsetCommitKey) -> bytes:
    """The bytes of a key."""
    return (
        _INT16.pack(KEY_VERSION)
        + _string(key.group)
        + _string(key.topic)
        + _INT32.pack(key.partition)
    )


def encode_value(value: OffsetCommitValue) -> bytes:
    """The bytes of a value."""
    metadata = value.metadata.encode()
    tagged = b"\x00"
    if value.topic_id != ZERO_UUID:
        topic_id = value.topic_id.bytes
        tagged = b"\x01" + _varint(TOPIC_ID_TAG) + _varint(len(topic_id)) + topic_id
    return (
        _INT16.pack(VALUE_VERSION)
        + _INT64.pack(value.offset)
        + _INT32.pack(value.leader_epoch)
        + _varint(len(metadata) + 1)
        + metadata
        + _INT64.pack(value.commit_timestamp_ms)
        + tagged
    )


def decode_key(data: bytes) -> OffsetCommitKey | None:
    """The key; None where the record is about something else than an offset."""
    cursor = Cursor(data)
    try:
        if cursor.fixed(_INT16, "the version") not in OFFSET_KEY_VERSIONS:
            return None
        return OffsetCommitKey(
            group=_read_string(cursor, "the group"),
            topic=_read_string(cursor, "the topic"),
            partition=cursor.fixed(_INT32, "the partition"),
        )
    except MalformedRequestError as error:
        raise UnreadableOffsetError(f"the key {data!r} of an offset: {error}") from error


def decode_value(data: bytes) -> OffsetCommitValue:
    """The value; UnreadableOffsetError where it is of no version from 0 to 4."""
    cursor = Cursor(data)
    try:
        version = cursor.fixed(_INT16, "the version")
        if not 0 <= version <= VALUE_VERSION:
            raise UnreadableOffsetError(f"version {version} of OffsetCommitValue is unknown here")
        flexible = version >= FIRST_FLEXIBLE_VALUE_VERSION
        offset = cursor.fixed(_INT64, "the offset")
        leader_epoch = -1
        if version >= FIRST_VALUE_VERSION_OF_LEADER_EPOCH:
            leader_epoch = cursor.fixed(_INT32, "the leader epoch")
        metadata = (_read_compact_string if flexible else _read_string)(cursor, "the metadata")
        return OffsetCommitValue(
            offset=offset,
            leader_epoch=leader_epoch,
            metadata=metadata,
            commit_timestamp_ms=cursor.fixed(_INT64, "the commit timestamp"),
            topic_id=_read_topic_id(cursor) if flexible else ZERO_UUID,
        )
    except MalformedRequestError as error:
        raise UnreadableOffsetError(f"the value {data!r} of an offset: {error}") from error


def _read_topic_id(cursor: Cursor) -> Uuid:
    topic_id = ZERO_UUID
    for _ in range(cursor.unsigned_varint("the number of tagged fields")):
        tag = cursor.unsigned_varint("a tag")
        data = cursor.take(cursor.unsigned_varint("the size of a tagged field"), "a tagged field")
        if tag == TOPIC_ID_TAG and len(data) == len(ZERO_UUID.bytes):
            topic_id = Uuid(bytes=data)
    return topic_id


def _read_string(cursor: Cursor, what: str) -> str:
    return cursor.take(cursor.fixed(_INT16, what), what).decode()


def _read_compact_string(cursor: Cursor, what: str) -> str:
    return cursor.take(cursor.unsigned_varint(what) - 1, what).decode()


def _string(text: str) -> bytes:
    data = text.encode()
    return _INT16.pack(len(data)) + data


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
