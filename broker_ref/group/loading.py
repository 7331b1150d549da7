"""Reading a partition of `__consumer_offsets` into a shard.

Purpose: replay the log in steps, so that a broker that takes a large partition over goes on
serving the others; meanwhile the shard is LOADING. Invariant: the last record of a key counts;
after the last step the shard has what its writes had made of it, and is ACTIVE, or FAILED with the
reason in the log. What it must not know: requests, and why the broker leads the partition.
Source: Kafka's `CoordinatorLoaderImpl`.
"""

from __future__ import annotations

import logging

from broker_ref.controller.metadata import ClusterMetadata
from broker_ref.coordination.replay import Replay
from broker_ref.group.group import Group
from broker_ref.group.offsets import TopicPartition
from broker_ref.group.records import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitValue,
    decode_group_value,
    decode_key,
    decode_value,
)
from broker_ref.group.shard import Shard, ShardState
from broker_ref.group.stored_group import group_from_record
from broker_ref.log.batch import BatchHeader, decode_records
from broker_ref.log.errors import LogError
from broker_ref.log.records import Record
from broker_ref.protocol.identifiers import ZERO_UUID

logger = logging.getLogger(__name__)


class Loading:
    """The replay of one shard's log, from its start to its end as it was at first."""

    def __init__(self, shard: Shard, *, metadata: ClusterMetadata) -> None:
        self._shard = shard
        self._metadata = metadata
        self._log = Replay(shard.partition)
        self._groups: dict[str, GroupMetadataValue] = {}

    def step(self, now_ms: int) -> bool:
        """Read on; whether that was the last step."""
        partition = self._shard.partition
        try:
            if not self._log.step(self._take):
                return False
            self._finish(now_ms)
            self._shard.state = ShardState.ACTIVE
        except LogError as error:
            logger.error(
                "Groups of %s-%d have no coordinator: the log cannot be read at offset %d: %s",
                partition.key.topic, partition.key.partition, self._log.offset, error,
            )  # fmt: skip
            self._shard.groups.clear()
            self._shard.state = ShardState.FAILED
        return True

    def _take(self, header: BatchHeader, batch: bytes) -> None:
        if not header.is_control:
            for record in decode_records(batch):
                self._replay(record, header.next_offset)

    def _replay(self, record: Record, required_offset: int) -> None:
        key = decode_key(record.key) if record.key is not None else None
        if key is None:
            return
        if isinstance(key, GroupMetadataKey):
            if record.value is None:
                self._groups.pop(key.group, None)
            else:
                self._groups[key.group] = decode_group_value(record.value)
            return
        offset = decode_value(record.value) if record.value is not None else None
        if offset is not None and not self._is_of_present_topic(key.topic, offset):
            offset = None
        topic_partition = TopicPartition(topic=key.topic, partition=key.partition)
        offsets = self._shard.offsets
        offsets.put(key.group, topic_partition, offset, required_offset=required_offset)
        offsets.settle(key.group, topic_partition, self._shard.high_watermark)

    def _is_of_present_topic(self, name: str, value: OffsetCommitValue) -> bool:
        """Whether the offset's topic is still there, and not another of the same name."""
        topic = self._metadata.topics.get(name)
        return topic is not None and value.topic_id in (ZERO_UUID, topic.topic_id)

    def _finish(self, now_ms: int) -> None:
        groups = self._shard.groups
        for group_id, value in self._groups.items():
            groups[group_id] = group_from_record(group_id, value)
        for group_id in self._shard.offsets.groups():
            if group_id not in groups and self._shard.offsets.latest(group_id):
                groups[group_id] = Group(group_id, state_timestamp_ms=now_ms)
