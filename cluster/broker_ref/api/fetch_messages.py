"""The messages of Fetch (1). One class represents all versions of a message."""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import NO_THROTTLE_MS
from broker_ref.api.endpoints import NO_LEADER, LeaderIdAndEpoch, NodeEndpoint
from broker_ref.frozen import dataclass
from broker_ref.protocol.identifiers import ZERO_UUID, Uuid
from broker_ref.replication.fetch_session_cache import (
    FINAL_EPOCH,
    INVALID_SESSION_ID,
    FetchPartition,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchTopic:
    """The partitions to read in a topic. From version 13 on, requests contain topic ids."""

    partitions: tuple[FetchPartition, ...]
    topic: str = ""
    topic_id: Uuid = ZERO_UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgottenTopic:
    """The partitions of a topic that the client removes from a session.

    From version 13 on, requests contain topic ids.
    """

    partitions: tuple[int, ...]
    topic: str = ""
    topic_id: Uuid = ZERO_UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaState:
    """The broker id and broker epoch of a follower, from version 15 on.

    Both values are -1 for a consumer.
    """

    replica_id: int = -1
    replica_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequest:
    """A Fetch request."""

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
    """An aborted transaction in the returned offset range.

    A read_committed consumer skips the records of `producer_id` from `first_offset` on.
    """

    producer_id: int
    first_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEndOffset:
    """The largest leader epoch that the logs of the leader and the client have in common.

    `end_offset` is the end offset of this epoch in the leader's log.
    """

    epoch: int = -1
    end_offset: int = -1


NOT_DIVERGING: Final = EpochEndOffset()

NO_PREFERRED_REPLICA: Final = -1
"""The value of `preferred_read_replica` if the client continues to use its current replica."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionResponse:
    """The record batches of a partition, or an error."""

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
    def must_respond(self) -> bool:
        """Return whether the response must be sent without waiting for records."""
        return (
            self.error_code is not ErrorCode.none
            or self.diverging_epoch is not NOT_DIVERGING
            or self.preferred_read_replica != NO_PREFERRED_REPLICA
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicResponse:
    """The partition responses for a topic."""

    topic: str
    topic_id: Uuid
    partitions: tuple[PartitionResponse, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchResponse:
    """A Fetch response. In a session, it contains only partitions with changes."""

    error_code: ErrorCode = ErrorCode.none
    responses: tuple[TopicResponse, ...] = ()
    session_id: int = INVALID_SESSION_ID
    throttle_time_ms: int = NO_THROTTLE_MS
    node_endpoints: tuple[NodeEndpoint, ...] = ()
