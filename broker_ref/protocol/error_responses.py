"""The response to a request that fails as a whole, with one error code.

Purpose: what a client is told where a request is refused before its handler has seen it: the same
code at each place where its client looks for one. Per API the table says which arrays of the
response answer arrays of the request; elements are recognised by names and ids, which come back.
Invariant: every API that is served can be refused so, in every version. What it must not know: why
a request is refused.
Source: `getErrorResponse` of Kafka's request classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from kio.schema.errors import ErrorCode

from broker_ref.protocol.frames import response_schema
from broker_ref.protocol.identifiers import ZERO_UUID
from broker_ref.protocol.schema import FieldSchema, fields_of
from broker_ref.protocol.writer import write_entities


@dataclass(frozen=True, slots=True, kw_only=True)
class Mirror:
    """Which array of the response has an element for each element of which of the request.

    `until` has the last version that does so, where later ones have the code at the top alone.
    A second name is that of other versions of the request. `fields` are further ones by which the
    clients of this API recognise what is answered, as in `MIRRORED_FIELDS`.
    """

    arrays: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    until: Mapping[str, int] = field(default_factory=dict)
    fields: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def sources(self, array: str, version: int) -> tuple[str, ...]:
        """What the array of the response answers in this version: arrays of the request."""
        if version > self.until.get(array, version):
            return ()
        return self.arrays.get(array, ())


_TOPICS_AND_PARTITIONS: Final = Mirror(
    arrays={"topics": ("topics",), "partitions": ("partitions",)}
)
_TOPICS: Final = Mirror(arrays={"topics": ("topics",)})
_RESOURCES: Final = Mirror(arrays={"responses": ("resources",), "results": ("resources",)})
_TOP_ALONE: Final = Mirror()

_PRODUCE: Final = 0

MIRRORS: Final[Mapping[int, Mirror]] = {
    _PRODUCE: Mirror(
        arrays={"responses": ("topic_data",), "partition_responses": ("partition_data",)}
    ),
    1: Mirror(  # Fetch
        arrays={"responses": ("topics",), "partitions": ("partitions",)}, until={"responses": 12}
    ),
    2: _TOPICS_AND_PARTITIONS,  # ListOffsets
    3: _TOPICS,  # Metadata
    8: _TOPICS_AND_PARTITIONS,  # OffsetCommit
    9: Mirror(  # OffsetFetch
        arrays={
            "groups": ("groups",),
            "topics": ("topics",),
            "partitions": ("partition_indexes",),
        },
        until={"topics": 1},
    ),
    10: Mirror(arrays={"coordinators": ("coordinator_keys",)}),  # FindCoordinator
    11: _TOP_ALONE,  # JoinGroup
    12: _TOP_ALONE,  # Heartbeat
    13: _TOP_ALONE,  # LeaveGroup
    14: _TOP_ALONE,  # SyncGroup
    15: Mirror(arrays={"groups": ("groups",)}),  # DescribeGroups
    16: _TOP_ALONE,  # ListGroups
    18: _TOP_ALONE,  # ApiVersions
    19: _TOPICS,  # CreateTopics
    20: Mirror(arrays={"responses": ("topics", "topic_names")}),  # DeleteTopics
    21: _TOPICS_AND_PARTITIONS,  # DeleteRecords
    22: _TOP_ALONE,  # InitProducerId
    23: _TOPICS_AND_PARTITIONS,  # OffsetForLeaderEpoch
    24: Mirror(  # AddPartitionsToTxn
        arrays={
            "results_by_topic_v3_and_below": ("v3_and_below_topics",),
            "results_by_partition": ("partitions",),
        }
    ),
    25: _TOP_ALONE,  # AddOffsetsToTxn
    26: _TOP_ALONE,  # EndTxn
    27: Mirror(  # WriteTxnMarkers
        arrays={
            "markers": ("markers",),
            "topics": ("topics",),
            "partitions": ("partition_indexes",),
        },
        fields={"producer_id": ("producer_id",)},
    ),
    28: _TOPICS_AND_PARTITIONS,  # TxnOffsetCommit
    32: _RESOURCES,  # DescribeConfigs
    33: _RESOURCES,  # AlterConfigs
    35: _TOP_ALONE,  # DescribeLogDirs, where versions 1 and 2 have no place for a code
    37: Mirror(arrays={"results": ("topics",)}),  # CreatePartitions
    42: Mirror(arrays={"results": ("groups_names",)}),  # DeleteGroups
    43: Mirror(  # ElectLeaders
        arrays={
            "replica_election_results": ("topic_partitions",),
            "partition_result": ("partitions",),
        }
    ),
    44: _RESOURCES,  # IncrementalAlterConfigs
    45: Mirror(arrays={"responses": ("topics",), "partitions": ("partitions",)}),  # reassignments
    46: _TOP_ALONE,  # ListPartitionReassignments
    47: _TOP_ALONE,  # OffsetDelete
    56: _TOP_ALONE,  # AlterPartition
    57: _TOP_ALONE,  # UpdateFeatures
    58: _TOP_ALONE,  # Envelope
    59: _TOP_ALONE,  # FetchSnapshot
    60: _TOP_ALONE,  # DescribeCluster
    61: Mirror(  # DescribeProducers
        arrays={"topics": ("topics",), "partitions": ("partition_indexes",)}
    ),
    62: _TOP_ALONE,  # BrokerRegistration
    63: _TOP_ALONE,  # BrokerHeartbeat
    64: _TOP_ALONE,  # UnregisterBroker
    65: Mirror(arrays={"transaction_states": ("transactional_ids",)}),  # DescribeTransactions
    66: _TOP_ALONE,  # ListTransactions
    67: _TOP_ALONE,  # AllocateProducerIds
    75: _TOPICS,  # DescribeTopicPartitions
}

_PARTITION: Final = ("partition_index", "partition", "index")

MIRRORED_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "group_id": ("group_id",),
    "index": _PARTITION,
    "key": (),
    "name": ("name",),
    "partition": _PARTITION,
    "partition_id": _PARTITION,
    "partition_index": _PARTITION,
    "resource_name": ("resource_name",),
    "resource_type": ("resource_type",),
    "session_id": ("session_id",),
    "topic": ("topic",),
    "topic_id": ("topic_id",),
    "transactional_id": ("transactional_id",),
}
"""Fields of a response by which its client recognises what is answered, and what the request calls
them. An element of the request that is a plain value (a group id, a partition) is that field."""

UNKNOWN: Final = frozenset(
    {
        "base_offset",
        "committed_leader_epoch",
        "committed_offset",
        "controller_id",
        "end_offset",
        "generation_id",
        "high_watermark",
        "last_stable_offset",
        "leader_epoch",
        "leader_id",
        "log_start_offset",
        "low_watermark",
        "node_id",
        "offset",
        "port",
        "producer_epoch",
        "producer_id",
        "producer_id_start",
        "timestamp",
    }
)
"""Numbers that are -1 where there are none."""

_EMPTY: Final[Mapping[str, Any]] = {
    "bool": False,
    "bytes": b"",
    "datetime_i64": datetime(1970, 1, 1, tzinfo=UTC),
    "records": b"",
    "string": "",
    "timedelta_i32": timedelta(),
    "timedelta_i64": timedelta(),
    "uuid": ZERO_UUID,
}
"""By Kafka type, what stands where there is nothing to say; zero where it is none of these."""


def error_frame(
    request: object,
    *,
    api_key: int,
    version: int,
    correlation_id: int,
    error_code: ErrorCode,
    message: str | None = None,
) -> bytes | None:
    """The bytes of `error_response` with their header, without the four bytes of length."""
    entity = error_response(
        request, api_key=api_key, version=version, error_code=error_code, message=message
    )
    if entity is None:
        return None
    header = type(entity).__header_schema__(correlation_id=correlation_id)
    return write_entities(header, entity)


def error_response(
    request: object,
    *,
    api_key: int,
    version: int,
    error_code: ErrorCode,
    message: str | None = None,
) -> Any | None:
    """The response, as kio's entity, that says `error_code` of all that `request` asks for.

    `request` is a message or a kio entity. None where no response is expected (Produce with
    acks=0): as in Kafka, its client can only be told by closing the connection. KeyError where
    the API is not in the table.
    """
    if api_key == _PRODUCE and getattr(request, "acks", None) == 0:
        return None
    failure = _Failure(
        mirror=MIRRORS[api_key], version=version, error_code=error_code, message=message
    )
    return failure.struct(response_schema(api_key, version), request)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failure:
    """What is said of everything, and where."""

    mirror: Mirror
    version: int
    error_code: ErrorCode
    message: str | None

    def struct(self, schema: type[Any], source: object) -> Any:
        """An entity of `schema`, about `source`: a struct of the request or a plain value."""
        values: dict[str, Any] = {}
        for described in fields_of(schema):
            sources = self.mirror.sources(described.name, self.version)
            if described.kafka_type == "error_code":
                values[described.name] = self.error_code
            elif described.name == "error_message":
                values[described.name] = self._message(described)
            elif described.struct is not None and sources:
                values[described.name] = tuple(
                    self.struct(described.struct, element) for element in _elements(source, sources)
                )
            elif (mirrored := _mirrored(described, source, self.mirror.fields)) is not None:
                values[described.name] = mirrored
            elif described.required:
                values[described.name] = self._nothing(described)
        return schema(**values)

    def _message(self, described: FieldSchema) -> str | None:
        return (self.message or "") if not described.nullable else self.message

    def _nothing(self, described: FieldSchema) -> Any:
        """What stands in a field that has no default of its own."""
        if described.is_array:
            return ()
        if described.struct is not None:
            return None if described.nullable else self.struct(described.struct, None)
        if described.name in UNKNOWN:
            return -1
        return _EMPTY.get(described.kafka_type or "", 0)


def _mirrored(
    described: FieldSchema, source: object, further: Mapping[str, tuple[str, ...]]
) -> Any:
    """What the request calls this, or None."""
    names = MIRRORED_FIELDS.get(described.name, further.get(described.name))
    if names is None or source is None:
        return None
    if isinstance(source, (int, str)):
        return source
    for name in names:
        value = getattr(source, name, None)
        if value is not None:
            return value
    return None


def _elements(source: object, names: tuple[str, ...]) -> tuple[Any, ...]:
    for name in names:
        elements = getattr(source, name, None)
        if elements:
            return tuple(elements)
    return ()
