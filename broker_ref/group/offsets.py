"""The committed offsets of groups, kept in `__consumer_offsets`.

Purpose: commit, look up and forget offsets of consumers that are no members of their group (they
assign partitions themselves), as the coordinator of the groups whose partition this broker leads.
Invariant: what is looked up is what the log holds: an offset is remembered after its append, and
rebuilt from the log at start. A group's partition is Java's hash of its name modulo the partition
count. What it must not know: requests and their versions.
Source: Kafka's `OffsetMetadataManager`, `GroupMetadataManager.partitionFor`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.config import BrokerConfig
from broker_ref.controller.controller import NewTopic
from broker_ref.controller.metadata import OFFSETS_TOPIC, ClusterMetadata
from broker_ref.group.records import (
    OffsetCommitKey,
    OffsetCommitValue,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from broker_ref.log.batch import HEADER_BYTES, decode_records, encode_batch, parse_batches
from broker_ref.log.errors import LogError
from broker_ref.log.records import Record
from broker_ref.protocol.errors import ApiError
from broker_ref.protocol.identifiers import ZERO_UUID
from broker_ref.replication.partition import NO_EPOCH, Appended, Partition
from broker_ref.replication.replica_manager import ReplicaManager

logger = logging.getLogger(__name__)

NO_GENERATION: Final = -1
GROUP_ID_BYTES_MAX: Final = 2**15 - 1
"""What a string in a record of the offsets topic can hold."""

_LOAD_BYTES: Final = 1 << 20
_TOMBSTONE_BYTES_BESIDE_KEY_MAX: Final = 32

_APPEND_ERRORS: Final = {
    ErrorCode.not_leader_or_follower: ErrorCode.not_coordinator,
    ErrorCode.not_enough_replicas: ErrorCode.coordinator_not_available,
    ErrorCode.message_too_large: ErrorCode.invalid_commit_offset_size,
    ErrorCode.record_list_too_large: ErrorCode.invalid_commit_offset_size,
}
"""What a committer is told in place of what the log says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPartition:
    """A partition that an offset is of."""

    topic: str
    partition: int


Offsets = dict[TopicPartition, OffsetCommitValue]


class GroupOffsets:
    """The offsets of the groups that this broker coordinates."""

    def __init__(
        self, *, config: BrokerConfig, metadata: ClusterMetadata, replicas: ReplicaManager
    ) -> None:
        """Read what the log holds; an offset of a topic that is no more is dropped."""
        self._config = config
        self._metadata = metadata
        self._replicas = replicas
        self._groups: dict[str, Offsets] = {}
        for partition in replicas.partitions():
            if partition.key.topic == OFFSETS_TOPIC:
                self._load(partition)

    def coordinator(self, group: str) -> int | None:
        """The broker that coordinates a group; None where the offsets topic is not there yet."""
        found = self._metadata.partition(OFFSETS_TOPIC, self.partition_for(group))
        return found.leader if found is not None else None

    def partition_for(self, group: str) -> int:
        """The partition of the offsets topic that a group's offsets go to."""
        return (java_hash(group) & 0x7FFFFFFF) % self._partition_count()

    def check_coordinator(self, group: str) -> Partition:
        """The group's partition of the offsets topic; NOT_COORDINATOR where it is not led here."""
        try:
            partition = self._replicas.partition(OFFSETS_TOPIC, self.partition_for(group))
            partition.check_leader(NO_EPOCH)
        except ApiError:
            raise ApiError(
                ErrorCode.not_coordinator, f"This broker does not coordinate group {group!r}."
            ) from None
        return partition

    def check_committer(self, group: str, generation: int) -> None:
        """Refuse commits of a generation: groups have no members here.

        GROUP_ID_NOT_FOUND where the group is not known, UNKNOWN_MEMBER_ID where it is.
        """
        if generation < 0:
            return
        if group not in self._groups:
            raise ApiError(ErrorCode.group_id_not_found, f"There is no group {group!r}.")
        raise ApiError(
            ErrorCode.unknown_member_id, f"Group {group!r} has no members, so no generation."
        )

    def commit(
        self, group: str, offsets: Mapping[TopicPartition, OffsetCommitValue], now_ms: int
    ) -> Appended:
        """Write offsets as one batch, all or none of them; ApiError says why they are not."""
        partition = self.check_coordinator(group)
        if len(group.encode()) > GROUP_ID_BYTES_MAX:
            raise ApiError(
                ErrorCode.invalid_group_id,
                f"A group id may have {GROUP_ID_BYTES_MAX} bytes, not {len(group.encode())}.",
            )
        records = [
            Record(
                timestamp=now_ms,
                key=encode_key(_key(group, topic_partition)),
                value=encode_value(value),
            )
            for topic_partition, value in offsets.items()
        ]
        appended = self._append(partition, records, now_ms)
        self._groups.setdefault(group, {}).update(offsets)
        return appended

    def lookup(self, group: str, topic_partition: TopicPartition) -> OffsetCommitValue | None:
        """A group's offset of one partition."""
        return self._groups.get(group, {}).get(topic_partition)

    def all_of(self, group: str) -> Mapping[TopicPartition, OffsetCommitValue]:
        """A group's offsets."""
        return self._groups.get(group, {})

    def forget_topic(self, topic: str, now_ms: int) -> None:
        """Delete every group's offsets of a topic that has been deleted.

        They are gone whether or not the log takes that in: at the next start, offsets of a topic
        that is no more are dropped.
        """
        for group, offsets in list(self._groups.items()):
            gone = [key for key in offsets if key.topic == topic]
            if not gone:
                continue
            for key in gone:
                self._drop(group, key)
            try:
                self._append_tombstones(group, gone, now_ms)
            except ApiError as error:
                logger.warning(
                    "the log keeps offsets of group %.100r for the deleted topic %r: %s",
                    group,
                    topic,
                    error,
                )

    def _append_tombstones(self, group: str, gone: list[TopicPartition], now_ms: int) -> None:
        """Write tombstones in batches as large as the offsets topic takes them."""
        partition = self.check_coordinator(group)
        config = partition.log.config
        room_bytes = min(config.max_message_bytes, config.segment_bytes) - HEADER_BYTES
        batch: list[Record] = []
        batch_bytes = 0
        for topic_partition in gone:
            key = encode_key(_key(group, topic_partition))
            record_bytes = len(key) + _TOMBSTONE_BYTES_BESIDE_KEY_MAX
            if batch and batch_bytes + record_bytes > room_bytes:
                self._append(partition, batch, now_ms)
                batch, batch_bytes = [], 0
            batch.append(Record(timestamp=now_ms, key=key, value=None))
            batch_bytes += record_bytes
        self._append(partition, batch, now_ms)

    def _append(self, partition: Partition, records: list[Record], now_ms: int) -> Appended:
        try:
            result = partition.append(encode_batch(records), all_replicas=True, now_ms=now_ms)
        except (ApiError, LogError) as error:
            code = _APPEND_ERRORS.get(error.error_code, error.error_code)
            raise ApiError(code, str(error)) from error
        self._replicas.mark_changed(partition.key)
        return Appended(partition=partition, required_offset=result.last_offset + 1)

    def _load(self, partition: Partition) -> None:
        for record in _records(partition):
            key = decode_key(record.key) if record.key is not None else None
            if key is None:
                continue
            topic_partition = TopicPartition(topic=key.topic, partition=key.partition)
            value = decode_value(record.value) if record.value is not None else None
            if value is None or not self._is_of_present_topic(key.topic, value):
                self._drop(key.group, topic_partition)
            else:
                self._groups.setdefault(key.group, {})[topic_partition] = value

    def _is_of_present_topic(self, name: str, value: OffsetCommitValue) -> bool:
        """Whether the offset's topic is still there, and not another of the same name."""
        topic = self._metadata.topics.get(name)
        return topic is not None and value.topic_id in (ZERO_UUID, topic.topic_id)

    def _drop(self, group: str, topic_partition: TopicPartition) -> None:
        offsets = self._groups.get(group, {})
        offsets.pop(topic_partition, None)
        if not offsets:
            self._groups.pop(group, None)

    def _partition_count(self) -> int:
        topic = self._metadata.topics.get(OFFSETS_TOPIC)
        if topic is None:
            return self._config.offsets_topic_num_partitions
        return len(topic.partitions)


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


def java_hash(text: str) -> int:
    """Java's String.hashCode, over UTF-16 code units, as an unsigned 32-bit number."""
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for position in range(0, len(units), 2):
        value = (31 * value + int.from_bytes(units[position : position + 2])) & 0xFFFFFFFF
    return value


def _key(group: str, topic_partition: TopicPartition) -> OffsetCommitKey:
    return OffsetCommitKey(
        group=group, topic=topic_partition.topic, partition=topic_partition.partition
    )


def _records(partition: Partition) -> Iterator[Record]:
    offset = partition.log.log_start_offset
    while offset < partition.high_watermark:
        data = partition.log.read(
            offset,
            end_offset=partition.high_watermark,
            max_bytes=_LOAD_BYTES,
            at_least_one_batch=True,
        )
        position = 0
        for header in parse_batches(data):
            yield from decode_records(data[position : position + header.size_bytes])
            position += header.size_bytes
            offset = header.next_offset
