"""One topic that a producer writes to: its rows, its sequences, and which partitions take turns.

Purpose: what is known and held of a topic from its first row to its last. Invariant: rows without a
key go to partitions that have a leader, as long as there are some. What it must not know: who asks
for metadata, and when rows become batches.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

from pyspark_kafka.client.native.held_rows import HeldRows
from pyspark_kafka.wire.metadata import NO_LEADER, TopicMetadata


@dataclass(slots=True)
class WrittenTopic:
    """What is written to one topic. `unkeyed` counts batches, for the partitions to take turns."""

    rows: HeldRows = field(default_factory=HeldRows)
    next_sequences: dict[int, int] = field(default_factory=dict)
    batch_bytes_max: int = 0
    unkeyed: int = 0
    unknown_since: float | None = None
    topic_id: UUID | None = None

    def in_turn(self, known: TopicMetadata) -> tuple[int, ...]:
        """Partitions for rows without a key, those without a leader left out if others have one."""
        led = [n for n, partition in known.partitions.items() if partition.leader_id != NO_LEADER]
        usable = sorted(led or known.partitions)
        start = self.unkeyed % len(usable)
        return (*usable[start:], *usable[:start])


def known_id(topic: TopicMetadata | None) -> UUID | None:
    """The id of a topic; None where the topic or its id is not known."""
    found = None if topic is None else topic.topic_id
    return found if found is not None and found.int else None
