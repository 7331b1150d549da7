"""The WriteTxnMarkers messages (API key 27), versions 1 and 2.

Transaction coordinators send the request to partition leaders. Fields that do not exist in version
1 have default values. Source: KIP-98, KIP-1228.
"""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.frozen import dataclass

API_KEY: Final = 27
VERSION: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedTopic:
    """The partitions of a topic that receive a marker."""

    name: str
    partition_indexes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenMarker:
    """The marker of a transaction, and the partitions that receive it."""

    producer_id: int
    producer_epoch: int
    transaction_result: bool
    topics: tuple[MarkedTopic, ...]
    coordinator_epoch: int
    transaction_version: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteTxnMarkersRequest:
    """A WriteTxnMarkers request."""

    markers: tuple[WrittenMarker, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionResult:
    """The error code of a partition."""

    partition_index: int
    error_code: ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicResult:
    """The partition results of a topic."""

    name: str
    partitions: tuple[PartitionResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkerResult:
    """The results of one marker."""

    producer_id: int
    topics: tuple[TopicResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteTxnMarkersResponse:
    """A WriteTxnMarkers response."""

    markers: tuple[MarkerResult, ...]
