"""What a follower asks its leader: Fetch (1) and ListOffsets (2), as far as followers need them.

Purpose: the messages, with the names that Kafka's schemas have. Invariant: none. What it must not
know: when they are sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.protocol.identifiers import Uuid

FETCH: Final = 1
FETCH_VERSION: Final = 17
LIST_OFFSETS: Final = 2
LIST_OFFSETS_VERSION: Final = 9

LATEST_TIMESTAMP: Final = -1
"""ListOffsets: the log end offset, where a replica asks."""
EARLIEST_TIMESTAMP: Final = -2
"""ListOffsets: the log start offset."""

NO_EPOCH: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchPartition:
    """From where a partition is to be fetched; the leader takes everything below as replicated."""

    partition: int
    fetch_offset: int
    partition_max_bytes: int
    current_leader_epoch: int
    last_fetched_epoch: int
    log_start_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchTopic:
    """Partitions of a topic."""

    topic_id: Uuid
    partitions: tuple[FetchPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgottenTopic:
    """Partitions that the session is to have no more."""

    topic_id: Uuid
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaState:
    """Who fetches."""

    replica_id: int
    replica_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequest:
    """What of the session has changed, or all of it."""

    replica_state: ReplicaState
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    session_id: int
    session_epoch: int
    topics: tuple[FetchTopic, ...]
    forgotten_topics_data: tuple[ForgottenTopic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEndOffset:
    """The largest epoch of both logs and where it ends at the leader's; -1: they do not part."""

    epoch: int = -1
    end_offset: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedPartition:
    """What a partition has got."""

    partition_index: int
    error_code: ErrorCode
    high_watermark: int
    log_start_offset: int = -1
    diverging_epoch: EpochEndOffset = EpochEndOffset()
    records: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedTopic:
    """What a topic has got."""

    topic_id: Uuid
    partitions: tuple[FetchedPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchResponse:
    """What there is, in the session or whole."""

    error_code: ErrorCode
    session_id: int = 0
    responses: tuple[FetchedTopic, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsPartition:
    """Which offset of a partition is asked for."""

    partition_index: int
    current_leader_epoch: int
    timestamp: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsTopic:
    """Partitions of a topic."""

    name: str
    partitions: tuple[ListOffsetsPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsRequest:
    """Where logs of the leader begin or end."""

    replica_id: int
    topics: tuple[ListOffsetsTopic, ...]
    isolation_level: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedPartition:
    """The offset of a partition."""

    partition_index: int
    error_code: ErrorCode
    offset: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedTopic:
    """Offsets of a topic's partitions."""

    name: str
    partitions: tuple[ListedPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsResponse:
    """The offsets that were asked for."""

    topics: tuple[ListedTopic, ...]
