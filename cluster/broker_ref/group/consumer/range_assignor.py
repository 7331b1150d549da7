"""The range assignor.

Assigns a contiguous range of a topic's partitions to each subscriber of the topic. If all members
have the same subscriptions, each member receives the same partition numbers in all topics with
equal partition counts. Therefore, each member can join the records of co-partitioned topics.
Invariants: the sizes of a topic's ranges differ by at most one, and the first members receive the
larger ranges. Static members precede dynamic members. Source: Kafka's `RangeAssignor`.
"""

from __future__ import annotations

from collections.abc import Mapping

from broker_ref.group.consumer.assignment import Assignment, MemberSpec
from broker_ref.protocol.identifiers import Uuid


def assign_ranges(
    members: Mapping[str, MemberSpec], partition_counts: Mapping[Uuid, int]
) -> dict[str, Assignment]:
    """Return the target assignment of each member. The previous assignment is ignored."""
    order = sorted(members, key=lambda member_id: _position(member_id, members[member_id]))
    subscribers: dict[Uuid, list[str]] = {}
    for member_id in order:
        for topic_id in members[member_id].topic_ids:
            subscribers.setdefault(topic_id, []).append(member_id)
    result: dict[str, dict[Uuid, frozenset[int]]] = {member_id: {} for member_id in members}
    for topic_id, member_ids in subscribers.items():
        quota, extra = divmod(partition_counts[topic_id], len(member_ids))
        start = 0
        for index, member_id in enumerate(member_ids):
            end = start + quota + (index < extra)
            if start < end:
                result[member_id][topic_id] = frozenset(range(start, end))
            start = end
    return dict(result)


def _position(member_id: str, member: MemberSpec) -> tuple[bool, str]:
    if member.instance_id is not None:
        return False, member.instance_id
    return True, member_id
