"""Leader elections and the resulting partition changes.

| election  | candidates, in this order                              | used for                   |
| --------- | ------------------------------------------------------ | -------------------------- |
| ONLINE    | the current leader, then the ISR in replica order      | broker state changes       |
| PREFERRED | the first replica if it is in the ISR, then as ONLINE  | ElectLeaders, rebalancing  |
| UNCLEAN   | as ONLINE, then the active replicas in replica order   | unclean leader election    |

The eligible leader replicas (ELR, KIP-966) are the replicas that have left an ISR with fewer than
`min.insync.replicas` members. These replicas contain all committed records, because the high
watermark does not advance while the ISR is below this minimum. A replica loses its eligibility if
its broker restarts without a clean shutdown, because the disk may have lost records. If the ISR is
empty, a clean election selects a leader from the ELR. If the ELR is also empty, the last leader is
elected when it becomes active. This election is unclean, but does not require
`unclean.leader.election.enable`.

A change to a partition is written as one record, or as no record if the partition is already in its
target state. Invariants: a leader is active and in the ISR. Only an unclean election can lose
records. After an unclean election, the ISR contains only the new leader, the ELR is empty, and the
recovery state is RECOVERING. A replica is never in both the ISR and the ELR. If the ELR is
disabled, an ISR never becomes empty: its last member remains even if this member cannot lead. The
leader epoch increases if the leader changes or a replica is removed, but not if only the ISR
changes (metadata version 3.6 and later). Source: `PartitionChangeBuilder`,
`PartitionReassignmentReplicas` and `ReplicationControlManager.generateLeaderAndIsrUpdates`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from enum import Enum, auto

from kio.schema.errors import ErrorCode

from broker_ref.controller.metadata import (
    NO_LEADER,
    RECOVERING,
    ClusterMetadata,
    PartitionMetadata,
)
from broker_ref.controller.records import PartitionChangeRecord
from broker_ref.frozen import dataclass
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
    def of(cls, partition: PartitionMetadata, *, isr: Replicas | None = None) -> Target:
        """Return a target equal to the current state, with a different ISR if `isr` is set."""
        return cls(
            isr=partition.isr if isr is None else isr,
            replicas=partition.replicas,
            adding_replicas=partition.adding_replicas,
            removing_replicas=partition.removing_replicas,
            leader_recovery_state=partition.leader_recovery_state,
        )


def change_partition(
    partition: PartitionMetadata,
    *,
    is_acceptable_leader: Callable[[int], bool],
    min_isr: int | None,
    election: Election = Election.ONLINE,
    target: Target | None = None,
    unclean_shutdown: int = NO_LEADER,
) -> PartitionChangeRecord | None:
    """Return the record that elects a leader and brings `partition` into the state `target`.

    `min_isr` is the effective `min.insync.replicas`, or None if eligible leader replicas are
    disabled. `unclean_shutdown` is the id of a broker that has restarted without a clean shutdown.
    Return None if nothing changes.
    """
    target = _complete_reassignment(target or Target.of(partition))
    elr = _eligible_replicas(partition, target, min_isr, unclean_shutdown)
    leader, unclean = _elect(
        partition, target, elr, is_acceptable_leader, election, is_elr_enabled=min_isr is not None
    )
    isr = target.isr if target.isr or min_isr is not None else partition.isr
    recovery_state: int | None = target.leader_recovery_state
    if unclean:
        isr, elr, recovery_state = (leader,), (), RECOVERING
    elif leader in elr:
        isr, elr = (leader,), _without(elr, (leader,))
    if min_isr is None:
        elr = ()
    drops_a_replica = not set(partition.replicas) <= set(target.replicas)
    new_leader = leader if leader != partition.leader or drops_a_replica else None
    change = PartitionChangeRecord(
        topic_id=partition.topic_id,
        partition_id=partition.partition,
        isr=_if_changed(isr, partition.isr),
        leader=new_leader,
        replicas=_if_changed(target.replicas, partition.replicas),
        adding_replicas=_if_changed(target.adding_replicas, partition.adding_replicas),
        removing_replicas=_if_changed(target.removing_replicas, partition.removing_replicas),
        leader_recovery_state=(
            recovery_state if recovery_state != partition.leader_recovery_state else None
        ),
        eligible_leader_replicas=_if_changed(elr, partition.eligible_leader_replicas),
        last_known_elr=(
            None if min_isr is None else _last_known_leader_change(partition, new_leader)
        ),
    )
    unchanged = PartitionChangeRecord(topic_id=partition.topic_id, partition_id=partition.partition)
    return None if change == unchanged else change


def leader_and_isr_updates(
    metadata: ClusterMetadata,
    partitions: Iterable[PartitionMetadata],
    *,
    is_unclean_allowed: Callable[[str], bool],
    min_isr: Callable[[str], int | None],
    broker_to_remove: int = NO_LEADER,
    broker_to_add: int = NO_LEADER,
    unclean_shutdown: int = NO_LEADER,
) -> list[PartitionChangeRecord]:
    """Return the partition changes that result from a change to a broker's state.

    `broker_to_remove` loses leadership and is removed from all ISRs, even if the broker is active
    in the metadata. The same applies to the broker `unclean_shutdown`, which is also removed from
    all ELRs. `broker_to_add` can become a leader. The callbacks `is_unclean_allowed` and `min_isr`
    receive the name of the topic.
    """
    removed = {broker_to_remove, unclean_shutdown}

    def is_acceptable_leader(replica: int) -> bool:
        return replica not in removed and (replica == broker_to_add or metadata.is_active(replica))

    changes = []
    for partition in partitions:
        unclean = is_unclean_allowed(partition.topic)
        remaining = tuple(replica for replica in partition.isr if replica not in removed)
        change = change_partition(
            partition,
            is_acceptable_leader=is_acceptable_leader,
            min_isr=min_isr(partition.topic),
            election=Election.UNCLEAN if unclean else Election.ONLINE,
            target=Target.of(partition, isr=remaining),
            unclean_shutdown=unclean_shutdown,
        )
        if change is not None:
            changes.append(change)
    return changes


def _complete_reassignment(target: Target) -> Target:
    """Complete the reassignment if all adding replicas are in the ISR.

    If the reassignment reduces the number of replicas, all target replicas must be in the ISR. A
    completed reassignment drops the removing replicas.
    Source: `PartitionReassignmentReplicas.maybeCompleteReassignment`.
    """
    adding, removing = target.adding_replicas, target.removing_replicas
    if not adding and not removing:
        return target
    replicas = _without(target.replicas, removing)
    isr = _without(target.isr, removing)
    required = replicas if len(adding) < len(removing) else adding
    if not isr or not set(required) <= set(isr):
        return target
    return replace(target, replicas=replicas, isr=isr, adding_replicas=(), removing_replicas=())


def _eligible_replicas(
    partition: PartitionMetadata, target: Target, min_isr: int | None, unclean_shutdown: int
) -> Replicas:
    """Return the ELR that belongs to the ISR in `target` (`maybePopulateTargetElr`).

    The ELR is empty if this ISR has at least `min_isr` members. Otherwise, it contains the previous
    members of the ISR and the ELR that are not in the new ISR. If the feature is disabled
    (`min_isr` is None), the stored members of the ELR are used for one more election. A replica
    that a reassignment removes is no longer eligible, because its log is deleted. Kafka does not
    exclude such replicas.
    """
    members = set(partition.eligible_leader_replicas)
    if min_isr is not None:
        if len(target.isr) >= min_isr:
            return ()
        members.update(partition.isr)
    members.intersection_update(target.replicas)
    return tuple(sorted(members - {*target.isr, unclean_shutdown}))


def _last_known_leader_change(
    partition: PartitionMetadata, new_leader: int | None
) -> Replicas | None:
    """Return the new `last_known_elr`, or None if it does not change.

    This field contains the last leader while the partition has no leader
    (`maybeUpdateLastKnownLeader`).
    """
    if new_leader is None:
        return None
    if new_leader == NO_LEADER:
        return None if partition.last_known_elr else (partition.leader,)
    return () if partition.last_known_elr else None


def _elect(
    partition: PartitionMetadata,
    target: Target,
    elr: Replicas,
    is_acceptable_leader: Callable[[int], bool],
    election: Election,
    *,
    is_elr_enabled: bool,
) -> tuple[int, bool]:
    """Return the leader (-1 if there is no candidate) and whether the election was unclean."""
    clean = target.isr or elr

    def is_valid(replica: int) -> bool:
        return replica in clean and is_acceptable_leader(replica)

    candidates = (partition.leader, *target.replicas)
    if election is Election.PREFERRED:
        candidates = (target.replicas[0], *candidates)
    for replica in candidates:
        if is_valid(replica):
            return replica, False
    if is_elr_enabled and not clean and len(partition.last_known_elr) == 1:
        (last_leader,) = partition.last_known_elr
        if is_acceptable_leader(last_leader):
            return last_leader, True
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
    metadata: ClusterMetadata, partition: PartitionMetadata, *, unclean: bool, min_isr: int | None
) -> PartitionChangeRecord:
    """Return the record for a preferred or unclean election that an administrator requested.

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
        min_isr=min_isr,
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
