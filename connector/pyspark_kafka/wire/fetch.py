"""Builds Fetch requests and reads their responses (versions 4 to 17) without kio.

Fetch is the most frequent request in a read. The records are views of the response frame; kio would
copy the records. A valid response contains only requested partitions, each at most once.

Fetch sessions are not used: the session id is 0 and the session epoch is -1.
Source: FetchRequest.json and FetchResponse.json of Kafka; KIP-320 (leader epochs), KIP-392
(preferred replica), KIP-516 (topic ids), KIP-951 (new leaders in the response).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from pyspark_kafka.kafka.offsets import IsolationLevel
from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.kafka.transactions import AbortedTransaction
from pyspark_kafka.wire.connection import Request
from pyspark_kafka.wire.metadata import Broker, LeaderEpoch, read_endpoint, read_leader
from pyspark_kafka.wire.reader import MalformedResponseError, Reader
from pyspark_kafka.wire.versions import Api
from pyspark_kafka.wire.writer import int8, int32, int64, length, string

LAST_VERSION_BY_NAME: Final = 12
"""The last version with topic names. Later versions have topic ids."""
_FIRST_FLEXIBLE: Final = 12
_CONSUMER: Final = -1
_NO_SESSION: Final = (0, -1)
_UNKNOWN: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchPartition:
    """A partition in a Fetch request. Versions 13 and later require `topic_id`.

    The leader epoch is -1 if it is unknown.
    """

    topic_partition: TopicPartition
    topic_id: UUID | None
    fetch_offset: int
    partition_bytes_max: int
    current_leader_epoch: int = _UNKNOWN
    last_fetched_epoch: int = _UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchLimits:
    """The settings of a Fetch request that apply to all of its partitions.

    The broker waits until it has `bytes_min` bytes, for at most `wait_ms_max` ms. If `rack`
    contains the client's rack, the client can read from the closest replica.
    """

    isolation_level: IsolationLevel
    wait_ms_max: int = 500
    bytes_min: int = 1
    bytes_max: int = 50 * 1024 * 1024
    rack: str = ""


class EpochEnd(NamedTuple):
    """The largest epoch after which the fetched records diverge from the leader's log (KIP-595).

    `end_offset` is the end offset of this epoch.
    """

    epoch: int
    end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedPartition:
    """A partition in a Fetch response.

    `records` is a view of the record batches. The last batch can be incomplete. `aborted` is None
    for `read_uncommitted`. Missing offsets are -1, and other missing fields are None.
    """

    topic_partition: TopicPartition
    error_code: ErrorCode
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: tuple[AbortedTransaction, ...] | None
    preferred_read_replica: int | None
    current_leader: LeaderEpoch | None
    diverging: EpochEnd | None
    records: memoryview = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchResponse:
    """A Fetch response.

    `endpoints` contains the brokers that `current_leader` fields refer to (version 16 and later).
    """

    throttle_ms: int
    error_code: ErrorCode
    partitions: tuple[FetchedPartition, ...]
    endpoints: tuple[Broker, ...]


def fetch_version(negotiated: int, partitions: Sequence[FetchPartition]) -> int:
    """Return the negotiated version, or one that uses topic names if a topic id is unknown."""
    if all(partition.topic_id is not None for partition in partitions):
        return negotiated
    return min(negotiated, LAST_VERSION_BY_NAME)


def fetch_request(
    version: int, limits: FetchLimits, partitions: Sequence[FetchPartition]
) -> Request[FetchResponse]:
    """Build a Fetch request for distinct partitions."""
    requested = {_key(version, one): one.topic_partition for one in partitions}
    assert len(requested) == len(partitions), "each partition once"
    return Request(
        api=Api.FETCH,
        version=version,
        body=(_write(version, limits, partitions),),
        read=partial(_read, version, requested),
        throttle_ms=lambda response: response.throttle_ms,
    )


_PartitionKey = tuple[str | UUID | None, int]
"""The topic name or topic id, depending on the version, and the partition index."""


def _key(version: int, partition: FetchPartition) -> _PartitionKey:
    topic_partition = partition.topic_partition
    by_name = version <= LAST_VERSION_BY_NAME
    topic = topic_partition.topic if by_name else partition.topic_id
    return topic, topic_partition.partition


def _write(version: int, limits: FetchLimits, partitions: Sequence[FetchPartition]) -> bytes:
    flexible = version >= _FIRST_FLEXIBLE
    out = bytearray()
    if version <= 14:  # later versions have a tagged field whose default means a consumer
        out += int32(_CONSUMER)
    out += int32(limits.wait_ms_max)
    out += int32(limits.bytes_min)
    out += int32(limits.bytes_max)
    out += int8(limits.isolation_level.value)
    if version >= 7:
        for number in _NO_SESSION:
            out += int32(number)
    topics: dict[str, list[FetchPartition]] = {}
    for partition in partitions:
        topics.setdefault(partition.topic_partition.topic, []).append(partition)
    out += length(len(topics), flexible=flexible)
    for topic, of_topic in topics.items():
        if version <= LAST_VERSION_BY_NAME:
            out += string(topic, flexible=flexible)
        else:
            topic_id = of_topic[0].topic_id
            assert topic_id is not None, topic
            out += topic_id.bytes
        out += length(len(of_topic), flexible=flexible)
        for partition in of_topic:
            out += _write_partition(version, partition)
        out += b"\0" if flexible else b""
    if version >= 7:
        out += length(0, flexible=flexible)  # forgotten topics of a session
    if version >= 11:
        out += string(limits.rack, flexible=flexible)
    return bytes(out) + (b"\0" if flexible else b"")


def _write_partition(version: int, partition: FetchPartition) -> bytes:
    out = bytearray(int32(partition.topic_partition.partition))
    if version >= 9:
        out += int32(partition.current_leader_epoch)
    out += int64(partition.fetch_offset)
    if version >= 12:
        out += int32(partition.last_fetched_epoch)
    if version >= 5:
        out += int64(_UNKNOWN)  # log start offset, for followers
    out += int32(partition.partition_bytes_max)
    return bytes(out) + (b"\0" if version >= _FIRST_FLEXIBLE else b"")


def _read(
    version: int, requested: dict[_PartitionKey, TopicPartition], reader: Reader
) -> FetchResponse:
    flexible = version >= _FIRST_FLEXIBLE
    throttle_ms = reader.int32("throttle_time_ms")
    error_code = ErrorCode.none
    if version >= 7:
        error_code = reader.error_code("error_code")
        reader.int32("session_id")
    pending = dict(requested)
    topics = reader.array(
        lambda: _read_topic(version, pending, reader), "responses", flexible=flexible
    )
    endpoints: tuple[Broker, ...] = ()

    def read_tagged(tag: int) -> bool:
        nonlocal endpoints
        if tag != 0 or version < 16:
            return False
        endpoints = reader.array(lambda: read_endpoint(reader), "node_endpoints", flexible=True)
        return True

    if flexible:
        reader.tagged_fields(read_tagged, "the response")
    return FetchResponse(
        throttle_ms=throttle_ms,
        error_code=error_code,
        partitions=tuple([partition for topic in topics for partition in topic]),
        endpoints=endpoints,
    )


def _read_topic(
    version: int, pending: dict[_PartitionKey, TopicPartition], reader: Reader
) -> tuple[FetchedPartition, ...]:
    flexible = version >= _FIRST_FLEXIBLE
    topic: str | UUID | None
    if version <= LAST_VERSION_BY_NAME:
        topic = reader.string("topic", flexible=flexible)
    else:
        topic = reader.uuid("topic_id")
    partitions = reader.array(
        lambda: _read_partition(version, topic, pending, reader), "partitions", flexible=flexible
    )
    if flexible:
        reader.skip_tagged_fields("a topic")
    return partitions


def _read_partition(
    version: int,
    topic: str | UUID | None,
    pending: dict[_PartitionKey, TopicPartition],
    reader: Reader,
) -> FetchedPartition:
    flexible = version >= _FIRST_FLEXIBLE
    index = reader.int32("partition_index")
    topic_partition = pending.pop((topic, index), None)
    if topic_partition is None:
        raise MalformedResponseError(
            f"partition {index} of topic {topic} was not requested or occurs twice"
        )
    error_code = reader.error_code("error_code")
    high_watermark = reader.int64("high_watermark")
    last_stable_offset = reader.int64("last_stable_offset")
    log_start_offset = reader.int64("log_start_offset") if version >= 5 else _UNKNOWN
    aborted = reader.nullable_array(
        lambda: _read_aborted(reader, flexible=flexible), "aborted_transactions", flexible=flexible
    )
    preferred = reader.int32("preferred_read_replica") if version >= 11 else _UNKNOWN
    records = reader.nullable_data("records", flexible=flexible)
    tagged = _TaggedFields()
    if flexible:
        reader.tagged_fields(lambda tag: tagged.read(tag, reader), "a partition")
    return FetchedPartition(
        topic_partition=topic_partition,
        error_code=error_code,
        high_watermark=high_watermark,
        last_stable_offset=last_stable_offset,
        log_start_offset=log_start_offset,
        aborted=aborted,
        preferred_read_replica=None if preferred == _UNKNOWN else preferred,
        current_leader=tagged.current_leader,
        diverging=tagged.diverging,
        records=memoryview(b"") if records is None else records,
    )


@dataclass(slots=True)
class _TaggedFields:
    diverging: EpochEnd | None = None
    current_leader: LeaderEpoch | None = None

    def read(self, tag: int, reader: Reader) -> bool:
        if tag == 0:
            diverging = EpochEnd(reader.int32("epoch"), reader.int64("end_offset"))
            self.diverging = diverging if diverging.end_offset >= 0 else None
        elif tag == 1:
            self.current_leader = read_leader(reader)
        else:
            return False
        reader.skip_tagged_fields(f"tag {tag} of a partition")
        return True


def _read_aborted(reader: Reader, *, flexible: bool) -> AbortedTransaction:
    aborted = AbortedTransaction(
        producer_id=reader.int64("producer_id"), first_offset=reader.int64("first_offset")
    )
    if flexible:
        reader.skip_tagged_fields("an aborted transaction")
    return aborted
