"""The records of cluster metadata, named as in Kafka's metadata log.

Purpose: typed records and their encoding (JSON, so that any tool can read a journal). Invariant:
`decode_records` is the inverse of `encode_records`. Must not know: where records are stored.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, get_args

from broker_ref.protocol.identifiers import Uuid, uuid_from_text, uuid_text


class UnreadableRecordError(Exception):
    """This version of the broker cannot decode the bytes of a metadata record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBrokerRecord:
    """A broker has started and listens on this address.

    `incarnation_id` identifies this start of the broker; `broker_epoch` orders the starts.
    """

    broker_id: int
    incarnation_id: Uuid
    broker_epoch: int
    host: str
    port: int
    rack: str | None
    fenced: bool = True
    in_controlled_shutdown: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistrationChangeRecord:
    """A broker is fenced, unfenced or shutting down; None means no change."""

    broker_id: int
    broker_epoch: int
    fenced: bool | None = None
    in_controlled_shutdown: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnregisterBrokerRecord:
    """A broker's registration is removed."""

    broker_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRecord:
    """A topic exists."""

    name: str
    topic_id: Uuid


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRecord:
    """A partition exists with these replicas (broker ids); leader -1 means no leader."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionChangeRecord:
    """A change of a partition; None means no change.

    It increases the partition epoch, and the leader epoch too where `leader` is set, even to the
    current leader.
    """

    topic_id: Uuid
    partition_id: int
    isr: tuple[int, ...] | None = None
    leader: int | None = None
    replicas: tuple[int, ...] | None = None
    adding_replicas: tuple[int, ...] | None = None
    removing_replicas: tuple[int, ...] | None = None
    leader_recovery_state: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigRecord:
    """A topic config is set to `value`, or removed if `value` is None."""

    topic: str
    name: str
    value: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveTopicRecord:
    """A topic is deleted with its partitions and configs."""

    topic_id: Uuid


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdsRecord:
    """Producer ids below `next_producer_id` may already be in use; the next block starts there."""

    broker_id: int
    broker_epoch: int
    next_producer_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureLevelRecord:
    """A feature is finalized at this version; 0 means not finalized."""

    name: str
    feature_level: int


MetadataRecord = (
    RegisterBrokerRecord
    | BrokerRegistrationChangeRecord
    | UnregisterBrokerRecord
    | TopicRecord
    | PartitionRecord
    | PartitionChangeRecord
    | ConfigRecord
    | RemoveTopicRecord
    | ProducerIdsRecord
    | FeatureLevelRecord
)

_TYPES: Final[dict[str, type[Any]]] = {
    record_type.__name__: record_type for record_type in get_args(MetadataRecord)
}


def encode_record(record: MetadataRecord) -> bytes:
    """Encode one record."""
    return json.dumps(_to_json(record), separators=(",", ":")).encode()


def decode_record(data: bytes) -> MetadataRecord:
    """Decode one record; raise UnreadableRecordError if `data` is not a valid record."""
    with _reading():
        return _from_json(json.loads(data))


def encode_records(records: Sequence[MetadataRecord]) -> bytes:
    """Encode records that take effect together."""
    return json.dumps([_to_json(record) for record in records], separators=(",", ":")).encode()


def decode_records(data: bytes) -> tuple[MetadataRecord, ...]:
    """Decode records that take effect together; raise UnreadableRecordError on other bytes."""
    with _reading():
        return tuple(_from_json(item) for item in json.loads(data))


@contextlib.contextmanager
def _reading() -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UnreadableRecordError(f"{type(error).__name__}: {error}") from error


_UUID_FIELDS: Final = frozenset({"incarnation_id", "topic_id"})


def _to_json(record: MetadataRecord) -> dict[str, Any]:
    values: dict[str, Any] = {"type": type(record).__name__}
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        values[field.name] = uuid_text(value) if isinstance(value, Uuid) else value
    return values


def _from_json(values: dict[str, Any]) -> MetadataRecord:
    record_type = _TYPES[values.pop("type")]
    for name, value in values.items():
        if name in _UUID_FIELDS:
            values[name] = uuid_from_text(value)
        elif isinstance(value, list):
            values[name] = tuple(value)
    record: MetadataRecord = record_type(**values)
    return record
