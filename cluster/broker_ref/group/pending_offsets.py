"""The pending offsets of open transactions.

Maps each producer id to the offsets that TxnOffsetCommit has written to one partition of
`__consumer_offsets`. Invariants: an offset remains pending until the marker of its transaction is
written or the offset is deleted. Only the latest offset for each producer, group and partition is
retained. Source: Kafka's `OffsetMetadataManager.pendingTransactionalOffsets` and its
`OpenTransactions`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from broker_ref.frozen import dataclass
from broker_ref.group.offsets import TopicPartition
from broker_ref.group.records import OffsetCommitValue


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingOffset:
    """An offset of an open transaction, and the log offset of its record."""

    value: OffsetCommitValue
    record_offset: int


PendingOfGroup = Mapping[TopicPartition, PendingOffset]


class PendingOffsets:
    """The pending offsets by producer id, group and partition."""

    def __init__(self) -> None:
        self._producers: dict[int, dict[str, dict[TopicPartition, PendingOffset]]] = {}
        self._open: dict[str, dict[TopicPartition, set[int]]] = {}

    def put(
        self, producer_id: int, group: str, topic_partition: TopicPartition, pending: PendingOffset
    ) -> None:
        """Add an offset of an open transaction.

        The offset replaces the producer's earlier offset for the same group and partition.
        """
        of_producer = self._producers.setdefault(producer_id, {})
        of_producer.setdefault(group, {})[topic_partition] = pending
        producers = self._open.setdefault(group, {}).setdefault(topic_partition, set())
        producers.add(producer_id)

    def remove(self, group: str, topic_partition: TopicPartition) -> None:
        """Remove a group's pending offsets for a partition from all open transactions.

        This method is called when the committed offset of the partition is deleted.
        """
        for producer_id in self._open.get(group, {}).get(topic_partition, set()).copy():
            self._close(producer_id, group, topic_partition)
            of_producer = self._producers[producer_id]
            del of_producer[group][topic_partition]
            if not of_producer[group]:
                del of_producer[group]
            if not of_producer:
                del self._producers[producer_id]

    def end(self, producer_id: int) -> Mapping[str, PendingOfGroup]:
        """Remove and return the pending offsets of the producer's transaction, by group."""
        ended = self._producers.pop(producer_id, {})
        for group, offsets in ended.items():
            for topic_partition in offsets:
                self._close(producer_id, group, topic_partition)
        return ended

    def has(self, group: str, topic_partition: TopicPartition) -> bool:
        """Return whether an open transaction has a pending offset for this partition."""
        return topic_partition in self._open.get(group, {})

    def of_group(self, group: str) -> tuple[TopicPartition, ...]:
        """Return the partitions for which a group has pending offsets."""
        return tuple(self._open.get(group, ()))

    def groups(self) -> Iterator[str]:
        """Return the groups that have pending offsets."""
        return iter(tuple(self._open))

    def _close(self, producer_id: int, group: str, topic_partition: TopicPartition) -> None:
        partitions = self._open[group]
        producers = partitions[topic_partition]
        producers.discard(producer_id)
        if not producers:
            del partitions[topic_partition]
        if not partitions:
            del self._open[group]
