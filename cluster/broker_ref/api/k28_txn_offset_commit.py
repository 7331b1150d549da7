"""TxnOffsetCommit (28), versions 0 to 5: commit a group's offsets in a transaction (KIP-98).

The offsets are pending until the transaction marker is written. The group coordinator then commits
them (commit marker) or removes them (abort marker). The broker responds when the offsets have been
replicated to all in-sync replicas of the offsets partition.

The broker first asks the transaction coordinator whether the open transaction contains the group's
offsets partition (KIP-890). If the transaction does not contain this partition, the error is
TRANSACTION_ABORTABLE, or INVALID_TXN_STATE before version 4. From version 5 on, the coordinator
adds the partition instead. The broker skips the verification if the transaction has already written
to the partition. Before version 5, it also skips the verification if
`transaction.partition.verification.enable` is false.

The group coordinator then checks the member. If the request contains a member id or a generation
(version 3, KIP-447), an invalid value is rejected with UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID or
ILLEGAL_GENERATION, as in OffsetCommit. If the group does not exist, a request with a generation is
rejected with ILLEGAL_GENERATION. Other commits succeed in any group state.

Unlike in OffsetCommit, the error is COORDINATOR_NOT_AVAILABLE if the offsets topic does not exist.
The error for a partition that does not exist is UNKNOWN_TOPIC_OR_PARTITION.
OFFSET_METADATA_TOO_LARGE is returned if the metadata is longer than `offset.metadata.max.bytes`.
Neither of these two errors affects the other offsets in the request. The error for a fenced
producer is INVALID_PRODUCER_EPOCH. Source: `kafka.server.KafkaApis.handleTxnOffsetCommitRequest`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import (
    NO_THROTTLE_MS,
    Api,
    Broker,
    Call,
    Wait,
    on_group,
    on_transactional_id,
)
from broker_ref.api.coordinator_replies import NEVER_MS, respond_to
from broker_ref.coordination.partition_writer import APPEND_ERRORS
from broker_ref.coordination.replies import Reply
from broker_ref.frozen import dataclass
from broker_ref.group.offset_metadata_manager import Committer, is_metadata_invalid
from broker_ref.group.offsets import TopicPartition
from broker_ref.group.records import OffsetCommitValue
from broker_ref.group.shard import TransactionalProducer
from broker_ref.log.batch import NO_SEQUENCE
from broker_ref.log.errors import LogError
from broker_ref.log.verification_guards import VerificationGuard
from broker_ref.protocol.errors import ApiError
from broker_ref.replication.partition import Partition, PartitionKey
from broker_ref.security.acls import AclOperation, ResourceType

FIRST_VERSION_THAT_WAITS_FOR_LOADING: Final = 2
FIRST_VERSION_OF_TRANSACTION_ABORTABLE: Final = 4
FIRST_VERSION_THAT_ADDS_THE_GROUP: Final = 5

_VERIFICATION_ERRORS: Final = MappingProxyType(
    {**APPEND_ERRORS, ErrorCode.network_exception: ErrorCode.coordinator_load_in_progress}
)
"""Maps verification errors to error codes after which clients retry with this broker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedPartition:
    """The offset to store for a partition."""

    partition_index: int
    committed_offset: int
    committed_metadata: str | None
    committed_leader_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedTopic:
    """The offsets of a topic."""

    name: str
    partitions: tuple[CommittedPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TxnOffsetCommitRequest:
    """A TxnOffsetCommit request."""

    transactional_id: str
    group_id: str
    producer_id: int
    producer_epoch: int
    topics: tuple[CommittedTopic, ...]
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionResponse:
    """The error code for a partition."""

    partition_index: int
    error_code: ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicResponse:
    """The partition results for a topic."""

    name: str
    partitions: tuple[PartitionResponse, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TxnOffsetCommitResponse:
    """A TxnOffsetCommit response."""

    topics: tuple[TopicResponse, ...]
    throttle_time_ms: int = NO_THROTTLE_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidatedCommit:
    """A validated TxnOffsetCommit request.

    `offsets` contains the offsets to store. `rejected` contains the error codes of partitions that
    do not exist or that the client may not read. `too_large` contains the partitions whose metadata
    is too long.
    """

    broker: Broker
    call: Call
    request: TxnOffsetCommitRequest
    offsets: Mapping[TopicPartition, CommittedPartition]
    rejected: Mapping[TopicPartition, ErrorCode]
    too_large: frozenset[TopicPartition]

    def append(self, guard: VerificationGuard | None, now_ms: int) -> object:
        """Store the offsets. Return the response, or a `Wait` if the write is still pending."""
        request = self.request
        committer = Committer(
            member_id=request.member_id,
            group_instance_id=request.group_instance_id,
            generation_id=request.generation_id,
        )
        transaction = TransactionalProducer(
            producer_id=request.producer_id, producer_epoch=request.producer_epoch, guard=guard
        )
        values = {key: _value(offset, now_ms) for key, offset in self.offsets.items()}
        reply = self.broker.groups.commit_transactional(
            request.group_id, committer, values, transaction, now_ms
        )
        return respond_to(reply, self.respond)

    def respond(self, outcome: ErrorCode) -> TxnOffsetCommitResponse:
        """Return the response for an error code.

        The error code is from the group coordinator or the verification of the transaction.
        """
        outcome = self._known_to_client(outcome)
        return TxnOffsetCommitResponse(
            topics=tuple(
                TopicResponse(
                    name=topic.name,
                    partitions=tuple(
                        PartitionResponse(
                            partition_index=partition.partition_index,
                            error_code=self._code(topic, partition, outcome),
                        )
                        for partition in topic.partitions
                    ),
                )
                for topic in self.request.topics
            )
        )

    def _code(
        self, topic: CommittedTopic, partition: CommittedPartition, outcome: ErrorCode
    ) -> ErrorCode:
        key = TopicPartition(topic=topic.name, partition=partition.partition_index)
        if key in self.rejected:
            return self.rejected[key]
        if outcome is ErrorCode.none and key in self.too_large:
            return ErrorCode.offset_metadata_too_large
        return outcome

    def _known_to_client(self, outcome: ErrorCode) -> ErrorCode:
        version = self.call.version
        if (
            outcome is ErrorCode.coordinator_load_in_progress
            and version < FIRST_VERSION_THAT_WAITS_FOR_LOADING
        ):
            return (
                ErrorCode.coordinator_not_available
            )  # Clients fail on COORDINATOR_LOAD_IN_PROGRESS (KAFKA-7296).
        if (
            outcome is ErrorCode.transaction_abortable
            and version < FIRST_VERSION_OF_TRANSACTION_ABORTABLE
        ):
            return ErrorCode.invalid_txn_state
        return outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayedVerification:
    """A commit that is waiting until the transaction coordinator has verified the transaction.

    If the marker of the producer's previous transaction is written during the wait, the marker
    invalidates the verification guard (`verification_guards`). The verification is then repeated,
    because the coordinator's reply may be older than the marker.
    """

    commit: ValidatedCommit
    partition: Partition
    guard: VerificationGuard
    reply: Reply[Mapping[PartitionKey, ErrorCode]]

    def try_complete(self, now_ms: int) -> object | None:
        """Return the response or the next `Wait` if the coordinator has replied."""
        if self.reply.result is None:
            return None
        error = self.reply.result.get(self.partition.key, ErrorCode.none)
        if error is not ErrorCode.none:
            return self.commit.respond(_VERIFICATION_ERRORS.get(error, error))
        producer_id = self.commit.request.producer_id
        if not self.partition.log.producers.allows(producer_id, self.guard):
            return _verify(self.commit, now_ms)
        return self.commit.append(self.guard, now_ms)

    def expire(self, now_ms: int) -> object:
        """Raise AssertionError, because every verification completes and the wait cannot expire."""
        raise AssertionError(
            f"A wait without a deadline expired at {now_ms} ms, before the coordinator replied."
        )


def handle(broker: Broker, call: Call, request: TxnOffsetCommitRequest) -> object:
    """Validate the request, verify the transaction and store the offsets."""
    commit = _read(broker, call, request)
    if not commit.offsets and not commit.too_large:
        return commit.respond(ErrorCode.none)
    if not request.group_id:
        return commit.respond(ErrorCode.invalid_group_id)
    if broker.groups.coordinator(request.group_id) is None:
        return commit.respond(ErrorCode.coordinator_not_available)
    return _verify(commit, call.now_ms)


def _verify(commit: ValidatedCommit, now_ms: int) -> object:
    """Verify the transaction if necessary, then store the offsets."""
    broker, request = commit.broker, commit.request
    adds = commit.call.version >= FIRST_VERSION_THAT_ADDS_THE_GROUP
    try:
        partition = broker.groups.check_coordinator(request.group_id)
        guard = partition.maybe_start_transaction_verification(
            request.producer_id, request.producer_epoch, NO_SEQUENCE, supports_epoch_bump=adds
        )
    except (ApiError, LogError) as error:
        code = error.error_code
        return commit.respond(_VERIFICATION_ERRORS.get(code, code))
    if guard is None or not (adds or broker.config.transaction_partition_verification_enable):
        return commit.append(guard, now_ms)
    reply = broker.verifications.add_or_verify_transaction(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        (partition.key,),
        add=adds,
    )
    delayed = DelayedVerification(commit=commit, partition=partition, guard=guard, reply=reply)
    response = delayed.try_complete(now_ms)
    return response or Wait(operation=delayed, keys=(reply,), deadline_ms=NEVER_MS)


def _read(broker: Broker, call: Call, request: TxnOffsetCommitRequest) -> ValidatedCommit:
    offsets: dict[TopicPartition, CommittedPartition] = {}
    rejected: dict[TopicPartition, ErrorCode] = {}
    too_large: set[TopicPartition] = set()
    for topic in request.topics:
        for partition in topic.partitions:
            key = TopicPartition(topic=topic.name, partition=partition.partition_index)
            if not call.auth.allows(AclOperation.READ, ResourceType.TOPIC, key.topic):
                rejected[key] = ErrorCode.topic_authorization_failed
            elif broker.metadata.partition(key.topic, key.partition) is None:
                rejected[key] = ErrorCode.unknown_topic_or_partition
            elif is_metadata_invalid(partition.committed_metadata, broker.config):
                too_large.add(key)
            else:
                offsets[key] = partition
    return ValidatedCommit(
        broker=broker,
        call=call,
        request=request,
        offsets=offsets,
        rejected=rejected,
        too_large=frozenset(too_large),
    )


def _value(partition: CommittedPartition, now_ms: int) -> OffsetCommitValue:
    """Return the offset to commit. It has no topic id, because requests contain topic names."""
    return OffsetCommitValue(
        offset=partition.committed_offset,
        leader_epoch=partition.committed_leader_epoch,
        metadata=partition.committed_metadata or "",
        commit_timestamp_ms=now_ms,
    )


API: Final = Api(
    key=28,
    versions=range(6),
    request=TxnOffsetCommitRequest,
    handle=handle,
    requires=(
        on_transactional_id(AclOperation.WRITE),
        on_group(AclOperation.READ),
    ),
)
