"""What simulated clients ask and are answered, as far as they use it.

Purpose: the messages, with the names that Kafka's schemas have, and the version of each API that
clients speak (the last that names topics, where ids came later). Invariant: none; what a message
does not name keeps kio's default. What it must not know: when they are sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from kio.schema.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """An API in one version, and the class that its answer is read as."""

    api_key: int
    version: int
    response: type[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One error code for all that was asked."""

    error_code: ErrorCode


# Metadata


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedMetadata:
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataRequest:
    topics: tuple[WantedMetadata, ...]
    allow_auto_topic_creation: bool = False
    include_cluster_authorized_operations: bool = False
    include_topic_authorized_operations: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLeader:
    partition_index: int
    leader_id: int
    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLeaders:
    error_code: ErrorCode
    name: str
    partitions: tuple[PartitionLeader, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataResponse:
    topics: tuple[TopicLeaders, ...]


METADATA: Final = Call(api_key=3, version=9, response=MetadataResponse)


# CreateTopics


@dataclass(frozen=True, slots=True, kw_only=True)
class NewConfig:
    name: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    name: str
    num_partitions: int = -1
    replication_factor: int = -1
    assignments: tuple[()] = ()
    configs: tuple[NewConfig, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopicsRequest:
    topics: tuple[NewTopic, ...]
    timeout_ms: int = 5_000
    validate_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedTopic:
    name: str
    error_code: ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopicsResponse:
    topics: tuple[CreatedTopic, ...]


CREATE_TOPICS: Final = Call(api_key=19, version=5, response=CreateTopicsResponse)


# AlterPartitionReassignments, ElectLeaders


@dataclass(frozen=True, slots=True, kw_only=True)
class ReassignedPartition:
    partition_index: int
    replicas: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReassignedTopic:
    name: str
    partitions: tuple[ReassignedPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReassignRequest:
    topics: tuple[ReassignedTopic, ...]
    timeout_ms: int = 1_000


REASSIGN: Final = Call(api_key=45, version=0, response=Answer)


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectedPartitions:
    topic: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectLeadersRequest:
    topic_partitions: tuple[ElectedPartitions, ...]
    election_type: int = 0
    timeout_ms: int = 1_000


ELECT_LEADERS: Final = Call(api_key=43, version=2, response=Answer)


# Produce, InitProducerId


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducedData:
    index: int
    records: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducedTopic:
    name: str
    partition_data: tuple[ProducedData, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceRequest:
    transactional_id: str | None
    acks: int
    timeout_ms: int
    topic_data: tuple[ProducedTopic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceAnswer:
    index: int
    error_code: ErrorCode
    base_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceTopicAnswer:
    partition_responses: tuple[ProduceAnswer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceResponse:
    responses: tuple[ProduceTopicAnswer, ...]


PRODUCE: Final = Call(api_key=0, version=9, response=ProduceResponse)
PRODUCE_V2: Final = Call(api_key=0, version=12, response=ProduceResponse)
"""Adds the partition to the transaction by itself (KIP-890, transaction.version 2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducerIdRequest:
    transactional_id: str | None = None
    transaction_timeout_ms: int = 60_000
    producer_id: int = -1
    producer_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducerIdResponse:
    error_code: ErrorCode
    producer_id: int
    producer_epoch: int


INIT_PRODUCER_ID: Final = Call(api_key=22, version=4, response=InitProducerIdResponse)


# Fetch, ListOffsets


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchPartition:
    partition: int
    fetch_offset: int
    partition_max_bytes: int
    current_leader_epoch: int
    last_fetched_epoch: int = -1
    log_start_offset: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchTopic:
    topic: str
    partitions: tuple[FetchPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequest:
    max_wait_ms: int
    max_bytes: int
    isolation_level: int
    topics: tuple[FetchTopic, ...]
    replica_id: int = -1
    min_bytes: int = 1
    session_id: int = 0
    session_epoch: int = -1
    forgotten_topics_data: tuple[()] = ()
    rack_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortedTransaction:
    producer_id: int
    first_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchAnswer:
    partition_index: int
    error_code: ErrorCode
    high_watermark: int
    last_stable_offset: int
    aborted_transactions: tuple[AbortedTransaction, ...] | None
    records: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchTopicAnswer:
    partitions: tuple[FetchAnswer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchResponse:
    error_code: ErrorCode
    responses: tuple[FetchTopicAnswer, ...]


FETCH: Final = Call(api_key=1, version=12, response=FetchResponse)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsPartition:
    partition_index: int
    current_leader_epoch: int
    timestamp: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsTopic:
    name: str
    partitions: tuple[ListOffsetsPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsRequest:
    topics: tuple[ListOffsetsTopic, ...]
    isolation_level: int
    replica_id: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedOffset:
    partition_index: int
    error_code: ErrorCode
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedTopic:
    partitions: tuple[ListedOffset, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsResponse:
    topics: tuple[ListedTopic, ...]


LIST_OFFSETS: Final = Call(api_key=2, version=7, response=ListOffsetsResponse)


# Groups


@dataclass(frozen=True, slots=True, kw_only=True)
class FindCoordinatorRequest:
    key: str
    key_type: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FindCoordinatorResponse:
    error_code: ErrorCode
    node_id: int


FIND_COORDINATOR: Final = Call(api_key=10, version=3, response=FindCoordinatorResponse)


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinProtocol:
    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinGroupRequest:
    group_id: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    member_id: str
    protocols: tuple[JoinProtocol, ...]
    protocol_type: str = "consumer"


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedMember:
    member_id: str
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinGroupResponse:
    error_code: ErrorCode
    generation_id: int
    leader: str
    member_id: str
    members: tuple[JoinedMember, ...]


JOIN_GROUP: Final = Call(api_key=11, version=6, response=JoinGroupResponse)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    member_id: str
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncGroupRequest:
    group_id: str
    generation_id: int
    member_id: str
    assignments: tuple[Assignment, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncGroupResponse:
    error_code: ErrorCode
    assignment: bytes


SYNC_GROUP: Final = Call(api_key=14, version=4, response=SyncGroupResponse)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatRequest:
    group_id: str
    generation_id: int
    member_id: str


HEARTBEAT: Final = Call(api_key=12, version=4, response=Answer)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeavingMember:
    member_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveGroupRequest:
    group_id: str
    members: tuple[LeavingMember, ...]


LEAVE_GROUP: Final = Call(api_key=13, version=4, response=Answer)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedPartition:
    partition_index: int
    committed_offset: int
    committed_metadata: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedTopic:
    name: str
    partitions: tuple[CommittedPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitRequest:
    group_id: str
    generation_id_or_member_epoch: int
    member_id: str
    topics: tuple[CommittedTopic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitAnswer:
    partition_index: int
    error_code: ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitTopicAnswer:
    partitions: tuple[CommitAnswer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitResponse:
    topics: tuple[CommitTopicAnswer, ...]


OFFSET_COMMIT: Final = Call(api_key=8, version=7, response=CommitResponse)


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedOffsets:
    name: str
    partition_indexes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchRequest:
    group_id: str
    topics: tuple[WantedOffsets, ...]
    require_stable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedOffset:
    partition_index: int
    committed_offset: int
    error_code: ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedOffsets:
    partitions: tuple[FetchedOffset, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchResponse:
    error_code: ErrorCode
    topics: tuple[FetchedOffsets, ...]


OFFSET_FETCH: Final = Call(api_key=9, version=7, response=OffsetFetchResponse)


# Transactions


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedTopic:
    name: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitionsRequest:
    v3_and_below_transactional_id: str
    v3_and_below_producer_id: int
    v3_and_below_producer_epoch: int
    v3_and_below_topics: tuple[AddedTopic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedPartition:
    partition_index: int
    partition_error_code: ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedPartitions:
    results_by_partition: tuple[AddedPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitionsResponse:
    results_by_topic_v3_and_below: tuple[AddedPartitions, ...]


ADD_PARTITIONS: Final = Call(api_key=24, version=3, response=AddPartitionsResponse)


@dataclass(frozen=True, slots=True, kw_only=True)
class AddOffsetsRequest:
    transactional_id: str
    producer_id: int
    producer_epoch: int
    group_id: str


ADD_OFFSETS: Final = Call(api_key=25, version=3, response=Answer)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTxnRequest:
    transactional_id: str
    producer_id: int
    producer_epoch: int
    committed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTxnResponse:
    error_code: ErrorCode
    producer_id: int = -1
    producer_epoch: int = -1


END_TXN: Final = Call(api_key=26, version=3, response=EndTxnResponse)
END_TXN_V2: Final = Call(api_key=26, version=5, response=EndTxnResponse)
"""Raises the epoch (KIP-890, transaction.version 2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TxnOffsetCommitRequest:
    transactional_id: str
    group_id: str
    producer_id: int
    producer_epoch: int
    generation_id: int
    member_id: str
    topics: tuple[CommittedTopic, ...]


TXN_OFFSET_COMMIT: Final = Call(api_key=28, version=3, response=CommitResponse)
TXN_OFFSET_COMMIT_V2: Final = Call(api_key=28, version=5, response=CommitResponse)
