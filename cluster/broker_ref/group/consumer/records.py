"""The records of consumer groups in `__consumer_offsets`, in the format of Apache Kafka 4.3.

    key                                        value
    3  ConsumerGroupMetadata                   the group epoch and the hash of the topics
    4  ConsumerGroupPartitionMetadata          topic metadata from Kafka 4.0 (only deleted)
    5  ConsumerGroupMemberMetadata             the subscription of a member
    6  ConsumerGroupTargetAssignmentMetadata   the epoch and the time of the target assignment
    7  ConsumerGroupTargetAssignmentMember     the target assignment of a member
    8  ConsumerGroupCurrentMemberAssignment    the epoch, the state and the partitions of a member
    16 ConsumerGroupRegularExpression          the topics that match a regular expression

Encodes and decodes these records. A key consists of a number from the table (int16) and strings.
Each string starts with its length in bytes (int16). A value consists of version 0 (int16) and a
flexible struct. A value of None is a tombstone. Invariant: `decode_*` is the inverse of `encode_*`.
Source: Kafka's `GroupCoordinatorRecordSerde` and the schemas in `common/message`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import astuple, fields
from types import MappingProxyType
from typing import Any, Final

from broker_ref.frozen import dataclass
from broker_ref.group.consumer.codec import (
    BYTES,
    INT8,
    INT32,
    INT64,
    NULLABLE_STRING,
    STRING,
    UUID,
    StructCodec,
    array,
    nullable,
)
from broker_ref.group.consumer.member import ClassicMetadata
from broker_ref.group.members import MemberProtocol
from broker_ref.group.records import UnreadableOffsetError
from broker_ref.protocol.identifiers import Uuid
from broker_ref.protocol.reader import Cursor, MalformedRequestError

VALUE_VERSION: Final = 0

_INT16: Final = struct.Struct(">h")


@dataclass(frozen=True, slots=True)
class ConsumerGroupMetadataKey:
    """The key of a group epoch."""

    group: str


@dataclass(frozen=True, slots=True)
class ConsumerGroupPartitionMetadataKey:
    """The key of the topic metadata that Kafka 4.0 stored."""

    group: str


@dataclass(frozen=True, slots=True)
class ConsumerGroupMemberMetadataKey:
    """The key of a member's subscription."""

    group: str
    member_id: str


@dataclass(frozen=True, slots=True)
class ConsumerGroupTargetAssignmentMetadataKey:
    """The key of the epoch of a target assignment."""

    group: str


@dataclass(frozen=True, slots=True)
class ConsumerGroupTargetAssignmentMemberKey:
    """The key of a member's target assignment."""

    group: str
    member_id: str


@dataclass(frozen=True, slots=True)
class ConsumerGroupCurrentMemberAssignmentKey:
    """The key of a member's current assignment."""

    group: str
    member_id: str


@dataclass(frozen=True, slots=True)
class ConsumerGroupRegularExpressionKey:
    """The key of a resolved regular expression."""

    group: str
    regex: str


ConsumerGroupKey = (
    ConsumerGroupMetadataKey
    | ConsumerGroupPartitionMetadataKey
    | ConsumerGroupMemberMetadataKey
    | ConsumerGroupTargetAssignmentMetadataKey
    | ConsumerGroupTargetAssignmentMemberKey
    | ConsumerGroupCurrentMemberAssignmentKey
    | ConsumerGroupRegularExpressionKey
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupMetadataValue:
    """A group epoch, and the hash of the topics to which the group subscribes."""

    epoch: int
    metadata_hash: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupPartitionMetadataValue:
    """The topic metadata that Kafka 4.0 stored. Its contents are not used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupMemberMetadataValue:
    """The subscription and the settings of a member."""

    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    subscribed_topic_names: tuple[str, ...]
    subscribed_topic_regex: str | None
    rebalance_timeout_ms: int
    server_assignor: str | None
    classic_member_metadata: ClassicMetadata | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupTargetAssignmentMetadataValue:
    """The epoch of a target assignment, and the time at which it was calculated."""

    assignment_epoch: int
    assignment_timestamp_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPartitions:
    """Partitions of a topic in a target assignment."""

    topic_id: Uuid
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupTargetAssignmentMemberValue:
    """The target assignment of a member."""

    topic_partitions: tuple[TopicPartitions, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignedPartitions:
    """Partitions of a topic, and the member epochs in which they were assigned, in the same order.

    Records that were written by Kafka versions before 4.3 do not contain assignment epochs.
    """

    topic_id: Uuid
    partitions: tuple[int, ...]
    assignment_epochs: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupCurrentMemberAssignmentValue:
    """The epoch, the state and the partitions of a member."""

    member_epoch: int
    previous_member_epoch: int
    state: int
    assigned_partitions: tuple[AssignedPartitions, ...]
    partitions_pending_revocation: tuple[AssignedPartitions, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupRegularExpressionValue:
    """The topics that match a regular expression.

    `version` is the metadata offset at which the expression was resolved.
    """

    topics: tuple[str, ...]
    version: int
    timestamp_ms: int


ConsumerGroupValue = (
    ConsumerGroupMetadataValue
    | ConsumerGroupPartitionMetadataValue
    | ConsumerGroupMemberMetadataValue
    | ConsumerGroupTargetAssignmentMetadataValue
    | ConsumerGroupTargetAssignmentMemberValue
    | ConsumerGroupCurrentMemberAssignmentValue
    | ConsumerGroupRegularExpressionValue
)

ConsumerGroupChange = tuple[ConsumerGroupKey, ConsumerGroupValue | None]
"""The key and value of a record. A value of None is a tombstone."""

KEY_VERSIONS: Final[Mapping[int, type[Any]]] = MappingProxyType(
    {
        3: ConsumerGroupMetadataKey,
        4: ConsumerGroupPartitionMetadataKey,
        5: ConsumerGroupMemberMetadataKey,
        6: ConsumerGroupTargetAssignmentMetadataKey,
        7: ConsumerGroupTargetAssignmentMemberKey,
        8: ConsumerGroupCurrentMemberAssignmentKey,
        16: ConsumerGroupRegularExpressionKey,
    }
)
"""The key classes, by number."""

_VERSION_OF: Final = MappingProxyType({type_: number for number, type_ in KEY_VERSIONS.items()})

_CLASSIC_PROTOCOL: Final = StructCodec(MemberProtocol, {"name": STRING, "metadata": BYTES})
_CLASSIC_METADATA: Final = StructCodec(
    ClassicMetadata, {"session_timeout_ms": INT32, "protocols": array(_CLASSIC_PROTOCOL.codec)}
)
_TOPIC_PARTITIONS: Final = StructCodec(
    TopicPartitions, {"topic_id": UUID, "partitions": array(INT32)}
)
_ASSIGNED_PARTITIONS: Final = StructCodec(
    AssignedPartitions,
    {"topic_id": UUID, "partitions": array(INT32)},
    {0: ("assignment_epochs", array(INT32))},
    {"assignment_epochs": ()},
)

VALUES: Final[Mapping[type[Any], StructCodec]] = MappingProxyType(
    {
        ConsumerGroupMetadataKey: StructCodec(
            ConsumerGroupMetadataValue,
            {"epoch": INT32},
            {0: ("metadata_hash", INT64)},
            {"metadata_hash": 0},
        ),
        ConsumerGroupMemberMetadataKey: StructCodec(
            ConsumerGroupMemberMetadataValue,
            {
                "instance_id": NULLABLE_STRING,
                "rack_id": NULLABLE_STRING,
                "client_id": STRING,
                "client_host": STRING,
                "subscribed_topic_names": array(STRING),
                "subscribed_topic_regex": NULLABLE_STRING,
                "rebalance_timeout_ms": INT32,
                "server_assignor": NULLABLE_STRING,
            },
            {0: ("classic_member_metadata", nullable(_CLASSIC_METADATA.codec))},
        ),
        ConsumerGroupTargetAssignmentMetadataKey: StructCodec(
            ConsumerGroupTargetAssignmentMetadataValue,
            {"assignment_epoch": INT32},
            {0: ("assignment_timestamp_ms", INT64)},
            {"assignment_timestamp_ms": 0},
        ),
        ConsumerGroupTargetAssignmentMemberKey: StructCodec(
            ConsumerGroupTargetAssignmentMemberValue,
            {"topic_partitions": array(_TOPIC_PARTITIONS.codec)},
        ),
        ConsumerGroupCurrentMemberAssignmentKey: StructCodec(
            ConsumerGroupCurrentMemberAssignmentValue,
            {
                "member_epoch": INT32,
                "previous_member_epoch": INT32,
                "state": INT8,
                "assigned_partitions": array(_ASSIGNED_PARTITIONS.codec),
                "partitions_pending_revocation": array(_ASSIGNED_PARTITIONS.codec),
            },
        ),
        ConsumerGroupRegularExpressionKey: StructCodec(
            ConsumerGroupRegularExpressionValue,
            {"topics": array(STRING), "version": INT64, "timestamp_ms": INT64},
        ),
    }
)
"""The value codec for each key class, except `ConsumerGroupPartitionMetadataKey`."""


def encode_consumer_key(key: ConsumerGroupKey) -> bytes:
    """Encode the key of a consumer group's record."""
    parts = [_INT16.pack(_VERSION_OF[type(key)])]
    for text in astuple(key):
        data = text.encode()
        parts += (_INT16.pack(len(data)), data)
    return b"".join(parts)


def encode_consumer_value(key: ConsumerGroupKey, value: ConsumerGroupValue) -> bytes:
    """Encode the value of a consumer group's record."""
    return _INT16.pack(VALUE_VERSION) + VALUES[type(key)].write(value)


def decode_consumer_key(data: bytes) -> ConsumerGroupKey | None:
    """Decode the key of a consumer group's record. Return None for other record types.

    Raises: UnreadableOffsetError.
    """
    try:
        cursor = Cursor(data)
        key = KEY_VERSIONS.get(cursor.fixed(_INT16, "the version"))
        if key is None:
            return None
        texts = [
            cursor.take(cursor.fixed(_INT16, "a name"), "a name").decode() for _ in fields(key)
        ]
        found: ConsumerGroupKey = key(*texts)
    except (MalformedRequestError, UnicodeDecodeError) as error:
        raise UnreadableOffsetError(f"cannot decode record key {data[:100]!r}: {error}") from error
    return found


def decode_consumer_value(key: ConsumerGroupKey, data: bytes) -> ConsumerGroupValue:
    """Decode the value of a consumer group's record. Raises: UnreadableOffsetError."""
    if isinstance(key, ConsumerGroupPartitionMetadataKey):
        return ConsumerGroupPartitionMetadataValue()
    try:
        cursor = Cursor(data)
        version = cursor.fixed(_INT16, "the version")
        if version != VALUE_VERSION:
            raise UnreadableOffsetError(f"the value of {key} has unknown version {version}")
        value: ConsumerGroupValue = VALUES[type(key)].read(cursor)
    except (MalformedRequestError, UnicodeDecodeError) as error:
        raise UnreadableOffsetError(f"cannot decode the value of {key}: {error}") from error
    return value
