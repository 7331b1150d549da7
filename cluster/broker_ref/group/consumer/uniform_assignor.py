"""The uniform assignor.

Distributes partitions evenly among the members, and moves as few partitions as possible.
Invariants: a member keeps a partition unless the assignor moves it to balance the assignment. If
all members subscribe to the same topics, the partition counts of the members differ by at most one.
Source: Kafka's `UniformAssignor`, `UniformHomogeneousAssignmentBuilder` and
`UniformHeterogeneousAssignmentBuilder`.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from typing import Final

from broker_ref.group.consumer.assignment import (
    Assignment,
    MemberSpec,
    assignment_of,
    sorted_topics,
)
from broker_ref.protocol.identifiers import Uuid

ITERATIONS_MAX: Final = 16
"""The maximum number of passes over all topics to improve the balance."""

_Partition = tuple[Uuid, int]


def assign_uniformly(
    members: Mapping[str, MemberSpec], partition_counts: Mapping[Uuid, int]
) -> dict[str, Assignment]:
    """Return the target assignment of each member."""
    subscriptions = {member.topic_ids for member in members.values()}
    if len(subscriptions) == 1:
        return _assign_equal_subscriptions(members, partition_counts)
    return _Balancer(members, partition_counts).assign()


def _assign_equal_subscriptions(
    members: Mapping[str, MemberSpec], partition_counts: Mapping[Uuid, int]
) -> dict[str, Assignment]:
    topics = sorted_topics(next(iter(members.values())).topic_ids)
    every = [
        (topic_id, index) for topic_id in topics for index in range(partition_counts[topic_id])
    ]
    quota, extra = divmod(len(every), len(members))
    kept: dict[str, list[_Partition]] = {}
    for member_id, member in members.items():
        kept[member_id] = _still_assignable(member, partition_counts)
    quotas = _quotas(kept, quota, extra)
    for member_id, partitions in kept.items():
        del partitions[quotas[member_id] :]
    taken = {partition for partitions in kept.values() for partition in partitions}
    free = iter([partition for partition in every if partition not in taken])
    for member_id, partitions in kept.items():
        while len(partitions) < quotas[member_id]:
            partitions.append(next(free))
    return {member_id: assignment_of(partitions) for member_id, partitions in kept.items()}


def _quotas(kept: Mapping[str, list[_Partition]], quota: int, extra: int) -> dict[str, int]:
    """Return the number of partitions for each member: `quota`, or `quota` + 1 for `extra` members.

    Members that already own more than `quota` partitions are the first to receive an extra
    partition.
    """
    largest = sorted(kept, key=lambda member_id: len(kept[member_id]) <= quota)
    return {member_id: quota + (index < extra) for index, member_id in enumerate(largest)}


def _still_assignable(member: MemberSpec, partition_counts: Mapping[Uuid, int]) -> list[_Partition]:
    """Return the partitions of the previous assignment that the member may keep.

    If the group was converted from a classic group, the assignment can contain partitions that do
    not exist.
    """
    return [
        (topic_id, index)
        for topic_id in sorted_topics(member.assignment)
        for index in sorted(member.assignment[topic_id])
        if topic_id in member.topic_ids and 0 <= index < partition_counts[topic_id]
    ]


class _Balancer:
    """Assigns partitions to members with different subscriptions."""

    def __init__(
        self, members: Mapping[str, MemberSpec], partition_counts: Mapping[Uuid, int]
    ) -> None:
        self._members = members
        self._partition_counts = partition_counts
        self._owners: dict[_Partition, str] = {}
        self._sizes = dict.fromkeys(members, 0)
        self._index = {member_id: index for index, member_id in enumerate(members)}
        self._subscribers: dict[Uuid, list[str]] = {}
        for member_id, member in members.items():
            for topic_id in member.topic_ids:
                self._subscribers.setdefault(topic_id, []).append(member_id)

    def assign(self) -> dict[str, Assignment]:
        """Return the target assignment of each member."""
        for member_id, member in self._members.items():
            for partition in _still_assignable(member, self._partition_counts):
                self._give(partition, member_id)
        topics = self._by_partitions_per_subscriber()
        for topic_id in topics:
            self._assign_free(topic_id)
        self._balance([topic_id for topic_id in topics if len(self._subscribers[topic_id]) > 1])
        by_member: dict[str, list[_Partition]] = {member_id: [] for member_id in self._members}
        for partition, member_id in self._owners.items():
            by_member[member_id].append(partition)
        return {member_id: assignment_of(owned) for member_id, owned in by_member.items()}

    def _by_partitions_per_subscriber(self) -> list[Uuid]:
        """Return the topics, sorted by descending number of partitions per subscriber."""

        def key(topic_id: Uuid) -> tuple[float, int]:
            subscribers = len(self._subscribers[topic_id])
            return -self._partition_counts[topic_id] / subscribers, subscribers

        return sorted(sorted_topics(self._subscribers), key=key)

    def _give(self, partition: _Partition, member_id: str) -> None:
        previous = self._owners.get(partition)
        if previous is not None:
            self._sizes[previous] -= 1
        self._owners[partition] = member_id
        self._sizes[member_id] += 1

    def _by_size(self, member_ids: Iterable[str]) -> list[tuple[int, int, str]]:
        return [(self._sizes[one], self._index[one], one) for one in member_ids]

    def _assign_free(self, topic_id: Uuid) -> None:
        """Assign the unassigned partitions of a topic to the members with the fewest partitions."""
        least = self._by_size(self._subscribers[topic_id])
        heapq.heapify(least)
        for index in range(self._partition_counts[topic_id]):
            if (topic_id, index) not in self._owners:
                _, position, member_id = least[0]
                self._give((topic_id, index), member_id)
                heapq.heapreplace(least, (self._sizes[member_id], position, member_id))

    def _balance(self, topics: list[Uuid]) -> None:
        for _ in range(ITERATIONS_MAX):
            if not sum(self._balance_topic(topic_id) for topic_id in topics):
                return

    def _balance_topic(self, topic_id: Uuid) -> int:
        """Move a topic's partitions to balance its subscribers' load. Return the number moved."""
        owned: dict[str, list[int]] = {}
        for index in range(self._partition_counts[topic_id]):
            owned.setdefault(self._owners[topic_id, index], []).append(index)
        least = self._by_size(self._subscribers[topic_id])
        most = [(-size, -position, one) for size, position, one in self._by_size(owned)]
        heapq.heapify(least)
        heapq.heapify(most)
        moved = 0
        while most:
            _, position, donor = most[0]
            _, receiver_position, receiver = least[0]
            if self._sizes[donor] - self._sizes[receiver] <= 1:
                break
            self._give((topic_id, owned[donor].pop()), receiver)
            moved += 1
            heapq.heapreplace(least, (self._sizes[receiver], receiver_position, receiver))
            if owned[donor]:
                heapq.heapreplace(most, (-self._sizes[donor], position, donor))
            else:
                heapq.heappop(most)
        return moved
