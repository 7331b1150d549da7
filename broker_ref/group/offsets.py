"""Committed offsets in memory, and the topic that they are written to.

Purpose: hold the offsets of the groups of one partition of `__consumer_offsets`, so that readers
see only what every in-sync replica has, while writers see all. Invariant: an offset is kept as the
values that may still be read, each with the log offset at which it is replicated; `settle` drops
those before one that is. What it must not know: groups' states, requests, and the log.
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
    """A partition that an offset is of."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class _Version:
    """A value, None where the offset is deleted, and the high watermark from which it counts."""

    required_offset: int
    value: OffsetCommitValue | None


_Versions = tuple[_Version, ...]


class OffsetStore:
    """The offsets of groups, by group and partition."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[TopicPartition, _Versions]] = {}

    def put(
        self,
        group: str,
        topic_partition: TopicPartition,
        value: OffsetCommitValue | None,
        *,
        required_offset: int,
    ) -> None:
        """Take in what the log has; None where the offset is deleted."""
        versions = self._groups.setdefault(group, {})
        version = _Version(required_offset, value)
        versions[topic_partition] = (*versions.get(topic_partition, ()), version)

    def settle(self, group: str, topic_partition: TopicPartition, high_watermark: int) -> None:
        """Forget the values before the last one that every replica has."""
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
        """What readers may see of one offset."""
        for version in reversed(self._groups.get(group, {}).get(topic_partition, ())):
            if version.required_offset <= high_watermark:
                return version.value
        return None

    def all_committed(
        self, group: str, high_watermark: int
    ) -> Mapping[TopicPartition, OffsetCommitValue]:
        """What readers may see of a group's offsets."""
        found = {}
        for topic_partition in self._groups.get(group, {}):
            value = self.committed(group, topic_partition, high_watermark)
            if value is not None:
                found[topic_partition] = value
        return found

    def latest(self, group: str) -> Mapping[TopicPartition, OffsetCommitValue]:
        """A group's offsets as the leader's log has them."""
        return {
            topic_partition: versions[-1].value
            for topic_partition, versions in self._groups.get(group, {}).items()
            if versions[-1].value is not None
        }

    def stable_from(self, group: str) -> int:
        """The high watermark from which readers see all that is written of a group."""
        versions = self._groups.get(group, {}).values()
        return max((one[-1].required_offset for one in versions), default=0)

    def groups(self) -> Iterator[str]:
        """The groups that have offsets."""
        return iter(tuple(self._groups))


def offsets_topic(config: BrokerConfig) -> NewTopic:
    """The offsets topic as the broker makes it when a group first needs it."""
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
