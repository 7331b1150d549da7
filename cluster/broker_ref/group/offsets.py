"""Committed offsets in memory, and the topic that stores them.

A store contains the offsets of all groups in one partition of `__consumer_offsets`. OffsetFetch
returns only replicated offsets, but the coordinator also uses offsets that are not replicated yet.
Invariant: `remove_obsolete` removes only values that can no longer be read. A value is replicated
when the high watermark reaches its `required_offset`. Source: Kafka's `OffsetMetadataManager`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from broker_ref.config import BrokerConfig
from broker_ref.controller.metadata import OFFSETS_TOPIC
from broker_ref.controller.topics import NewTopic
from broker_ref.frozen import dataclass
from broker_ref.group.records import OffsetCommitValue


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPartition:
    """A topic partition for which a group commits offsets."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class _Version:
    """A committed offset, with the log offset of its record.

    `value` is None if the offset was deleted. `record_offset` is the log offset of the record that
    contains the value. The value is replicated when the high watermark reaches `required_offset`,
    which is the log offset after the batch of the record. If the record belongs to a transaction,
    `required_offset` is the log offset after the commit marker.
    """

    required_offset: int
    record_offset: int
    value: OffsetCommitValue | None


_Versions = tuple[_Version, ...]


class OffsetStore:
    """The committed offsets by group and partition."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[TopicPartition, _Versions]] = {}

    def put(
        self,
        group: str,
        topic_partition: TopicPartition,
        value: OffsetCommitValue | None,
        *,
        record_offset: int,
        required_offset: int,
    ) -> None:
        """Add a committed offset from the log. If `value` is None, the offset is deleted."""
        versions = self._groups.setdefault(group, {})
        version = _Version(required_offset, record_offset, value)
        versions[topic_partition] = (*versions.get(topic_partition, ()), version)

    def put_if_later(
        self,
        group: str,
        topic_partition: TopicPartition,
        value: OffsetCommitValue,
        *,
        record_offset: int,
        required_offset: int,
    ) -> None:
        """Add a value that a transaction committed, unless the log contains a later record.

        The latest record wins, even if its commit marker precedes other markers, because compaction
        retains the last record for each key.
        """
        versions = self._groups.get(group, {}).get(topic_partition, ())
        last = versions[-1] if versions else None
        if last is None or last.record_offset < record_offset:
            self.put(
                group,
                topic_partition,
                value,
                record_offset=record_offset,
                required_offset=required_offset,
            )

    def remove_obsolete(
        self, group: str, topic_partition: TopicPartition, high_watermark: int
    ) -> None:
        """Remove the values before the last replicated value."""
        offsets = self._groups.get(group, {})
        versions = offsets.get(topic_partition)
        if versions is None:
            return
        while len(versions) > 1 and versions[1].required_offset <= high_watermark:
            versions = versions[1:]
        first = versions[0]
        if first.value is None and first.required_offset <= high_watermark:
            versions = versions[1:]
        if versions:
            offsets[topic_partition] = versions
        else:
            del offsets[topic_partition]
            if not offsets:
                del self._groups[group]

    def committed(
        self, group: str, topic_partition: TopicPartition, high_watermark: int
    ) -> OffsetCommitValue | None:
        """Return the replicated value for one partition, or None."""
        for version in reversed(self._groups.get(group, {}).get(topic_partition, ())):
            if version.required_offset <= high_watermark:
                return version.value
        return None

    def all_committed(
        self, group: str, high_watermark: int
    ) -> Mapping[TopicPartition, OffsetCommitValue]:
        """Return the replicated offsets of a group."""
        found = {}
        for topic_partition in self._groups.get(group, {}):
            value = self.committed(group, topic_partition, high_watermark)
            if value is not None:
                found[topic_partition] = value
        return found

    def latest(self, group: str) -> Mapping[TopicPartition, OffsetCommitValue]:
        """Return all offsets of a group in the leader's log, including unreplicated offsets."""
        return {
            topic_partition: versions[-1].value
            for topic_partition, versions in self._groups.get(group, {}).items()
            if versions[-1].value is not None
        }

    def groups(self) -> Iterator[str]:
        """Return the groups that have offsets."""
        return iter(tuple(self._groups))


def offsets_topic(config: BrokerConfig) -> NewTopic:
    """Return the definition of the `__consumer_offsets` topic, which is created on first use."""
    return NewTopic(
        name=OFFSETS_TOPIC,
        partition_count=config.offsets_topic_num_partitions,
        replication_factor=config.offsets_topic_replication_factor,
        configs={
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(config.offsets_topic_segment_bytes),
        },
    )
