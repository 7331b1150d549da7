"""The requests of a follower to its leader: Fetch (1) and ListOffsets (2).

Purpose: the fields that followers need, named as in Kafka's schemas. Must not know: when they are
sent.
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
"""ListOffsets: the log end offset, for a replica."""
EARLIEST_TIMESTAMP: Final = -2
"""ListOffsets: the log start offset."""

NO_EPOCH: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchPartition:
    """A partition to fetch; the fetch offset acknowledges all records below it."""

    partition: int
    fetch_offset: int
    partition_max_bytes: int
    current_leader_epoch: int
    last_fetched_epoch: int
    log_start_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchTopic:
    """The partitions to fetch of a topic."""

    topic_id: Uuid
    partitions: tuple[FetchPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgottenTopic:
    """Partitions to remove from the session."""

    topic_id: Uuid
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaState:
    """The follower that fetches."""

    replica_id: int
    replica_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequest:
    """A full or an incremental fetch request."""

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
    """The largest common epoch and its end offset at the leader; -1 if the logs do not diverge."""

    epoch: int = -1
    end_offset: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedPartition:
    """The response for a partition."""

    partition_index: int
    error_code: ErrorCode
    high_watermark: int
    log_start_offset: int = -1
    diverging_epoch: EpochEndOffset = EpochEndOffset()
    records: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedTopic:
    """The response for a topic."""

    topic_id: Uuid
    partitions: tuple[FetchedPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchResponse:
    """A full or an incremental fetch response."""

    error_code: ErrorCode
    session_id: int = 0
    responses: tuple[FetchedTopic, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsPartition:
    """The requested offset of a partition."""

    partition_index: int
    current_leader_epoch: int
    timestamp: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsTopic:
    """The requested offsets of a topic."""

    name: str
    partitions: tuple[ListOffsetsPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsRequest:
    """A request for start or end offsets of the leader's logs."""

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
    """The offsets of a topic's partitions."""

    name: str
    partitions: tuple[ListedPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsResponse:
    """The requested offsets."""

    topics: tuple[ListedTopic, ...]
