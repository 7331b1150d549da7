"""The facts of which cluster metadata consists, named as in Kafka's metadata log.

Purpose: typed records and their bytes (JSON, so that a journal can be read with any tool).
Invariant: what `encode_records` wrote, `decode_records` reads back equal. What it must not know:
where they are kept.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from broker_ref.protocol.identifiers import Uuid, uuid_from_text, uuid_text


class UnreadableRecordError(Exception):
    """The bytes of a metadata record are not ones that this version of the broker knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBrokerRecord:
    """A broker has started and can be reached at this address."""

    broker_id: int
    broker_epoch: int
    host: str
    port: int
    rack: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRecord:
    """A topic exists."""

    name: str
    topic_id: Uuid


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRecord:
    """A partition exists, with these replicas; brokers are named by id."""

    topic_id: Uuid
    partition_id: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionChangeRecord:
    """A partition's leader or in-sync replicas are others now."""

    topic_id: Uuid
    partition_id: int
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigRecord:
    """A topic's config has this value, or none of its own where `value` is None."""

    topic: str
    name: str
    value: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveTopicRecord:
    """A topic is gone, with its partitions and configs."""

    topic_id: Uuid


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdsRecord:
    """Every producer id below `next_producer_id` may be in use."""

    broker_id: int
    next_producer_id: int


MetadataRecord = (
    RegisterBrokerRecord
    | TopicRecord
    | PartitionRecord
    | PartitionChangeRecord
    | ConfigRecord
    | RemoveTopicRecord
    | ProducerIdsRecord
)

_TYPES: Final[dict[str, type[Any]]] = {
    record_type.__name__: record_type
    for record_type in (
        RegisterBrokerRecord,
        TopicRecord,
        PartitionRecord,
        PartitionChangeRecord,
        ConfigRecord,
        RemoveTopicRecord,
        ProducerIdsRecord,
    )
}


def encode_records(records: Sequence[MetadataRecord]) -> bytes:
    """The bytes of records that take effect together."""
    return json.dumps([_to_json(record) for record in records], separators=(",", ":")).encode()


def decode_records(data: bytes) -> tuple[MetadataRecord, ...]:
    """The inverse of `encode_records`; UnreadableRecordError on anything else."""
    try:
        return tuple(_from_json(item) for item in json.loads(data))
    except (ValueError, TypeError, KeyError) as error:
        raise UnreadableRecordError(f"{type(error).__name__}: {error}") from error


def _to_json(record: MetadataRecord) -> dict[str, Any]:
    values: dict[str, Any] = {"type": type(record).__name__}
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        values[field.name] = uuid_text(value) if isinstance(value, Uuid) else value
    return values


def _from_json(values: dict[str, Any]) -> MetadataRecord:
    record_type = _TYPES[values.pop("type")]
    if "topic_id" in values:
        values["topic_id"] = uuid_from_text(values["topic_id"])
    for name, value in values.items():
        if isinstance(value, list):
            values[name] = tuple(value)
    record: MetadataRecord = record_type(**values)
    return record
