"""Loads a shard from its partition of `__consumer_offsets`.

Replays the log in steps, so the broker can serve other requests while it loads a large partition.
The shard is LOADING during the replay. Invariants: for each key, the latest record wins. After the
last step, the shard is ACTIVE or FAILED. If the load fails, the reason is logged. Source: Kafka's
`CoordinatorLoaderImpl`.
"""

from __future__ import annotations

import logging
from itertools import islice
from typing import Final

from broker_ref.controller.metadata import ClusterMetadata
from broker_ref.coordination.loader import CoordinatorLoader
from broker_ref.group.classic_group import ClassicGroup
from broker_ref.group.consumer.records import (
    ConsumerGroupMetadataKey,
    decode_consumer_key,
    decode_consumer_value,
)
from broker_ref.group.group_record import group_from_record
from broker_ref.group.records import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitValue,
    decode_group_value,
    decode_key,
    decode_value,
)
from broker_ref.group.shard import Shard, ShardState
from broker_ref.log.batch import NO_PRODUCER_ID, BatchHeader, decode_records
from broker_ref.log.control import decode_marker
from broker_ref.log.errors import LogError
from broker_ref.log.records import Record
from broker_ref.protocol.identifiers import ZERO_UUID

GROUPS_PER_STEP: Final = 2_000
"""The number of groups that one step creates after the log has been read."""

logger = logging.getLogger(__name__)


class Loading:
    """The replay of a shard's log up to the end offset that the log has when replay starts."""

    def __init__(self, shard: Shard, *, metadata: ClusterMetadata) -> None:
        self._shard = shard
        self._metadata = metadata
        self._log = CoordinatorLoader(shard.partition)
        self._groups: dict[str, GroupMetadataValue] = {}
        self._simple_groups: dict[str, None] = {}

    def step(self, now_ms: int) -> bool:
        """Replay the next part of the log. Return True after the last part."""
        partition = self._shard.partition
        try:
            if not self._log.step(self._take):
                return False
            for group_id in tuple(islice(self._groups, GROUPS_PER_STEP)):
                value = self._groups.pop(group_id)
                self._shard.groups[group_id] = group_from_record(group_id, value)
            if self._groups:
                return False
            for group_id in self._simple_groups:
                simple_group = ClassicGroup(group_id, state_timestamp_ms=now_ms)
                self._shard.groups.setdefault(group_id, simple_group)
            self._shard.state = ShardState.ACTIVE
        except LogError as error:
            logger.error(
                "Failed to load groups from %s-%d, because the log cannot be read at offset %d: %s",
                partition.key.topic, partition.key.partition, self._log.offset, error,
            )  # fmt: skip
            self._shard.groups.clear()
            self._shard.state = ShardState.FAILED
        return True

    def _take(self, header: BatchHeader, batch: bytes) -> None:
        if header.is_control:
            marker = decode_marker(batch)
            if marker is not None:
                ended = self._shard.replay_marker(
                    marker.marker,
                    producer_id=header.producer_id,
                    required_offset=header.next_offset,
                )
                self._shard.remove_obsolete_offsets(*ended)
            return
        for record in decode_records(batch):
            self._replay(record, header)

    def _replay(self, record: Record, header: BatchHeader) -> None:
        if record.key is None:
            return
        key = decode_key(record.key)
        if key is None:
            self._replay_consumer_group(record.key, record.value)
            return
        if isinstance(key, GroupMetadataKey):
            if record.value is None:
                self._groups.pop(key.group, None)
                self._simple_groups.pop(key.group, None)
            else:
                self._groups[key.group] = decode_group_value(record.value)
            return
        offset = decode_value(record.value) if record.value is not None else None
        if offset is not None:
            self._simple_groups[key.group] = None
            if not self._is_of_present_topic(key.topic, offset):
                if header.producer_id != NO_PRODUCER_ID:
                    return
                offset = None
        self._shard.replay(
            key,
            offset,
            producer_id=header.producer_id,
            record_offset=record.offset,
            required_offset=header.next_offset,
        )
        self._shard.remove_obsolete_offsets(key)

    def _replay_consumer_group(self, encoded_key: bytes, encoded_value: bytes | None) -> None:
        key = decode_consumer_key(encoded_key)
        if key is not None:
            value = None
            if encoded_value is not None:
                value = decode_consumer_value(key, encoded_value)
            elif isinstance(key, ConsumerGroupMetadataKey):
                self._simple_groups.pop(key.group, None)
            self._shard.replay_consumer_group(key, value)

    def _is_of_present_topic(self, name: str, value: OffsetCommitValue) -> bool:
        """Return whether the topic of the offset still exists with the same topic id."""
        topic = self._metadata.topics.get(name)
        return topic is not None and value.topic_id in (ZERO_UUID, topic.topic_id)
