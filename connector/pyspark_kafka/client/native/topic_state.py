"""The state of one topic in a producer: its buffered rows and the next sequence numbers.

Invariant: rows without a key are written to partitions that have a leader, if such partitions
exist.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

from pyspark_kafka.client.native.row_buffer import RowBuffer
from pyspark_kafka.wire.metadata import NO_LEADER, TopicMetadata


@dataclass(slots=True)
class TopicState:
    """The state of one topic that a producer writes to.

    `next_sequences` maps each partition to its next sequence number. `unkeyed_batches` is a counter
    of batches, which determines the next partition for rows without a key. `unknown_since` is the
    time at which a broker first reported that the topic does not exist. `topic_id` is the last id
    that a broker returned, or None if no broker has returned an id.
    """

    rows: RowBuffer = field(default_factory=RowBuffer)
    next_sequences: dict[int, int] = field(default_factory=dict)
    batch_bytes_max: int = 0
    unkeyed_batches: int = 0
    unknown_since: float | None = None
    topic_id: UUID | None = None

    def unkeyed_partitions(self, known: TopicMetadata) -> tuple[int, ...]:
        """Return the partitions for rows without a key, starting with the next one to use."""
        led_partitions = [
            n for n, partition in known.partitions.items() if partition.leader_id != NO_LEADER
        ]
        usable = sorted(led_partitions or known.partitions)
        start = self.unkeyed_batches % len(usable)
        return (*usable[start:], *usable[:start])


def known_id(topic: TopicMetadata | None) -> UUID | None:
    """Return the id of a topic, or None if the topic or its id is unknown."""
    found = None if topic is None else topic.topic_id
    return found if found is not None and found.int else None
