"""The partitions of a transaction as records and requests name them: topic by topic.

Purpose: group and sort them, so that the same partitions always make the same bytes. What it must
not know: what they are named for.
"""

from __future__ import annotations

from collections.abc import Iterable

from broker_ref.replication.partition import PartitionKey


def in_order(partitions: Iterable[PartitionKey]) -> list[PartitionKey]:
    """By topic, then by number."""
    return sorted(partitions, key=lambda key: (key.topic, key.partition))


def by_topic(partitions: Iterable[PartitionKey]) -> dict[str, tuple[int, ...]]:
    """Each topic's numbers, in order."""
    found: dict[str, list[int]] = {}
    for key in in_order(partitions):
        found.setdefault(key.topic, []).append(key.partition)
    return {topic: tuple(numbers) for topic, numbers in found.items()}
