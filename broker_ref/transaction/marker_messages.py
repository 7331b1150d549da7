"""WriteTxnMarkers (27), versions 1 and 2, as coordinators send it and partitions take it.

Purpose: the request and response between brokers. Invariant: what version 1 lacks has its default.
What it must not know: who sends it when. Source: KIP-98, KIP-1228.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

API_KEY: Final = 27
VERSION: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedTopic:
    """Partitions of a topic that get a marker."""

    name: str
    partition_indexes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenMarker:
    """The end of a producer's transaction: whether it is committed, and where."""

    producer_id: int
    producer_epoch: int
    transaction_result: bool
    topics: tuple[MarkedTopic, ...]
    coordinator_epoch: int
    transaction_version: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteTxnMarkersRequest:
    """Markers to write."""

    markers: tuple[WrittenMarker, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionResult:
    """Whether a partition has the marker."""

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
    """What came of each marker."""

    markers: tuple[MarkerResult, ...]
