"""Leaders' proposals of in-sync replicas: AlterPartition.

A proposal is checked in this order (ReplicationControlManager.validateAlterPartitionData):

| what is wrong                                                  | answer                  |
| -------------------------------------------------------------- | ----------------------- |
| no topic with this id                                          | UNKNOWN_TOPIC_ID        |
| no such partition of it                                        | UNKNOWN_TOPIC_OR_PARTITION |
| leader or partition epoch beyond the controller's              | NOT_CONTROLLER          |
| an older leader epoch                                          | FENCED_LEADER_EPOCH     |
| not the leader's                                               | INVALID_REQUEST         |
| an older partition epoch                                       | INVALID_UPDATE_VERSION  |
| no ISR of this partition: empty, repeated, foreign or leaderless | INVALID_REQUEST       |
| RECOVERING with more than the leader, or after RECOVERED       | INVALID_REQUEST         |
| a fenced or shutting down member, or another incarnation of it | INELIGIBLE_REPLICA      |

Purpose: the check, and the change that a sound proposal leads to, the end of a reassignment
included. Invariant: what is refused changes nothing. What it must not know: the journal.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kio.schema.errors import ErrorCode

from broker_ref.controller.elections import Election, Target, change_partition
from broker_ref.controller.metadata import RECOVERED, RECOVERING, ClusterMetadata, PartitionMetadata
from broker_ref.controller.records import PartitionChangeRecord
from broker_ref.protocol.errors import ApiError
from broker_ref.protocol.identifiers import Uuid

SKIP_EPOCH_CHECK = -1
"""In place of a broker epoch that the proposer does not know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrProposal:
    """What a leader proposes; `isr` are pairs of broker id and broker epoch."""

    topic_id: Uuid
    partition: int
    leader_id: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[tuple[int, int], ...]
    leader_recovery_state: int


def checked_partition(metadata: ClusterMetadata, proposal: IsrProposal) -> PartitionMetadata:
    """The partition that a proposal is about; ApiError where it is refused."""
    topic = metadata.topics_by_id.get(proposal.topic_id)
    if topic is None:
        raise ApiError(ErrorCode.unknown_topic_id, "There is no topic with this id.")
    partition = topic.partitions.get(proposal.partition)
    if partition is None:
        raise ApiError(
            ErrorCode.unknown_topic_or_partition,
            f"Topic {topic.name} has no partition {proposal.partition}.",
        )
    error = _epoch_error(partition, proposal) or _isr_error(partition, proposal)
    if error is None and any(not _is_eligible(metadata, *member) for member in proposal.isr):
        error = ErrorCode.ineligible_replica
    if error is not None:
        raise ApiError(error, f"{topic.name}-{proposal.partition} does not take this ISR.")
    return partition


def proposed_change(
    metadata: ClusterMetadata,
    partition: PartitionMetadata,
    proposal: IsrProposal,
    *,
    is_unclean_allowed: bool,
) -> PartitionChangeRecord | None:
    """The record that a checked proposal leads to; None where nothing changes."""
    return change_partition(
        partition,
        is_acceptable_leader=metadata.is_active,
        election=Election.UNCLEAN if is_unclean_allowed else Election.ONLINE,
        target=replace(
            Target.of(partition),
            isr=tuple(broker_id for broker_id, _ in proposal.isr),
            leader_recovery_state=proposal.leader_recovery_state,
        ),
    )


def _epoch_error(partition: PartitionMetadata, proposal: IsrProposal) -> ErrorCode | None:
    if (
        proposal.leader_epoch > partition.leader_epoch
        or proposal.partition_epoch > partition.partition_epoch
    ):
        return ErrorCode.not_controller
    if proposal.leader_epoch < partition.leader_epoch:
        return ErrorCode.fenced_leader_epoch
    if proposal.leader_id != partition.leader:
        return ErrorCode.invalid_request
    if proposal.partition_epoch < partition.partition_epoch:
        return ErrorCode.invalid_update_version
    return None


def _isr_error(partition: PartitionMetadata, proposal: IsrProposal) -> ErrorCode | None:
    isr = [broker_id for broker_id, _ in proposal.isr]
    recovering = proposal.leader_recovery_state == RECOVERING
    sound = (
        len(set(isr)) == len(isr)
        and set(isr) <= set(partition.replicas)
        and partition.leader in isr
        and proposal.leader_recovery_state in {RECOVERED, RECOVERING}
        and not (recovering and len(isr) > 1)
        and not (recovering and partition.leader_recovery_state == RECOVERED)
    )
    return None if sound else ErrorCode.invalid_request


def _is_eligible(metadata: ClusterMetadata, broker_id: int, broker_epoch: int) -> bool:
    broker = metadata.brokers.get(broker_id)
    return (
        broker is not None
        and broker.is_active
        and broker_epoch in {SKIP_EPOCH_CHECK, broker.broker_epoch}
    )
