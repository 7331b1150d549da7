"""Reassignments, which move replicas to other brokers.

A reassignment has two stages. First the new replicas are added to the old ones;
`adding_replicas` and `removing_replicas` list the difference. Once the ISR contains all target
replicas, `elections.change_partition` drops the removing ones. A reassignment that only drops or
reorders in-sync replicas completes at once.

Purpose: build the records that start and cancel reassignments. Invariant: cancelling restores the
previous replicas. Must not know: the journal, requests. Sources: KIP-455,
PartitionReassignmentReplicas, PartitionReassignmentRevert.
"""

from __future__ import annotations

from dataclasses import replace

from kio.schema.errors import ErrorCode

from broker_ref.controller.elections import Election, Target, change_partition
from broker_ref.controller.metadata import ClusterMetadata, PartitionMetadata
from broker_ref.controller.records import PartitionChangeRecord
from broker_ref.protocol.errors import ApiError


def reassignment(
    metadata: ClusterMetadata, partition: PartitionMetadata, replicas: tuple[int, ...]
) -> PartitionChangeRecord | None:
    """Return the record that starts to reassign a partition to `replicas`, already checked."""
    removing = tuple(sorted(set(partition.replicas) - set(replicas)))
    adding = tuple(sorted(set(replicas) - set(partition.replicas)))
    return change_partition(
        partition,
        is_acceptable_leader=metadata.is_active,
        target=replace(
            Target.of(partition),
            replicas=replicas + removing,
            # Like Kafka, keep the lists of an earlier reassignment where this one has none.
            removing_replicas=removing or partition.removing_replicas,
            adding_replicas=adding or partition.adding_replicas,
        ),
    )


def check_factor_is_kept(partition: PartitionMetadata, replicas: tuple[int, ...]) -> None:
    """Raise INVALID_REPLICATION_FACTOR where the replication factor would change (KIP-860)."""
    present = set(partition.replicas) - set(partition.removing_replicas)
    if len(replicas) != len(present):
        raise ApiError(
            ErrorCode.invalid_replication_factor,
            f"The replication factor is changed from {len(present)} to {len(replicas)}",
        )


def cancellation(
    metadata: ClusterMetadata, partition: PartitionMetadata, *, is_unclean_allowed: bool
) -> PartitionChangeRecord | None:
    """Return the record that cancels a reassignment.

    Raise NO_REASSIGNMENT_IN_PROGRESS, or INVALID_REPLICA_ASSIGNMENT where only an added replica is
    in sync and the topic does not allow an unclean election.
    """
    name = f"{partition.topic}-{partition.partition}"
    if not partition.is_reassigning:
        raise ApiError(
            ErrorCode.no_reassignment_in_progress, f"No reassignment of {name} is in progress."
        )
    kept = tuple(r for r in partition.replicas if r not in partition.adding_replicas)
    isr = tuple(r for r in partition.isr if r not in partition.adding_replicas)
    if not kept:
        raise ApiError(
            ErrorCode.invalid_replica_assignment,
            f"Unable to revert partition assignment for {name}: every replica is a new one.",
        )
    if not isr and not is_unclean_allowed:
        raise ApiError(
            ErrorCode.invalid_replica_assignment,
            f"Unable to revert partition assignment for {name} because it would require an "
            "unclean leader election.",
        )
    return change_partition(
        partition,
        is_acceptable_leader=metadata.is_active,
        election=Election.UNCLEAN if is_unclean_allowed else Election.ONLINE,
        target=replace(
            Target.of(partition),
            replicas=kept,
            isr=isr or kept[:1],
            adding_replicas=(),
            removing_replicas=(),
        ),
    )
