"""The records of `__consumer_offsets`, in the exact format of Apache Kafka 4.3.

    key     OffsetCommitKey v1     int16 1, string group, string topic, int32 partition
    value   OffsetCommitValue v4   int16 4, int64 offset, int32 leader_epoch, compact string
                                   metadata, int64 commit_timestamp (ms), tagged fields:
                                   0 uuid topic_id; a tombstone deletes the offset
            OffsetCommitValue v1   for an offset with its own expire timestamp: int16 1, int64
                                   offset, string metadata, int64 commit_timestamp, int64
                                   expire_timestamp
    key     GroupMetadataKey v2    int16 2, string group
    value   GroupMetadataValue v3  int16 3, string protocol_type, int32 generation, nullable string
                                   protocol, nullable string leader, int64 state_timestamp (ms),
                                   array of members: string member_id, nullable string
                                   group_instance_id, string client_id, string client_host, int32
                                   rebalance_timeout (ms), int32 session_timeout (ms), bytes
                                   subscription, bytes assignment; a tombstone deletes the group

Encodes and decodes these records. Values of versions 0 to 4 can be decoded. Version 4 has compact
strings and tagged fields, and lower versions have plain strings. A plain string consists of its
length in bytes (int16) and its UTF-8 bytes. A compact string starts with its length plus one, as a
varint. Numbers are big-endian. Invariant: `decode_*` is the inverse of `encode_*`. Source: Kafka's
OffsetCommitKey.json, OffsetCommitValue.json, GroupMetadataKey.json and GroupMetadataValue.json.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, TypeVar

from kio.schema.errors import ErrorCode

from broker_ref.frozen import dataclass
from broker_ref.log.errors import LogError
from broker_ref.protocol.identifiers import ZERO_UUID, Uuid
from broker_ref.protocol.reader import Cursor, MalformedRequestError, skip_tagged_fields

OFFSET_KEY_VERSIONS: Final = (0, 1)
OFFSET_KEY_VERSION: Final = 1
GROUP_KEY_VERSION: Final = 2
OFFSET_VALUE_VERSION: Final = 4
OFFSET_VALUE_VERSION_OF_EXPIRY: Final = 1
GROUP_VALUE_VERSION: Final = 3
VALUE_VERSIONS: Final = range(5)
"""The versions of OffsetCommitValue and GroupMetadataValue that can be decoded."""
FIRST_FLEXIBLE_VALUE_VERSION: Final = 4
"""The first version with compact strings and tagged fields."""
FIRST_OFFSET_VALUE_VERSION_OF_LEADER_EPOCH: Final = 3
FIRST_GROUP_VALUE_VERSION_OF_REBALANCE_TIMEOUT: Final = 1
FIRST_GROUP_VALUE_VERSION_OF_STATE_TIMESTAMP: Final = 2
FIRST_GROUP_VALUE_VERSION_OF_INSTANCE_ID: Final = 3
TOPIC_ID_TAG: Final = 0
NO_EXPIRY: Final = -1

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")

Decoded = TypeVar("Decoded")


class UnreadableOffsetError(LogError):
    """A record of `__consumer_offsets` cannot be decoded."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.kafka_storage_error, f"__consumer_offsets: {message}")


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitKey:
    """The key of a committed offset."""

    group: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMetadataKey:
    """The key of a group."""

    group: str


RecordKey = OffsetCommitKey | GroupMetadataKey


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitValue:
    """A committed offset.

    `leader_epoch` is -1 if the consumer did not send a leader epoch. `topic_id` is zero if the
    version of the record is lower than 4. `expire_timestamp_ms` is `NO_EXPIRY` if
    `offsets.retention.minutes` applies.
    """

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    topic_id: Uuid = ZERO_UUID
    expire_timestamp_ms: int = NO_EXPIRY


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberMetadata:
    """A member in a group record. `rebalance_timeout_ms` is -1 in records of version 0."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMetadataValue:
    """A generation of a group. `state_timestamp_ms` is -1 in records of version 0 or 1."""

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    state_timestamp_ms: int
    members: tuple[MemberMetadata, ...]


def encode_key(key: RecordKey) -> bytes:
    """Encode the key of an offset or a group."""
    if isinstance(key, GroupMetadataKey):
        return _INT16.pack(GROUP_KEY_VERSION) + _string(key.group)
    return (
        _INT16.pack(OFFSET_KEY_VERSION)
        + _string(key.group)
        + _string(key.topic)
        + _INT32.pack(key.partition)
    )


def encode_value(value: OffsetCommitValue) -> bytes:
    """Encode a committed offset."""
    metadata = value.metadata.encode()
    if value.expire_timestamp_ms != NO_EXPIRY:
        return (
            _INT16.pack(OFFSET_VALUE_VERSION_OF_EXPIRY)
            + _INT64.pack(value.offset)
            + _string(value.metadata)
            + _INT64.pack(value.commit_timestamp_ms)
            + _INT64.pack(value.expire_timestamp_ms)
        )
    tagged = b"\x00"
    if value.topic_id != ZERO_UUID:
        topic_id = value.topic_id.bytes
        tagged = b"\x01" + _varint(TOPIC_ID_TAG) + _varint(len(topic_id)) + topic_id
    return (
        _INT16.pack(OFFSET_VALUE_VERSION)
        + _INT64.pack(value.offset)
        + _INT32.pack(value.leader_epoch)
        + _varint(len(metadata) + 1)
        + metadata
        + _INT64.pack(value.commit_timestamp_ms)
        + tagged
    )


def encode_group_value(value: GroupMetadataValue) -> bytes:
    """Encode a generation of a group."""
    parts = [
        _INT16.pack(GROUP_VALUE_VERSION),
        _string(value.protocol_type),
        _INT32.pack(value.generation),
        _string(value.protocol),
        _string(value.leader),
        _INT64.pack(value.state_timestamp_ms),
        _INT32.pack(len(value.members)),
    ]
    for member in value.members:
        parts += (
            _string(member.member_id),
            _string(member.group_instance_id),
            _string(member.client_id),
            _string(member.client_host),
            _INT32.pack(member.rebalance_timeout_ms),
            _INT32.pack(member.session_timeout_ms),
            _bytes(member.subscription),
            _bytes(member.assignment),
        )
    return b"".join(parts)


def decode_key(data: bytes) -> RecordKey | None:
    """Decode the key of an offset or a group. Return None for other record types."""

    def read(cursor: Cursor) -> RecordKey | None:
        version = cursor.fixed(_INT16, "the version")
        if version == GROUP_KEY_VERSION:
            return GroupMetadataKey(group=_read_string(cursor, "the group"))
        if version not in OFFSET_KEY_VERSIONS:
            return None
        return OffsetCommitKey(
            group=_read_string(cursor, "the group"),
            topic=_read_string(cursor, "the topic"),
            partition=cursor.fixed(_INT32, "the partition"),
        )

    return _decode(data, "a key", read)


def decode_value(data: bytes) -> OffsetCommitValue:
    """Decode a committed offset. Raises: UnreadableOffsetError."""

    def read(cursor: Cursor) -> OffsetCommitValue:
        version = _read_version(cursor, "OffsetCommitValue")
        flexible = version >= FIRST_FLEXIBLE_VALUE_VERSION
        offset = cursor.fixed(_INT64, "the offset")
        leader_epoch = -1
        if version >= FIRST_OFFSET_VALUE_VERSION_OF_LEADER_EPOCH:
            leader_epoch = cursor.fixed(_INT32, "the leader epoch")
        metadata = (_read_compact_string if flexible else _read_string)(cursor, "the metadata")
        commit_timestamp_ms = cursor.fixed(_INT64, "the commit timestamp")
        expires = version == OFFSET_VALUE_VERSION_OF_EXPIRY
        return OffsetCommitValue(
            offset=offset,
            leader_epoch=leader_epoch,
            metadata=metadata,
            commit_timestamp_ms=commit_timestamp_ms,
            topic_id=_read_topic_id(cursor) if flexible else ZERO_UUID,
            expire_timestamp_ms=cursor.fixed(_INT64, "the expire timestamp")
            if expires
            else NO_EXPIRY,
        )

    return _decode(data, "the value of an offset", read)


def decode_group_value(data: bytes) -> GroupMetadataValue:
    """Decode a generation of a group. Raises: UnreadableOffsetError."""

    def read(cursor: Cursor) -> GroupMetadataValue:
        version = _read_version(cursor, "GroupMetadataValue")
        flexible = version >= FIRST_FLEXIBLE_VALUE_VERSION
        string, nullable = _string_readers(flexible=flexible)
        value = GroupMetadataValue(
            protocol_type=string(cursor, "the protocol type"),
            generation=cursor.fixed(_INT32, "the generation"),
            protocol=nullable(cursor, "the protocol"),
            leader=nullable(cursor, "the leader"),
            state_timestamp_ms=(
                cursor.fixed(_INT64, "the state's timestamp")
                if version >= FIRST_GROUP_VALUE_VERSION_OF_STATE_TIMESTAMP
                else -1
            ),
            members=tuple(
                _read_member(cursor, version)
                for _ in range(cursor.array_length(flexible=flexible, what="the members"))
            ),
        )
        if flexible:
            skip_tagged_fields(cursor)
        return value

    return _decode(data, "the value of a group", read)


def _read_member(cursor: Cursor, version: int) -> MemberMetadata:
    flexible = version >= FIRST_FLEXIBLE_VALUE_VERSION
    string, nullable = _string_readers(flexible=flexible)
    data = _read_compact_bytes if flexible else _read_bytes
    member_id = string(cursor, "a member id")
    instance_id = None
    if version >= FIRST_GROUP_VALUE_VERSION_OF_INSTANCE_ID:
        instance_id = nullable(cursor, "an instance id")
    client_id, client_host = string(cursor, "a client id"), string(cursor, "a client's host")
    rebalance_timeout_ms = -1
    if version >= FIRST_GROUP_VALUE_VERSION_OF_REBALANCE_TIMEOUT:
        rebalance_timeout_ms = cursor.fixed(_INT32, "a rebalance timeout")
    member = MemberMetadata(
        member_id=member_id,
        group_instance_id=instance_id,
        client_id=client_id,
        client_host=client_host,
        rebalance_timeout_ms=rebalance_timeout_ms,
        session_timeout_ms=cursor.fixed(_INT32, "a session timeout"),
        subscription=data(cursor, "a subscription"),
        assignment=data(cursor, "an assignment"),
    )
    if flexible:
        skip_tagged_fields(cursor)
    return member


def _decode(data: bytes, what: str, read: Callable[[Cursor], Decoded]) -> Decoded:
    try:
        return read(Cursor(data))
    except (MalformedRequestError, UnicodeDecodeError) as error:
        raise UnreadableOffsetError(f"cannot decode {what} {data[:100]!r}: {error}") from error


def _read_version(cursor: Cursor, what: str) -> int:
    version: int = cursor.fixed(_INT16, "the version")
    if version not in VALUE_VERSIONS:
        raise UnreadableOffsetError(f"{what} has unknown version {version}")
    return version


def _read_topic_id(cursor: Cursor) -> Uuid:
    topic_id = ZERO_UUID
    for _ in range(cursor.unsigned_varint("the number of tagged fields")):
        tag = cursor.unsigned_varint("a tag")
        data = cursor.take(cursor.unsigned_varint("the size of a tagged field"), "a tagged field")
        if tag == TOPIC_ID_TAG and len(data) == len(ZERO_UUID.bytes):
            topic_id = Uuid(bytes=data)
    return topic_id


def _string_readers(
    *, flexible: bool
) -> tuple[Callable[[Cursor, str], str], Callable[[Cursor, str], str | None]]:
    if flexible:
        return _read_compact_string, _read_nullable_compact_string
    return _read_string, _read_nullable_string


def _read_string(cursor: Cursor, what: str) -> str:
    return cursor.take(cursor.fixed(_INT16, what), what).decode()


def _read_nullable_string(cursor: Cursor, what: str) -> str | None:
    length = cursor.fixed(_INT16, what)
    return None if length == -1 else cursor.take(length, what).decode()


def _read_compact_string(cursor: Cursor, what: str) -> str:
    return _read_compact_bytes(cursor, what).decode()


def _read_nullable_compact_string(cursor: Cursor, what: str) -> str | None:
    length = cursor.unsigned_varint(what) - 1
    return None if length == -1 else cursor.take(length, what).decode()


def _read_bytes(cursor: Cursor, what: str) -> bytes:
    return cursor.take(cursor.fixed(_INT32, what), what)


def _read_compact_bytes(cursor: Cursor, what: str) -> bytes:
    return cursor.take(cursor.unsigned_varint(what) - 1, what)


def _string(text: str | None) -> bytes:
    if text is None:
        return _INT16.pack(-1)
    data = text.encode()
    return _INT16.pack(len(data)) + data


def _bytes(data: bytes) -> bytes:
    return _INT32.pack(len(data)) + data


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
