"""WriteTxnMarkers (27), versions 1 and 2, between coordinators and leaders.

Purpose: the request and response. Invariant: fields that version 1 lacks have their defaults. Must
not know: when it is sent. Source: KIP-98, KIP-1228.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

API_KEY: Final = 27
VERSION: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedTopic:
    """Partitions of a topic that receive a marker."""

    name: str
    partition_indexes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenMarker:
    """The marker of a producer's transaction and its partitions."""

    producer_id: int
    producer_epoch: int
    transaction_result: bool
    topics: tuple[MarkedTopic, ...]
    coordinator_epoch: int
    transaction_version: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteTxnMarkersRequest:
    """The markers to write."""

    markers: tuple[WrittenMarker, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionResult:
    """The result of a partition."""

    partition_index: int
    error_code: ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicResult:
    """The results of a topic's partitions."""

    name: str
    partitions: tuple[PartitionResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkerResult:
    """The results of one producer's marker."""

    producer_id: int
    topics: tuple[TopicResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteTxnMarkersResponse:
    """The results of all markers."""

    markers: tuple[MarkerResult, ...]
