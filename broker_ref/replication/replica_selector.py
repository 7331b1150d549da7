"""Which replica a consumer is to read from (KIP-392).

Purpose: choose among a partition's in-sync replicas by the rack of the client. Invariant: nobody is
sent to a replica that has not what it asks for. What it must not know: requests and logs.
Source: Kafka's `ReplicaManager.findPreferredReadReplica` and `RackAwareReplicaSelector`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaView:
    """What the leader knows of a follower; `caught_up_ms` is when it last had everything."""

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
    """The broker to read `fetch_offset` from; None where that is the leader.

    `followers` are those in sync. The leader is preferred in its own rack; of several followers
    in the client's rack, the one that is furthest.
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
