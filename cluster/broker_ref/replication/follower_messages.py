"""The requests from a follower to its leader: Fetch (API key 1) and ListOffsets (API key 2).

The messages contain the fields that followers need, with the names used in Kafka's schemas.
"""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.frozen import dataclass
from broker_ref.protocol.identifiers import Uuid

FETCH: Final = 1
FETCH_VERSION: Final = 17
LIST_OFFSETS: Final = 2
LIST_OFFSETS_VERSION: Final = 9

LATEST_TIMESTAMP: Final = -1
"""The timestamp in ListOffsets with which a follower requests the log end offset."""
EARLIEST_TIMESTAMP: Final = -2
"""The timestamp in ListOffsets with which a follower requests the log start offset."""

NO_EPOCH: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchPartition:
    """A partition to fetch; the follower's log contains all records below `fetch_offset`."""

    partition: int
    fetch_offset: int
    partition_max_bytes: int
    current_leader_epoch: int
    last_fetched_epoch: int
    log_start_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchTopic:
    """The partitions of a topic to fetch."""

    topic_id: Uuid
    partitions: tuple[FetchPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgottenTopic:
    """The partitions of a topic to remove from the session."""

    topic_id: Uuid
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaState:
    """The id and the broker epoch of the follower."""

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
    """The largest common leader epoch and its end offset.

    Both fields are -1 if the logs do not diverge.
    """

    epoch: int = -1
    end_offset: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedPartition:
    """A partition in a fetch response."""

    partition_index: int
    error_code: ErrorCode
    high_watermark: int
    log_start_offset: int = -1
    diverging_epoch: EpochEndOffset = EpochEndOffset()
    records: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedTopic:
    """A topic in a fetch response."""

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
    """A partition in a ListOffsets request."""

    partition_index: int
    current_leader_epoch: int
    timestamp: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsTopic:
    """A topic in a ListOffsets request."""

    name: str
    partitions: tuple[ListOffsetsPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsRequest:
    """A request for the start offsets or end offsets of the leader's logs."""

    replica_id: int
    topics: tuple[ListOffsetsTopic, ...]
    isolation_level: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedPartition:
    """A partition in a ListOffsets response."""

    partition_index: int
    error_code: ErrorCode
    offset: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedTopic:
    """A topic in a ListOffsets response."""

    name: str
    partitions: tuple[ListedPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsResponse:
    """A response with the requested offsets."""

    topics: tuple[ListedTopic, ...]
