"""The records of `__consumer_offsets`, byte for byte as Apache Kafka writes them.

    key     OffsetCommitKey v1     int16 1, string group, string topic, int32 partition
    value   OffsetCommitValue v3   int16 3, int64 offset, int32 leader_epoch, string metadata,
                                   int64 commit_timestamp (ms); null: the offset is deleted

Purpose: those bytes. A string is its length in bytes as int16, then UTF-8; all is big-endian.
Invariant: what `encode_*` wrote, `decode_*` reads back equal; keys of other versions, which hold
what this broker does not keep, are None. What it must not know: where the records are kept.
Source: Kafka's OffsetCommitKey.json and OffsetCommitValue.json.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

KEY_VERSIONS: Final = (0, 1)
KEY_VERSION: Final = 1
VALUE_VERSION: Final = 3
VALUE_VERSIONS_BEFORE_LEADER_EPOCH: Final = (0, 1, 2)

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")


class UnreadableOffsetError(Exception):
    """A record of `__consumer_offsets` is none of the versions known here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitKey:
    """Whose offset of which partition."""

    group: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitValue:
    """A committed offset; `leader_epoch` is -1 where the consumer did not say."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int


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
    return (
        _INT16.pack(VALUE_VERSION)
        + _INT64.pack(value.offset)
        + _INT32.pack(value.leader_epoch)
        + _string(value.metadata)
        + _INT64.pack(value.commit_timestamp_ms)
    )


def decode_key(data: bytes) -> OffsetCommitKey | None:
    """The key; None where the record is about something else than an offset."""
    reader = _Reader(data)
    if reader.number(_INT16) not in KEY_VERSIONS:
        return None
    return OffsetCommitKey(
        group=reader.string(), topic=reader.string(), partition=reader.number(_INT32)
    )


def decode_value(data: bytes) -> OffsetCommitValue:
    """The value; UnreadableOffsetError where its version is none of 0 to 3."""
    reader = _Reader(data)
    version = reader.number(_INT16)
    if version != VALUE_VERSION and version not in VALUE_VERSIONS_BEFORE_LEADER_EPOCH:
        raise UnreadableOffsetError(f"version {version} of OffsetCommitValue is not known here")
    return OffsetCommitValue(
        offset=reader.number(_INT64),
        leader_epoch=reader.number(_INT32) if version == VALUE_VERSION else -1,
        metadata=reader.string(),
        commit_timestamp_ms=reader.number(_INT64),
    )


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def number(self, layout: struct.Struct) -> int:
        try:
            (value,) = layout.unpack_from(self._data, self._position)
        except struct.error as error:
            raise UnreadableOffsetError(f"{self._data!r} ends too early") from error
        self._position += layout.size
        return int(value)

    def string(self) -> str:
        length = self.number(_INT16)
        start, self._position = self._position, self._position + length
        if length < 0 or self._position > len(self._data):
            raise UnreadableOffsetError(f"{self._data!r} has a string of length {length}")
        return self._data[start : self._position].decode()


def _string(text: str) -> bytes:
    data = text.encode()
    return _INT16.pack(len(data)) + data
