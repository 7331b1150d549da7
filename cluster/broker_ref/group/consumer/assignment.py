"""Partition assignments, and the member descriptions that an assignor receives.

Invariant: an assignment does not contain topics without partitions, so equivalent assignments
compare equal. Source: Kafka's `Assignment` and `MemberSubscriptionAndAssignmentImpl`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from types import MappingProxyType
from typing import Final

from broker_ref.frozen import dataclass
from broker_ref.protocol.identifiers import Uuid

Assignment = Mapping[Uuid, frozenset[int]]
"""Partitions by topic id."""

AssignmentWithEpochs = Mapping[Uuid, Mapping[int, int]]
"""The epoch in which each partition was assigned, by topic id and partition (KIP-1251)."""

NOTHING: Final[Assignment] = MappingProxyType({})

NOTHING_WITH_EPOCHS: Final[AssignmentWithEpochs] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSpec:
    """A member, the existing topics to which it subscribes, and its previous target assignment."""

    topic_ids: frozenset[Uuid]
    instance_id: str | None = None
    assignment: Assignment = field(default_factory=lambda: NOTHING)


def assignment_of(partitions: Iterable[tuple[Uuid, int]]) -> dict[Uuid, frozenset[int]]:
    """Return an assignment with these partitions."""
    by_topic: dict[Uuid, set[int]] = {}
    for topic_id, partition in partitions:
        by_topic.setdefault(topic_id, set()).add(partition)
    return {topic_id: frozenset(found) for topic_id, found in by_topic.items()}


def with_epoch(assignment: Assignment, epoch: int) -> dict[Uuid, dict[int, int]]:
    """Return an assignment in which all partitions have the same epoch."""
    return {
        topic_id: dict.fromkeys(sorted(partitions), epoch)
        for topic_id, partitions in assignment.items()
    }


def without_epochs(assignment: AssignmentWithEpochs) -> dict[Uuid, frozenset[int]]:
    """Return only the partitions of an assignment."""
    return {topic_id: frozenset(partitions) for topic_id, partitions in assignment.items()}


def sorted_topics(topic_ids: Iterable[Uuid]) -> list[Uuid]:
    """Sort topic ids as Kafka does: compare the two halves of each id as signed numbers."""
    return sorted(topic_ids, key=_signed_halves)


def _signed_halves(topic_id: Uuid) -> tuple[int, int]:
    data = topic_id.bytes
    return (
        int.from_bytes(data[:8], "big", signed=True),
        int.from_bytes(data[8:], "big", signed=True),
    )
