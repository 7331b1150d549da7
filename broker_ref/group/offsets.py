"""Committed offsets in memory, and the topic that stores them.

Purpose: the offsets of the groups of one partition of `__consumer_offsets`. Readers see only
replicated offsets, writers see all. Invariant: an offset is kept as the list of values that may
still be read, each with the high watermark at which it is replicated; `settle` drops obsolete
values. Must not know: the states of groups, requests, the log.
Source: Kafka's `OffsetMetadataManager`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from broker_ref.config import BrokerConfig
from broker_ref.controller.metadata import OFFSETS_TOPIC
from broker_ref.controller.topics import NewTopic
from broker_ref.group.records import OffsetCommitValue


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPartition:
    """A topic partition with a committed offset."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class _Version:
    """A value (None if deleted) and the high watermark at which it is replicated.

    `record_offset` is the offset of the record, which in a transaction precedes the marker.
    """

    required_offset: int
    record_offset: int
    value: OffsetCommitValue | None


_Versions = tuple[_Version, ...]


class OffsetStore:
    """The offsets by group and partition."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[TopicPartition, _Versions]] = {}
        self._decided: dict[str, int] = {}

    def put(
        self,
        group: str,
        topic_partition: TopicPartition,
        value: OffsetCommitValue | None,
        *,
        record_offset: int,
        required_offset: int,
    ) -> None:
        """Add a value of the log; None where the offset is deleted."""
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
        """Add a value that a transaction committed, unless the log has a later record.

        The order of the records decides, not the order of the markers, because compaction keeps the
        last record of a key, whatever its transaction.
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

    def note_decision(self, group: str, *, required_offset: int) -> None:
        """Record that a transaction of the group ended, visible from this high watermark on."""
        self._decided[group] = required_offset

    def settle_decision(self, group: str, high_watermark: int) -> None:
        """Drop the record of the group's last transaction end once it is replicated."""
        if self._decided.get(group, high_watermark + 1) <= high_watermark:
            del self._decided[group]

    def settle(self, group: str, topic_partition: TopicPartition, high_watermark: int) -> None:
        """Drop the values before the last replicated one."""
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
        """Return the replicated value of one offset."""
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
        """Return a group's offsets in the leader's log, replicated or not."""
        return {
            topic_partition: versions[-1].value
            for topic_partition, versions in self._groups.get(group, {}).items()
            if versions[-1].value is not None
        }

    def stable_from(self, group: str) -> int:
        """Return the high watermark from which all writes of a group are replicated."""
        versions = self._groups.get(group, {}).values()
        last = max((one[-1].required_offset for one in versions), default=0)
        return max(last, self._decided.get(group, 0))

    def groups(self) -> Iterator[str]:
        """Return the groups with offsets."""
        return iter(tuple(self._groups))


def offsets_topic(config: BrokerConfig) -> NewTopic:
    """Return the offsets topic, which a broker creates for the first group."""
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
