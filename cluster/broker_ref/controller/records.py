"""The records of cluster metadata, named as in Kafka's metadata log.

The records are typed and are encoded as JSON, so that standard tools can read a journal. Invariant:
`decode_record` is the inverse of `encode_record`.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import field
from enum import IntEnum
from functools import lru_cache
from typing import Any, Final, get_args

from broker_ref.frozen import dataclass
from broker_ref.protocol.identifiers import Uuid, uuid_from_text, uuid_text
from broker_ref.security.listeners import Endpoint, SecurityProtocol


class UnreadableRecordError(Exception):
    """This version of the broker cannot decode a metadata record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBrokerRecord:
    """The registration of a broker with its listeners.

    `host` and `port` form the address that other brokers use. In records without `listeners`, this
    is the broker's only address. A broker has a new `incarnation_id` and a higher `broker_epoch`
    each time it starts.
    """

    broker_id: int
    incarnation_id: Uuid
    broker_epoch: int
    host: str
    port: int
    rack: str | None
    fenced: bool = True
    in_controlled_shutdown: bool = False
    listeners: tuple[Endpoint, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistrationChangeRecord:
    """A change to the fenced or shutdown state of a broker. None means no change."""

    broker_id: int
    broker_epoch: int
    fenced: bool | None = None
    in_controlled_shutdown: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnregisterBrokerRecord:
    """The removal of a broker registration."""

    broker_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRecord:
    """The creation of a topic."""

    name: str
    topic_id: Uuid


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRecord:
    """The creation of a partition. Replicas are broker ids. Leader -1 means no leader."""

    topic_id: Uuid
    partition_id: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()
    leader_recovery_state: int = 0
    eligible_leader_replicas: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionChangeRecord:
    """A change to a partition. Fields that are None do not change.

    The record increases the partition epoch. If `leader` is set, it also increases the leader
    epoch, even if the leader does not change.
    """

    topic_id: Uuid
    partition_id: int
    isr: tuple[int, ...] | None = None
    leader: int | None = None
    replicas: tuple[int, ...] | None = None
    adding_replicas: tuple[int, ...] | None = None
    removing_replicas: tuple[int, ...] | None = None
    leader_recovery_state: int | None = None
    eligible_leader_replicas: tuple[int, ...] | None = None
    last_known_elr: tuple[int, ...] | None = None


class ConfigResourceType(IntEnum):
    """The types of resources with configs (Kafka's `ConfigResource.Type`)."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigRecord:
    """The new value of a config of a resource. None removes the config.

    The value may be a secret.
    """

    resource_type: int
    resource_name: str
    name: str
    value: str | None = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClearElrRecord:
    """The removal of a topic's eligible leader replicas after `min.insync.replicas` has changed.

    If `topic` is empty, the record applies to all topics.
    """

    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveTopicRecord:
    """The deletion of a topic with its partitions and configs."""

    topic_id: Uuid


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdsRecord:
    """The allocation of all producer ids below `next_producer_id`."""

    broker_id: int
    broker_epoch: int
    next_producer_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureLevelRecord:
    """The finalization of a feature version. Version 0 means that the feature is not finalized."""

    name: str
    feature_level: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UserScramCredentialRecord:
    """The SCRAM credential of a user for one mechanism. Bytes are encoded in Base64."""

    name: str
    mechanism: int
    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveUserScramCredentialRecord:
    """The removal of a SCRAM credential."""

    name: str
    mechanism: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessControlEntryRecord:
    """The creation of an ACL."""

    id: Uuid
    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission_type: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveAccessControlEntryRecord:
    """The removal of an ACL."""

    id: Uuid


MetadataRecord = (
    RegisterBrokerRecord
    | BrokerRegistrationChangeRecord
    | UnregisterBrokerRecord
    | TopicRecord
    | PartitionRecord
    | PartitionChangeRecord
    | ConfigRecord
    | ClearElrRecord
    | RemoveTopicRecord
    | ProducerIdsRecord
    | FeatureLevelRecord
    | UserScramCredentialRecord
    | RemoveUserScramCredentialRecord
    | AccessControlEntryRecord
    | RemoveAccessControlEntryRecord
)

_TYPES: Final[dict[str, type[Any]]] = {
    record_type.__name__: record_type for record_type in get_args(MetadataRecord)
}


def encode_record(record: MetadataRecord) -> bytes:
    """Encode one record. Fields with default values are omitted."""
    return _encode_json(_to_json(record)).encode()


def decode_record(data: bytes) -> MetadataRecord:
    """Decode one record. Raises: UnreadableRecordError if `data` is not a valid record."""
    return decode_records(join_records([data]))[0]


def join_records(encoded: Iterable[bytes]) -> bytes:
    """Join encoded records. The result is the encoding of a commit."""
    return b"[%b]" % b",".join(encoded)


def decode_records(data: bytes) -> tuple[MetadataRecord, ...]:
    """Decode records that take effect together.

    Raises: UnreadableRecordError if `data` does not contain valid records.
    """
    with _reading():
        return tuple(map(_from_json, json.loads(data)))


@contextlib.contextmanager
def _reading() -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UnreadableRecordError(f"{type(error).__name__}: {error}") from error


_encode_json: Final = json.JSONEncoder(separators=(",", ":")).encode

_FIELDS: Final = {
    record_type: tuple((each.name, each.default) for each in dataclasses.fields(record_type))
    for record_type in _TYPES.values()
}


def _to_json(record: MetadataRecord) -> dict[str, Any]:
    record_type = type(record)
    values: dict[str, Any] = {"type": record_type.__name__}
    for name, default in _FIELDS[record_type]:
        value = getattr(record, name)
        if value == default:
            continue
        encode = _ENCODED.get(name)
        values[name] = value if encode is None else encode(value)
    return values


def _from_json(values: dict[str, Any]) -> MetadataRecord:
    record_type = _TYPES[values.pop("type")]
    if record_type is ConfigRecord and "topic" in values:  # An older format, used only for topics.
        values["resource_type"] = ConfigResourceType.TOPIC
        values["resource_name"] = values.pop("topic")
    for name, value in values.items():
        decode = _DECODED.get(name)
        if decode is not None:
            values[name] = decode(value)
        elif type(value) is list:
            values[name] = tuple(value)
    record: MetadataRecord = record_type(**values)
    return record


def _endpoint(values: dict[str, Any]) -> Endpoint:
    return Endpoint(**{**values, "protocol": SecurityProtocol(values["protocol"])})


def _encode_bytes(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _decode_bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


_BYTES_FIELDS: Final = ("salt", "stored_key", "server_key")
_UUID_FIELDS: Final = ("id", "incarnation_id", "topic_id")

_ENCODED: Final[dict[str, Callable[[Any], Any]]] = {
    "listeners": lambda endpoints: [dataclasses.asdict(each) for each in endpoints],
    **dict.fromkeys(_BYTES_FIELDS, _encode_bytes),
    # Consecutive records of a topic contain the same id, so the last text is cached.
    **dict.fromkeys(_UUID_FIELDS, lru_cache(maxsize=1)(uuid_text)),
}

_DECODED: Final[dict[str, Callable[[Any], Any]]] = {
    "listeners": lambda endpoints: tuple(_endpoint(each) for each in endpoints),
    **dict.fromkeys(_BYTES_FIELDS, _decode_bytes),
    **dict.fromkeys(_UUID_FIELDS, lru_cache(maxsize=1)(uuid_from_text)),
}
