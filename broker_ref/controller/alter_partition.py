"""Validation of AlterPartition, with which a leader proposes an ISR.

The checks run in this order (ReplicationControlManager.validateAlterPartitionData):

| condition                                                        | error code                 |
| ---------------------------------------------------------------- | -------------------------- |
| the topic id is unknown                                          | UNKNOWN_TOPIC_ID           |
| the partition is unknown                                         | UNKNOWN_TOPIC_OR_PARTITION |
| leader or partition epoch above the controller's                 | NOT_CONTROLLER             |
| an older leader epoch                                            | FENCED_LEADER_EPOCH        |
| the sender is not the leader                                     | INVALID_REQUEST            |
| an older partition epoch                                         | INVALID_UPDATE_VERSION     |
| the ISR is empty, has duplicates or non-replicas, lacks the leader | INVALID_REQUEST          |
| RECOVERING with more than the leader, or after RECOVERED         | INVALID_REQUEST            |
| a member is fenced, shutting down or another incarnation         | INELIGIBLE_REPLICA         |

Purpose: check a proposal and build the record that it results in, which may complete a
reassignment. Invariant: a refused proposal changes nothing. Must not know: the journal.
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
"""The broker epoch in a proposal of a leader that does not know it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrProposal:
    """The proposal of a leader; `isr` contains pairs of broker id and broker epoch."""

    topic_id: Uuid
    partition: int
    leader_id: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[tuple[int, int], ...]
    leader_recovery_state: int


def checked_partition(metadata: ClusterMetadata, proposal: IsrProposal) -> PartitionMetadata:
    """Return the partition that a proposal is about; raise ApiError where it is refused."""
    topic = metadata.topics_by_id.get(proposal.topic_id)
    if topic is None:
        raise ApiError(
            ErrorCode.unknown_topic_id, f"The topic id {proposal.topic_id} does not exist."
        )
    partition = topic.partitions.get(proposal.partition)
    if partition is None:
        raise ApiError(
            ErrorCode.unknown_topic_or_partition,
            f"The partition {topic.name}-{proposal.partition} does not exist.",
        )
    error = _epoch_error(partition, proposal) or _isr_error(partition, proposal)
    if error is None and any(not _is_eligible(metadata, *member) for member in proposal.isr):
        error = ErrorCode.ineligible_replica
    if error is not None:
        raise ApiError(
            error, f"The ISR proposed for {topic.name}-{proposal.partition} was refused."
        )
    return partition


def proposed_change(
    metadata: ClusterMetadata,
    partition: PartitionMetadata,
    proposal: IsrProposal,
    *,
    is_unclean_allowed: bool,
) -> PartitionChangeRecord | None:
    """Return the record of a checked proposal, or None where nothing changes."""
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
