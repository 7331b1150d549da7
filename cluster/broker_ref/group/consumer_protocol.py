"""The subscriptions and assignments of consumers, in the metadata of classic groups.

    subscription  int16 version, array of topics, nullable bytes user_data;
                  from version 1 on: array of owned partitions (topic, array of int32);
                  from version 2 on: int32 generation; from version 3 on: nullable string rack
    assignment    int16 version, array of partitions (topic, array of int32), nullable bytes
                  user_data

Decodes the subscriptions and assignments of members that use the classic protocol, and encodes
assignments. Strings and bytes start with their length (int16 and int32). If the version of a value
is higher than the latest known version, the value is decoded with the latest known version. Source:
Kafka's `ConsumerProtocol`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Final

from broker_ref.frozen import dataclass
from broker_ref.protocol.reader import Cursor, MalformedRequestError

CONSUMER_PROTOCOL_TYPE: Final = "consumer"
"""The protocol type of groups whose members report their subscribed topics."""

FIRST_VERSION_OF_OWNED_PARTITIONS: Final = 1
FIRST_VERSION_OF_GENERATION: Final = 2
FIRST_VERSION_OF_RACK: Final = 3
LATEST_VERSION: Final = 3

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_NULL: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """The subscription of a member. `owned` contains the member's partitions, by topic."""

    version: int
    topics: tuple[str, ...]
    owned: Mapping[str, frozenset[int]]
    rack_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedAssignment:
    """The partitions of a member by topic, and the data of a client-side assignor."""

    partitions: Mapping[str, frozenset[int]]
    user_data: bytes


def read_version(data: bytes) -> int:
    """Return the version of a subscription. Raises: MalformedRequestError."""
    return _read_version(Cursor(data))


def read_topics(data: bytes) -> list[str]:
    """Return the topics of a subscription. Raises: MalformedRequestError."""
    cursor = Cursor(data)
    cursor.fixed(_INT16, "the version")
    return _read_topics(cursor)


def read_subscription(data: bytes) -> Subscription:
    """Decode a subscription. Raises: MalformedRequestError."""
    cursor = Cursor(data)
    version = _read_version(cursor)
    topics = _read_topics(cursor)
    _read_bytes(cursor)
    owned, rack_id = {}, None
    if version >= FIRST_VERSION_OF_OWNED_PARTITIONS:
        owned = _read_partitions(cursor)
    if version >= FIRST_VERSION_OF_GENERATION:
        cursor.fixed(_INT32, "the generation")
    if version >= FIRST_VERSION_OF_RACK:
        length = cursor.fixed(_INT16, "the rack")
        rack_id = None if length == _NULL else _text(cursor.take(length, "the rack"))
    return Subscription(version=version, topics=tuple(topics), owned=owned, rack_id=rack_id)


def read_assignment(data: bytes) -> EmbeddedAssignment:
    """Decode an assignment, which is empty if `data` is empty. Raises: MalformedRequestError."""
    if not data:
        return EmbeddedAssignment(partitions={}, user_data=b"")
    cursor = Cursor(data)
    _read_version(cursor)
    partitions = _read_partitions(cursor)
    return EmbeddedAssignment(partitions=partitions, user_data=_read_bytes(cursor))


def encode_assignment(partitions: Mapping[str, Iterable[int]], version: int) -> bytes:
    """Encode an assignment without user data."""
    parts = [_INT16.pack(version), _INT32.pack(len(partitions))]
    for topic, numbers in partitions.items():
        name, found = topic.encode(), sorted(numbers)
        parts += (_INT16.pack(len(name)), name, _INT32.pack(len(found)))
        parts += (_INT32.pack(number) for number in found)
    parts.append(_INT32.pack(_NULL))
    return b"".join(parts)


def _read_version(cursor: Cursor) -> int:
    version: int = cursor.fixed(_INT16, "the version")
    if version < 0:
        raise MalformedRequestError(f"the consumer protocol version is negative: {version}")
    return min(version, LATEST_VERSION)


def _read_count(cursor: Cursor, what: str) -> int:
    count = cursor.array_length(flexible=False, what=what)
    if count < 0:
        raise MalformedRequestError(f"the length of {what} is {count}")
    return count


def _read_topics(cursor: Cursor) -> list[str]:
    return [_read_string(cursor) for _ in range(_read_count(cursor, "the topics"))]


def _read_partitions(cursor: Cursor) -> dict[str, frozenset[int]]:
    found: dict[str, frozenset[int]] = {}
    for _ in range(_read_count(cursor, "the assigned topics")):
        topic = _read_string(cursor)
        count = _read_count(cursor, "the partitions")
        numbers = frozenset(cursor.fixed(_INT32, "a partition") for _ in range(count))
        found[topic] = found.get(topic, frozenset()) | numbers
    return found


def _read_string(cursor: Cursor) -> str:
    return _text(cursor.take(cursor.fixed(_INT16, "a topic"), "a topic"))


def _text(data: bytes) -> str:
    return data.decode(errors="replace")


def _read_bytes(cursor: Cursor) -> bytes:
    length = cursor.fixed(_INT32, "the user data")
    return b"" if length == _NULL else cursor.take(length, "the user data")
