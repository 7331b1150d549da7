"""Groups partitions by topic for records and requests.

Partitions are sorted, so that equal sets of partitions have the same encoding.
"""

from __future__ import annotations

from collections.abc import Iterable

from broker_ref.replication.partition import PartitionKey


def in_order(partitions: Iterable[PartitionKey]) -> list[PartitionKey]:
    """Sort partitions by topic and index."""
    return sorted(partitions, key=lambda key: (key.topic, key.partition))


def by_topic(partitions: Iterable[PartitionKey]) -> dict[str, tuple[int, ...]]:
    """Return the sorted partition indexes of each topic."""
    found: dict[str, list[int]] = {}
    for key in in_order(partitions):
        found.setdefault(key.topic, []).append(key.partition)
    return {topic: tuple(numbers) for topic, numbers in found.items()}
