"""Leader elections and the resulting partition changes.

| election  | eligible leaders, in this order                        | used for                   |
| --------- | ------------------------------------------------------ | -------------------------- |
| ONLINE    | the current leader, then the ISR in replica order      | broker state changes       |
| PREFERRED | the first replica if it is in the ISR, then as ONLINE  | ElectLeaders, rebalancing  |
| UNCLEAN   | as ONLINE, then the active replicas in replica order   | unclean leader election    |

Purpose: create the record that changes a partition to its target state, or None if nothing changes
(Kafka's `PartitionChangeBuilder`). Invariants: a leader is active and in the ISR. An ISR is never
empty. Its last member stays in the ISR even if it cannot lead, so that only an unclean election can
lose records. After an unclean election, the ISR contains only the new leader, and the recovery
state is RECOVERING. The leader epoch increases if the leader changes or a replica is removed, but
not if only the ISR changes (metadata version 3.6 and later). Source: `PartitionChangeBuilder`,
`PartitionReassignmentReplicas` and `ReplicationControlManager.generateLeaderAndIsrUpdates`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import Enum, auto

from kio.schema.errors import ErrorCode

from broker_ref.controller.metadata import (
    NO_LEADER,
    RECOVERING,
    ClusterMetadata,
    PartitionMetadata,
)
from broker_ref.controller.records import PartitionChangeRecord
from broker_ref.protocol.errors import ApiError

Replicas = tuple[int, ...]


class Election(Enum):
    """The kinds of leader election (see the table in the module docstring)."""

    ONLINE = auto()
    PREFERRED = auto()
    UNCLEAN = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The target state of a partition, except for its leader."""

    isr: Replicas
    replicas: Replicas
    adding_replicas: Replicas
    removing_replicas: Replicas
    leader_recovery_state: int

    @classmethod
    def of(cls, partition: PartitionMetadata) -> Target:
        """Return the current state of the partition as a target."""
        return cls(
            isr=partition.isr,
            replicas=partition.replicas,
            adding_replicas=partition.adding_replicas,
            removing_replicas=partition.removing_replicas,
            leader_recovery_state=partition.leader_recovery_state,
        )


def change_partition(
    partition: PartitionMetadata,
    *,
    is_acceptable_leader: Callable[[int], bool],
    election: Election = Election.ONLINE,
    target: Target | None = None,
) -> PartitionChangeRecord | None:
    """Return the record that elects a leader and changes `partition` to the target.

    Return None if nothing changes.
    """
    target = _complete_reassignment(target or Target.of(partition))
    leader, unclean = _elect(partition, target, is_acceptable_leader, election)
    isr: Replicas | None = target.isr or partition.isr
    recovery_state: int | None = target.leader_recovery_state
    if unclean:
        isr, recovery_state = (leader,), RECOVERING
    drops_a_replica = not set(partition.replicas) <= set(target.replicas)
    change = PartitionChangeRecord(
        topic_id=partition.topic_id,
        partition_id=partition.partition,
        isr=_if_changed(isr, partition.isr),
        leader=leader if leader != partition.leader or drops_a_replica else None,
        replicas=_if_changed(target.replicas, partition.replicas),
        adding_replicas=_if_changed(target.adding_replicas, partition.adding_replicas),
        removing_replicas=_if_changed(target.removing_replicas, partition.removing_replicas),
        leader_recovery_state=(
            recovery_state if recovery_state != partition.leader_recovery_state else None
        ),
    )
    unchanged = PartitionChangeRecord(topic_id=partition.topic_id, partition_id=partition.partition)
    return None if change == unchanged else change


def leader_and_isr_updates(
    metadata: ClusterMetadata,
    partitions: Iterable[PartitionMetadata],
    *,
    is_unclean_allowed: Callable[[str], bool],
    broker_to_remove: int = NO_LEADER,
    broker_to_add: int = NO_LEADER,
) -> list[PartitionChangeRecord]:
    """Return the partition changes that result from a change to a broker's state.

    `broker_to_remove` is removed from leadership and ISRs even if it is active in the metadata.
    `broker_to_add` can become a leader. `is_unclean_allowed` is called with the name of the topic.
    """

    def is_acceptable_leader(replica: int) -> bool:
        return replica != broker_to_remove and (
            replica == broker_to_add or metadata.is_active(replica)
        )

    changes = []
    for partition in partitions:
        unclean = is_unclean_allowed(partition.topic)
        remaining = tuple(replica for replica in partition.isr if replica != broker_to_remove)
        change = change_partition(
            partition,
            is_acceptable_leader=is_acceptable_leader,
            election=Election.UNCLEAN if unclean else Election.ONLINE,
            target=replace(Target.of(partition), isr=remaining),
        )
        if change is not None:
            changes.append(change)
    return changes


def _complete_reassignment(target: Target) -> Target:
    """Remove the removing replicas if all target replicas are in the ISR."""
    if not target.adding_replicas and not target.removing_replicas:
        return target
    replicas = _without(target.replicas, target.removing_replicas)
    isr = _without(target.isr, target.removing_replicas)
    if not replicas or not set(replicas) <= set(isr):
        return target
    return replace(target, replicas=replicas, isr=isr, adding_replicas=(), removing_replicas=())


def _elect(
    partition: PartitionMetadata,
    target: Target,
    is_acceptable_leader: Callable[[int], bool],
    election: Election,
) -> tuple[int, bool]:
    """Return the leader (-1 if none is eligible) and whether the election was unclean."""

    def is_valid(replica: int) -> bool:
        return replica in target.isr and is_acceptable_leader(replica)

    candidates = (partition.leader, *target.replicas)
    if election is Election.PREFERRED:
        candidates = (target.replicas[0], *candidates)
    for replica in candidates:
        if is_valid(replica):
            return replica, False
    if election is Election.UNCLEAN:
        for replica in target.replicas:
            if is_acceptable_leader(replica):
                return replica, True
    return NO_LEADER, False


def _without(replicas: Replicas, removed: Replicas) -> Replicas:
    return tuple(replica for replica in replicas if replica not in removed)


def _if_changed(value: Replicas | None, before: Replicas) -> Replicas | None:
    return value if value != before else None


def requested_election(
    metadata: ClusterMetadata, partition: PartitionMetadata, *, unclean: bool
) -> PartitionChangeRecord:
    """Return the record of a preferred or unclean election that an administrator requested.

    Raises: ApiError (ELECTION_NOT_NEEDED, PREFERRED_LEADER_NOT_AVAILABLE or
    ELIGIBLE_LEADERS_NOT_AVAILABLE).
    """
    name = f"{partition.topic}-{partition.partition}"
    is_led = partition.leader != NO_LEADER
    if is_led if unclean else partition.leader == partition.replicas[0]:
        raise ApiError(ErrorCode.election_not_needed, f"Leader election is not needed for {name}.")
    change = change_partition(
        partition,
        is_acceptable_leader=metadata.is_active,
        election=Election.UNCLEAN if unclean else Election.PREFERRED,
    )
    if change is not None:
        return change
    if unclean:
        raise ApiError(
            ErrorCode.eligible_leaders_not_available,
            f"No replica of {name} is on an active broker.",
        )
    raise ApiError(
        ErrorCode.preferred_leader_not_available,
        f"The preferred leader of {name}, broker {partition.replicas[0]}, is not active or is "
        "not in the ISR.",
    )
