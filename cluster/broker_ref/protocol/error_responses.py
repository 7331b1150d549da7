"""Error responses that apply to an entire request.

These responses are used if a request is rejected before its handler runs. An error response
contains the same error code in every error code field that the client checks. For each API, the
table `MIRRORS` lists the response arrays that correspond to request arrays. Names and ids are
copied from the request. Invariant: an error response exists for every version of every served API.
Source: `AbstractRequest.getErrorResponse` in Kafka's request classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from kio.schema.errors import ErrorCode

from broker_ref.frozen import dataclass
from broker_ref.protocol.frames import response_schema
from broker_ref.protocol.identifiers import ZERO_UUID
from broker_ref.protocol.schema import FieldSchema, fields_of
from broker_ref.protocol.writer import write_entities


@dataclass(frozen=True, slots=True, kw_only=True)
class Mirror:
    """The request arrays that correspond to each array of the response.

    If `arrays` lists several request arrays for one response array, their elements are
    concatenated. The name `dirs.topics` represents the concatenated `topics` of all elements of
    `dirs`. If later versions of the response contain only a top-level error code, `until` is the
    last version that contains the array. `fields` contains additional fields to copy from the
    request, as in `MIRRORED_FIELDS`.
    """

    arrays: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    until: Mapping[str, int] = field(default_factory=dict)
    fields: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def sources(self, array: str, version: int) -> tuple[str, ...]:
        """Return the request arrays that correspond to an array of the response."""
        if version > self.until.get(array, version):
            return ()
        return self.arrays.get(array, ())


_TOPICS_AND_PARTITIONS: Final = Mirror(
    arrays={"topics": ("topics",), "partitions": ("partitions",)}
)
_TOPICS: Final = Mirror(arrays={"topics": ("topics",)})
_RESOURCES: Final = Mirror(arrays={"responses": ("resources",), "results": ("resources",)})
_TOP_LEVEL_ONLY: Final = Mirror()

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
    11: _TOP_LEVEL_ONLY,  # JoinGroup
    12: _TOP_LEVEL_ONLY,  # Heartbeat
    13: _TOP_LEVEL_ONLY,  # LeaveGroup
    14: _TOP_LEVEL_ONLY,  # SyncGroup
    15: Mirror(arrays={"groups": ("groups",)}),  # DescribeGroups
    16: _TOP_LEVEL_ONLY,  # ListGroups
    17: _TOP_LEVEL_ONLY,  # SaslHandshake
    18: _TOP_LEVEL_ONLY,  # ApiVersions
    19: _TOPICS,  # CreateTopics
    20: Mirror(arrays={"responses": ("topics", "topic_names")}),  # DeleteTopics
    21: _TOPICS_AND_PARTITIONS,  # DeleteRecords
    22: _TOP_LEVEL_ONLY,  # InitProducerId
    23: _TOPICS_AND_PARTITIONS,  # OffsetForLeaderEpoch
    24: Mirror(  # AddPartitionsToTxn
        arrays={
            "results_by_topic_v3_and_below": ("v3_and_below_topics",),
            "results_by_partition": ("partitions",),
        }
    ),
    25: _TOP_LEVEL_ONLY,  # AddOffsetsToTxn
    26: _TOP_LEVEL_ONLY,  # EndTxn
    27: Mirror(  # WriteTxnMarkers
        arrays={
            "markers": ("markers",),
            "topics": ("topics",),
            "partitions": ("partition_indexes",),
        },
        fields={"producer_id": ("producer_id",)},
    ),
    28: _TOPICS_AND_PARTITIONS,  # TxnOffsetCommit
    29: _TOP_LEVEL_ONLY,  # DescribeAcls
    30: Mirror(arrays={"results": ("creations",)}),  # CreateAcls
    31: Mirror(arrays={"filter_results": ("filters",)}),  # DeleteAcls
    32: _RESOURCES,  # DescribeConfigs
    33: _RESOURCES,  # AlterConfigs
    34: Mirror(  # AlterReplicaLogDirs
        arrays={"results": ("dirs.topics",), "partitions": ("partitions",)},
        fields={"topic_name": ("name",)},
    ),
    35: _TOP_LEVEL_ONLY,  # DescribeLogDirs; versions 1 and 2 have no error code
    36: _TOP_LEVEL_ONLY,  # SaslAuthenticate
    37: Mirror(arrays={"results": ("topics",)}),  # CreatePartitions
    42: Mirror(arrays={"results": ("groups_names",)}),  # DeleteGroups
    43: Mirror(  # ElectLeaders
        arrays={
            "replica_election_results": ("topic_partitions",),
            "partition_result": ("partitions",),
        }
    ),
    44: _RESOURCES,  # IncrementalAlterConfigs
    45: Mirror(
        arrays={"responses": ("topics",), "partitions": ("partitions",)}
    ),  # AlterPartitionReassignments
    46: _TOP_LEVEL_ONLY,  # ListPartitionReassignments
    47: _TOP_LEVEL_ONLY,  # OffsetDelete
    50: _TOP_LEVEL_ONLY,  # DescribeUserScramCredentials
    51: Mirror(  # AlterUserScramCredentials
        arrays={"results": ("deletions", "upsertions")}, fields={"user": ("name",)}
    ),
    56: _TOP_LEVEL_ONLY,  # AlterPartition
    57: _TOP_LEVEL_ONLY,  # UpdateFeatures
    58: _TOP_LEVEL_ONLY,  # Envelope
    59: _TOP_LEVEL_ONLY,  # FetchSnapshot
    60: _TOP_LEVEL_ONLY,  # DescribeCluster
    61: Mirror(  # DescribeProducers
        arrays={"topics": ("topics",), "partitions": ("partition_indexes",)}
    ),
    62: _TOP_LEVEL_ONLY,  # BrokerRegistration
    63: _TOP_LEVEL_ONLY,  # BrokerHeartbeat
    64: _TOP_LEVEL_ONLY,  # UnregisterBroker
    65: Mirror(arrays={"transaction_states": ("transactional_ids",)}),  # DescribeTransactions
    66: _TOP_LEVEL_ONLY,  # ListTransactions
    67: _TOP_LEVEL_ONLY,  # AllocateProducerIds
    68: _TOP_LEVEL_ONLY,  # ConsumerGroupHeartbeat
    69: Mirror(arrays={"groups": ("group_ids",)}),  # ConsumerGroupDescribe
    74: _TOP_LEVEL_ONLY,  # ListConfigResources
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
"""The fields of a response that are copied from the request, and their names in the request.

If an element of the request is a string or an integer (such as a group id or a partition) and not
a struct, the element itself is copied.
"""

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
"""Integer fields that are -1 if they are not set."""

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
"""The empty value of each Kafka type; the empty value of all other types is zero."""


def error_frame(
    request: object,
    *,
    api_key: int,
    version: int,
    correlation_id: int,
    error_code: ErrorCode,
    message: str | None = None,
) -> bytes | None:
    """Encode the error response, including its header but without the four-byte length."""
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
    """Return a response, as a kio entity, that contains `error_code` for the entire request.

    `request` is a message or a kio entity. Return None if the client does not expect a response
    (Produce with acks=0). As in Kafka, the broker can then only close the connection. Raises:
    KeyError if the table `MIRRORS` does not contain the API.
    """
    if api_key == _PRODUCE and getattr(request, "acks", None) == 0:
        return None
    failure = _Failure(
        mirror=MIRRORS[api_key], version=version, error_code=error_code, message=message
    )
    return failure.struct(response_schema(api_key, version), request)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failure:
    """The parameters of an error response."""

    mirror: Mirror
    version: int
    error_code: ErrorCode
    message: str | None

    def struct(self, schema: type[Any], source: object) -> Any:
        """Return an instance of `schema` with the names and ids from a part of the request."""
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
                values[described.name] = self._empty_value(described)
        return schema(**values)

    def _message(self, described: FieldSchema) -> str | None:
        return (self.message or "") if not described.nullable else self.message

    def _empty_value(self, described: FieldSchema) -> Any:
        """Return the empty value of a field without a default."""
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
    """Return the value to copy from the request to a response field, or None."""
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
    return tuple(element for name in names for element in _array(source, name))


def _array(source: object, name: str) -> tuple[Any, ...]:
    first, _, rest = name.partition(".")
    elements = getattr(source, first, None) or ()
    return tuple(inner for each in elements for inner in _array(each, rest)) if rest else elements
