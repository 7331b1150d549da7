"""The state of one topic in a producer: its rows, its sequences, its turn of partitions.

Invariant: rows without a key go to partitions that have a leader, if there is one. What it must not
know: who refreshes metadata, and when rows are encoded.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

from pyspark_kafka.client.native.row_buffer import RowBuffer
from pyspark_kafka.wire.metadata import NO_LEADER, TopicMetadata


@dataclass(slots=True)
class TopicState:
    """One topic that a producer writes to.

    `unkeyed_batches` counts batches, so that partitions take turns for rows without a key.
    `unknown_since` is when a broker first answered that the topic does not exist.
    """

    rows: RowBuffer = field(default_factory=RowBuffer)
    next_sequences: dict[int, int] = field(default_factory=dict)
    batch_bytes_max: int = 0
    unkeyed_batches: int = 0
    unknown_since: float | None = None
    topic_id: UUID | None = None

    def unkeyed_partitions(self, known: TopicMetadata) -> tuple[int, ...]:
        """Return the partitions for rows without a key, beginning with the next in turn."""
        led = [n for n, partition in known.partitions.items() if partition.leader_id != NO_LEADER]
        usable = sorted(led or known.partitions)
        start = self.unkeyed_batches % len(usable)
        return (*usable[start:], *usable[:start])


def known_id(topic: TopicMetadata | None) -> UUID | None:
    """Return the id of a topic; None if the topic or its id is unknown."""
    found = None if topic is None else topic.topic_id
    return found if found is not None and found.int else None
