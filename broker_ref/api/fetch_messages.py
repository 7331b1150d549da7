"""The messages of Fetch (1), for all versions in one class each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import NO_THROTTLE_MS
from broker_ref.api.endpoints import NO_LEADER, LeaderIdAndEpoch, NodeEndpoint
from broker_ref.protocol.identifiers import ZERO_UUID, Uuid
from broker_ref.replication.fetch_sessions import (
    FINAL_EPOCH,
    INVALID_SESSION_ID,
    FetchPartition,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchTopic:
    """What to read of a topic, by name or, from version 13, by id."""

    partitions: tuple[FetchPartition, ...]
    topic: str = ""
    topic_id: Uuid = ZERO_UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgottenTopic:
    """What a session is to fetch no longer, by name or, from version 13, by id."""

    partitions: tuple[int, ...]
    topic: str = ""
    topic_id: Uuid = ZERO_UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaState:
    """Which broker fetches, from version 15; -1 for a consumer."""

    replica_id: int = -1
    replica_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequest:
    """What to read, how much, and how long to wait for it."""

    max_wait_ms: int
    min_bytes: int
    topics: tuple[FetchTopic, ...]
    max_bytes: int = 2**31 - 1
    isolation_level: int = 0
    session_id: int = INVALID_SESSION_ID
    session_epoch: int = FINAL_EPOCH
    forgotten_topics_data: tuple[ForgottenTopic, ...] = ()
    rack_id: str = ""
    replica_id: int = -1
    replica_state: ReplicaState = ReplicaState()


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortedTransaction:
    """Whose records a read_committed reader is to drop, from which offset on."""

    producer_id: int
    first_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEndOffset:
    """The largest epoch that both logs have, and where it ends here."""

    epoch: int = -1
    end_offset: int = -1


NOT_DIVERGING: Final = EpochEndOffset()

NO_PREFERRED_REPLICA: Final = -1
"""The client is to stay where it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionAnswer:
    """Batches of a partition, or why there are none."""

    partition_index: int
    error_code: ErrorCode = ErrorCode.none
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    diverging_epoch: EpochEndOffset = NOT_DIVERGING
    current_leader: LeaderIdAndEpoch = NO_LEADER
    aborted_transactions: tuple[AbortedTransaction, ...] | None = None
    preferred_read_replica: int = NO_PREFERRED_REPLICA
    records: bytes = b""

    @property
    def is_urgent(self) -> bool:
        """Whether it says something that cannot wait for records."""
        return (
            self.error_code is not ErrorCode.none
            or self.diverging_epoch is not NOT_DIVERGING
            or self.preferred_read_replica != NO_PREFERRED_REPLICA
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicAnswer:
    """The answers for a topic."""

    topic: str
    topic_id: Uuid
    partitions: tuple[PartitionAnswer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchResponse:
    """The answers for every topic; in a session for those alone that have something new."""

    error_code: ErrorCode = ErrorCode.none
    responses: tuple[TopicAnswer, ...] = ()
    session_id: int = INVALID_SESSION_ID
    throttle_time_ms: int = NO_THROTTLE_MS
    node_endpoints: tuple[NodeEndpoint, ...] = ()
