"""Validates AlterPartition requests, in which a leader proposes a new ISR.

The checks run in this order (`ReplicationControlManager.validateAlterPartitionData`):

| condition                                                          | error code                 |
| ------------------------------------------------------------------ | -------------------------- |
| the topic id is unknown                                            | UNKNOWN_TOPIC_ID           |
| the partition is unknown                                           | UNKNOWN_TOPIC_OR_PARTITION |
| the leader epoch or partition epoch is above the controller's      | NOT_CONTROLLER             |
| the leader epoch is too old                                        | FENCED_LEADER_EPOCH        |
| the sender is not the leader                                       | INVALID_REQUEST            |
| the partition epoch is too old                                     | INVALID_UPDATE_VERSION     |
| the ISR has duplicates or brokers that are not replicas            | INVALID_REQUEST            |
| the ISR does not contain the leader                                | INVALID_REQUEST            |
| RECOVERING and the ISR has a member other than the leader          | INVALID_REQUEST            |
| RECOVERING, but the partition is RECOVERED                         | INVALID_REQUEST            |
| a member is fenced, shutting down or has the wrong broker epoch    | INELIGIBLE_REPLICA         |

A valid proposal results in a record, which can complete a reassignment. A rejected proposal has no
effect.
"""

from __future__ import annotations

from dataclasses import replace

from kio.schema.errors import ErrorCode

from broker_ref.controller.elections import Election, Target, change_partition
from broker_ref.controller.metadata import RECOVERED, RECOVERING, ClusterMetadata, PartitionMetadata
from broker_ref.controller.records import PartitionChangeRecord
from broker_ref.frozen import dataclass
from broker_ref.protocol.errors import ApiError
from broker_ref.protocol.identifiers import Uuid

SKIP_EPOCH_CHECK = -1
"""The broker epoch used in a proposal if the leader does not know the epoch of the ISR member."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrProposal:
    """The ISR that a leader proposes. `isr` contains pairs of broker id and broker epoch."""

    topic_id: Uuid
    partition: int
    leader_id: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[tuple[int, int], ...]
    leader_recovery_state: int


def checked_partition(metadata: ClusterMetadata, proposal: IsrProposal) -> PartitionMetadata:
    """Return the partition of a valid proposal, or raise ApiError if the proposal is invalid."""
    topic = metadata.topics_by_id.get(proposal.topic_id)
    if topic is None:
        raise ApiError(
            ErrorCode.unknown_topic_id, f"There is no topic with the id {proposal.topic_id}."
        )
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
        raise ApiError(
            error,
            f"The proposed ISR of {topic.name}-{proposal.partition} was rejected "
            f"with the error code {error.name}.",
        )
    return partition


def proposed_change(
    metadata: ClusterMetadata,
    partition: PartitionMetadata,
    proposal: IsrProposal,
    *,
    is_unclean_allowed: bool,
    min_isr: int | None,
) -> PartitionChangeRecord | None:
    """Return the record for a valid proposal, or None if nothing changes."""
    return change_partition(
        partition,
        is_acceptable_leader=metadata.is_active,
        min_isr=min_isr,
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
