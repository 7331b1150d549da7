"""AlterPartition (56), versions 2 and 3: a leader proposes a new ISR (KIP-497, KIP-903).

If the leader's broker epoch is not the registered epoch, the whole request fails with
STALE_BROKER_EPOCH. `broker_ref.controller.alter_partition` checks each partition. The response
contains the new state of each partition. From version 3 on, the request contains the broker epoch
of each ISR member, which must match the member's registration. Source:
`kafka.server.ControllerApis.handleAlterPartitionRequest`.
"""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.controller.alter_partition import SKIP_EPOCH_CHECK, IsrProposal
from broker_ref.controller.metadata import RECOVERED, PartitionMetadata
from broker_ref.controller_api.contract import (
    NO_THROTTLE_MS,
    Api,
    Call,
    ControllerContext,
    on_cluster,
)
from broker_ref.frozen import dataclass
from broker_ref.protocol.errors import ApiError
from broker_ref.protocol.identifiers import Uuid
from broker_ref.security.acls import AclOperation


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerState:
    """An ISR member. The broker epoch is -1 if the leader does not know it."""

    broker_id: int
    broker_epoch: int = SKIP_EPOCH_CHECK


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposedPartition:
    """A proposed ISR.

    It is in `new_isr` up to version 2, and in `new_isr_with_epochs` from version 3 on.
    """

    partition_index: int
    leader_epoch: int
    partition_epoch: int
    leader_recovery_state: int = RECOVERED
    new_isr: tuple[int, ...] = ()
    new_isr_with_epochs: tuple[BrokerState, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposedTopic:
    """The proposals for the partitions of a topic."""

    topic_id: Uuid
    partitions: tuple[ProposedPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartitionRequest:
    """An AlterPartition request."""

    broker_id: int
    broker_epoch: int
    topics: tuple[ProposedTopic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionResponse:
    """The new state of a partition, or an error."""

    partition_index: int
    error_code: ErrorCode = ErrorCode.none
    leader_id: int = -1
    leader_epoch: int = -1
    isr: tuple[int, ...] = ()
    leader_recovery_state: int = RECOVERED
    partition_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicResponse:
    """The partition responses for a topic."""

    topic_id: Uuid
    partitions: tuple[PartitionResponse, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartitionResponse:
    """An AlterPartition response."""

    error_code: ErrorCode = ErrorCode.none
    topics: tuple[TopicResponse, ...] = ()
    throttle_time_ms: int = NO_THROTTLE_MS


def handle(
    context: ControllerContext, call: Call, request: AlterPartitionRequest
) -> AlterPartitionResponse:
    """Apply the proposals and return the new state of each partition."""
    del call
    proposals = [
        _proposal(request.broker_id, topic.topic_id, partition)
        for topic in request.topics
        for partition in topic.partitions
    ]
    try:
        context.controller.check_broker_epoch(request.broker_id, request.broker_epoch)
        outcomes = iter(context.controller.alter_partitions(proposals))
    except ApiError as error:
        return AlterPartitionResponse(error_code=error.error_code)
    return AlterPartitionResponse(
        topics=tuple(
            TopicResponse(
                topic_id=topic.topic_id,
                partitions=tuple(
                    _response(partition.partition_index, next(outcomes))
                    for partition in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )


def _proposal(broker_id: int, topic_id: Uuid, partition: ProposedPartition) -> IsrProposal:
    members = partition.new_isr_with_epochs or tuple(
        BrokerState(broker_id=replica) for replica in partition.new_isr
    )
    return IsrProposal(
        topic_id=topic_id,
        partition=partition.partition_index,
        leader_id=broker_id,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        isr=tuple((member.broker_id, member.broker_epoch) for member in members),
        leader_recovery_state=partition.leader_recovery_state,
    )


def _response(index: int, outcome: PartitionMetadata | ApiError) -> PartitionResponse:
    if isinstance(outcome, ApiError):
        return PartitionResponse(partition_index=index, error_code=outcome.error_code)
    return PartitionResponse(
        partition_index=index,
        leader_id=outcome.leader,
        leader_epoch=outcome.leader_epoch,
        isr=outcome.isr,
        leader_recovery_state=outcome.leader_recovery_state,
        partition_epoch=outcome.partition_epoch,
    )


API: Final = Api(
    key=56,
    versions=range(2, 4),
    request=AlterPartitionRequest,
    handle=handle,
    requires=(on_cluster(AclOperation.CLUSTER_ACTION),),
)
