"""Select the replica from which a consumer reads (KIP-392).

An in-sync replica in the client's rack is selected. Invariant: the log of the selected replica
contains the requested offset. Source: Kafka's `ReplicaManager.findPreferredReadReplica` and
`RackAwareReplicaSelector`.
"""

from __future__ import annotations

from collections.abc import Iterable

from broker_ref.frozen import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaView:
    """The leader's view of a follower. `caught_up_ms` is the time at which it last caught up."""

    broker_id: int
    log_start_offset: int
    log_end_offset: int
    caught_up_ms: int
    rack: str | None


def preferred_read_replica(
    followers: Iterable[ReplicaView],
    *,
    leader_rack: str | None,
    client_rack: str,
    fetch_offset: int,
) -> int | None:
    """Return the broker from which `fetch_offset` should be read, or None for the leader.

    All `followers` must be in sync. The leader is selected if it is in the client's rack.
    Otherwise, the follower in this rack with the highest log end offset is selected.
    """
    if not client_rack or client_rack == leader_rack:
        return None
    near = [
        follower
        for follower in followers
        if follower.rack == client_rack
        and follower.log_start_offset <= fetch_offset <= follower.log_end_offset
    ]
    best = max(
        near,
        key=lambda follower: (follower.log_end_offset, follower.caught_up_ms, follower.broker_id),
        default=None,
    )
    return None if best is None else best.broker_id
