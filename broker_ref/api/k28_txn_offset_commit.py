"""TxnOffsetCommit (28), versions 0 to 5: keep a group's offsets if a transaction commits (KIP-98).

Behaviour: the offsets are pending from now on; the transaction's commit marker lets them count, its
abort marker drops them. The transaction's coordinator is asked first whether the producer added
the group to its open transaction (KIP-890): if not, TRANSACTION_ABORTABLE (INVALID_TXN_STATE before
version 4); from version 5 on it is added on the way. Nobody is asked where the transaction has
written to the group's partition before, nor, before version 5, where
`transaction.partition.verification.enable` is off. Then the group is: who names a member or a
generation (version 3, KIP-447) is checked as in OffsetCommit, UNKNOWN_MEMBER_ID,
FENCED_INSTANCE_ID, ILLEGAL_GENERATION, also where there is no such group; all others may commit, in
any state. Where the offsets topic is not there yet it is COORDINATOR_NOT_AVAILABLE, unlike
OffsetCommit's. Offsets of partitions that do not exist are UNKNOWN_TOPIC_OR_PARTITION, metadata
longer than `offset.metadata.max.bytes` OFFSET_METADATA_TOO_LARGE; the others of the request are
kept. A producer that is fenced is told INVALID_PRODUCER_EPOCH. The answer comes once every in-sync
replica of the offsets partition has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import NO_THROTTLE_MS, Api, Broker, Call, Wait
from broker_ref.api.coordinator_replies import NEVER_MS, answer
from broker_ref.coordination.replies import Reply
from broker_ref.coordination.writes import APPEND_ERRORS
from broker_ref.group.offset_commits import Committer
from broker_ref.group.offsets import TopicPartition
from broker_ref.group.records import OffsetCommitValue
from broker_ref.group.shard import Transaction
from broker_ref.log.batch import NO_SEQUENCE
from broker_ref.log.errors import LogError
from broker_ref.log.verification_guards import VerificationGuard
from broker_ref.protocol.errors import ApiError
from broker_ref.replication.partition import Partition, PartitionKey

FIRST_VERSION_THAT_WAITS_FOR_LOADING: Final = 2
FIRST_VERSION_OF_TRANSACTION_ABORTABLE: Final = 4
FIRST_VERSION_THAT_ADDS_THE_GROUP: Final = 5

_VERIFICATION_ERRORS: Final = MappingProxyType(
    {**APPEND_ERRORS, ErrorCode.network_exception: ErrorCode.coordinator_load_in_progress}
)
"""What a client is told in place of why the transaction is not verified: it asks again here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedPartition:
    """An offset to keep."""

    partition_index: int
    committed_offset: int
    committed_metadata: str | None
    committed_leader_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedTopic:
    """Offsets of a topic."""

    name: str
    partitions: tuple[CommittedPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TxnOffsetCommitRequest:
    """Whose offsets, in whose transaction, and which."""

    transactional_id: str
    group_id: str
    producer_id: int
    producer_epoch: int
    topics: tuple[CommittedTopic, ...]
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionAnswer:
    """Whether an offset is kept."""

    partition_index: int
    error_code: ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicAnswer:
    """The answers for a topic."""

    name: str
    partitions: tuple[PartitionAnswer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TxnOffsetCommitResponse:
    """The answers for every topic."""

    topics: tuple[TopicAnswer, ...]
    throttle_time_ms: int = NO_THROTTLE_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidatedCommit:
    """A request, looked at: what is to be kept, and what is refused whatever comes.

    `offsets` are by partition; `unknown` and `too_large` are places in the request.
    """

    broker: Broker
    call: Call
    request: TxnOffsetCommitRequest
    offsets: Mapping[TopicPartition, CommittedPartition]
    unknown: frozenset[TopicPartition]
    too_large: frozenset[TopicPartition]

    def append(self, guard: VerificationGuard | None, now_ms: int) -> object:
        """Keep the offsets, or wait until that is done."""
        request = self.request
        committer = Committer(
            member_id=request.member_id,
            group_instance_id=request.group_instance_id,
            generation_id=request.generation_id,
        )
        transaction = Transaction(
            producer_id=request.producer_id, producer_epoch=request.producer_epoch, guard=guard
        )
        values = {key: _value(offset, now_ms) for key, offset in self.offsets.items()}
        reply = self.broker.groups.commit_transactional(
            request.group_id, committer, values, transaction, now_ms
        )
        return answer(reply, self.respond)

    def respond(self, outcome: ErrorCode) -> TxnOffsetCommitResponse:
        """The response where the group, the transaction or the log answers this."""
        outcome = self._known_to_client(outcome)
        return TxnOffsetCommitResponse(
            topics=tuple(
                TopicAnswer(
                    name=topic.name,
                    partitions=tuple(
                        PartitionAnswer(
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
        if key in self.unknown:
            return ErrorCode.unknown_topic_or_partition
        if outcome is ErrorCode.none and key in self.too_large:
            return ErrorCode.offset_metadata_too_large
        return outcome

    def _known_to_client(self, outcome: ErrorCode) -> ErrorCode:
        version = self.call.version
        if (
            outcome is ErrorCode.coordinator_load_in_progress
            and version < FIRST_VERSION_THAT_WAITS_FOR_LOADING
        ):
            return ErrorCode.coordinator_not_available  # KAFKA-7296: clients fail on the other.
        if (
            outcome is ErrorCode.transaction_abortable
            and version < FIRST_VERSION_OF_TRANSACTION_ABORTABLE
        ):
            return ErrorCode.invalid_txn_state
        return outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayedVerification:
    """A commit that waits for the transaction's coordinator to say that the group is in it.

    Where the last transaction's marker was written meanwhile, which makes the guard void, it asks
    again: the answer may be from before or after.
    """

    commit: ValidatedCommit
    partition: Partition
    guard: VerificationGuard
    reply: Reply[Mapping[PartitionKey, ErrorCode]]

    def try_complete(self, now_ms: int) -> object | None:
        """The response, or the next wait, once there is an answer."""
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
        """Not before the end of time: every question ends."""
        raise AssertionError(f"the coordinator of a transaction was waited for until {now_ms}")


def handle(broker: Broker, call: Call, request: TxnOffsetCommitRequest) -> object:
    """Look at the request, have its transaction verified, then keep the offsets."""
    commit = _read(broker, call, request)
    if not commit.offsets and not commit.too_large:
        return commit.respond(ErrorCode.none)
    if not request.group_id:
        return commit.respond(ErrorCode.invalid_group_id)
    if broker.groups.coordinator(request.group_id) is None:
        return commit.respond(ErrorCode.coordinator_not_available)
    return _verify(commit, call.now_ms)


def _verify(commit: ValidatedCommit, now_ms: int) -> object:
    """Ask whether the group is in the transaction, where that is not known; then go on."""
    broker, request = commit.broker, commit.request
    adds = commit.call.version >= FIRST_VERSION_THAT_ADDS_THE_GROUP
    try:
        partition = broker.groups.check_coordinator(request.group_id)
        guard = partition.begin_verification(
            request.producer_id, request.producer_epoch, NO_SEQUENCE, supports_epoch_bump=adds
        )
    except (ApiError, LogError) as error:
        code = error.error_code
        return commit.respond(_VERIFICATION_ERRORS.get(code, code))
    if guard is None or not (adds or broker.config.transaction_partition_verification_enable):
        return commit.append(guard, now_ms)
    reply = broker.verifications.verify(
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
    unknown: set[TopicPartition] = set()
    too_large: set[TopicPartition] = set()
    for topic in request.topics:
        for partition in topic.partitions:
            key = TopicPartition(topic=topic.name, partition=partition.partition_index)
            if broker.metadata.partition(key.topic, key.partition) is None:
                unknown.add(key)
            elif len(partition.committed_metadata or "") > broker.config.offset_metadata_max_bytes:
                too_large.add(key)
            else:
                offsets[key] = partition
    return ValidatedCommit(
        broker=broker,
        call=call,
        request=request,
        offsets=offsets,
        unknown=frozenset(unknown),
        too_large=frozenset(too_large),
    )


def _value(partition: CommittedPartition, now_ms: int) -> OffsetCommitValue:
    """As Kafka's, without a topic id: the request names topics."""
    return OffsetCommitValue(
        offset=partition.committed_offset,
        leader_epoch=partition.committed_leader_epoch,
        metadata=partition.committed_metadata or "",
        commit_timestamp_ms=now_ms,
    )


API: Final = Api(key=28, versions=range(6), request=TxnOffsetCommitRequest, handle=handle)
