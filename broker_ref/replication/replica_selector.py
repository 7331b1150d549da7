"""Selection of the replica that a consumer should read from (KIP-392).

Purpose: choose among the in-sync replicas by the client's rack. Invariant: the chosen replica has
the requested offset. Must not know: requests and logs.
Source: Kafka's `ReplicaManager.findPreferredReadReplica` and `RackAwareReplicaSelector`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaView:
    """The leader's view of a follower; `caught_up_ms` is when it was last caught up."""

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
    """Return the broker to read `fetch_offset` from, or None for the leader.

    `followers` are in sync. The leader is preferred in its own rack; among several followers in the
    client's rack, the one with the highest log end offset.
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
