"""Partition reassignments, which move replicas to other brokers.

A reassignment has two stages. The controller first adds the new replicas to the existing replicas.
`adding_replicas` contains the new replicas, and `removing_replicas` contains the existing replicas
that are not target replicas. When the ISR contains all new replicas, `elections.change_partition`
drops the removing replicas. If the number of replicas is reduced, the ISR must contain all target
replicas. A reassignment completes immediately if it only drops or reorders in-sync replicas.

This module creates the records that start and cancel reassignments. Invariant: a cancellation
restores the previous replicas. Source: KIP-455, `PartitionReassignmentReplicas` and
`PartitionReassignmentRevert`.
"""

from __future__ import annotations

from dataclasses import replace

from kio.schema.errors import ErrorCode

from broker_ref.controller.elections import Election, Target, change_partition
from broker_ref.controller.metadata import ClusterMetadata, PartitionMetadata
from broker_ref.controller.records import PartitionChangeRecord
from broker_ref.protocol.errors import ApiError


def reassignment(
    metadata: ClusterMetadata,
    partition: PartitionMetadata,
    replicas: tuple[int, ...],
    *,
    min_isr: int | None,
) -> PartitionChangeRecord | None:
    """Return the record that starts a reassignment of the partition to `replicas`.

    The caller must validate `replicas`.
    """
    removing = tuple(sorted(set(partition.replicas) - set(replicas)))
    adding = tuple(sorted(set(replicas) - set(partition.replicas)))
    return change_partition(
        partition,
        is_acceptable_leader=metadata.is_active,
        min_isr=min_isr,
        target=replace(
            Target.of(partition),
            replicas=replicas + removing,
            # As in Kafka, an empty list does not replace the list of an earlier reassignment.
            removing_replicas=removing or partition.removing_replicas,
            adding_replicas=adding or partition.adding_replicas,
        ),
    )


def check_replication_factor(partition: PartitionMetadata, replicas: tuple[int, ...]) -> None:
    """Raise INVALID_REPLICATION_FACTOR if the replication factor would change (KIP-860)."""
    present = set(partition.replicas) - set(partition.removing_replicas)
    if len(replicas) != len(present):
        raise ApiError(
            ErrorCode.invalid_replication_factor,
            f"The replication factor is changed from {len(present)} to {len(replicas)}",
        )


def cancellation(
    metadata: ClusterMetadata,
    partition: PartitionMetadata,
    *,
    is_unclean_allowed: bool,
    min_isr: int | None,
) -> PartitionChangeRecord | None:
    """Return the record that cancels a reassignment.

    Raises: ApiError (NO_REASSIGNMENT_IN_PROGRESS, or INVALID_REPLICA_ASSIGNMENT if all in-sync
    replicas are adding replicas and the topic does not allow an unclean election).
    """
    name = f"{partition.topic}-{partition.partition}"
    if not partition.is_reassigning:
        raise ApiError(
            ErrorCode.no_reassignment_in_progress,
            f"No reassignment of {name} is in progress.",
        )
    kept = tuple(r for r in partition.replicas if r not in partition.adding_replicas)
    isr = tuple(r for r in partition.isr if r not in partition.adding_replicas)
    if not kept:
        raise ApiError(
            ErrorCode.invalid_replica_assignment,
            f"Unable to revert partition assignment for {name} because addingReplicas "
            "contains all replicas.",
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
        min_isr=min_isr,
        election=Election.UNCLEAN if is_unclean_allowed else Election.ONLINE,
        target=replace(
            Target.of(partition),
            replicas=kept,
            isr=isr or kept[:1],
            adding_replicas=(),
            removing_replicas=(),
        ),
    )
