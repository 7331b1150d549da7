"""Builds Produce requests and reads their responses (versions 3 to 13) without kio.

Produce is the most frequent request in a write. The body of a request is a list of buffers, so
record batches are sent without being copied. A valid response contains each partition of the
request exactly once.

`acks` is always "all". Source: ProduceRequest.json and ProduceResponse.json of Kafka; KIP-98
(transactions), KIP-467 (record errors), KIP-516 (topic ids), KIP-890 (implicit addition to a
transaction), KIP-951 (new leaders in the response).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.wire.connection import Request
from pyspark_kafka.wire.metadata import Broker, LeaderEpoch, read_endpoint, read_leader
from pyspark_kafka.wire.reader import MalformedResponseError, Reader
from pyspark_kafka.wire.versions import Api
from pyspark_kafka.wire.writer import (
    NO_TAGGED_FIELDS,
    int16,
    int32,
    length,
    nullable_string,
    string,
)

LAST_VERSION_BY_NAME: Final = 12
"""The last version with topic names. Later versions have topic ids."""
FIRST_VERSION_ADDING_PARTITIONS: Final = 12
"""The first version in which the leader adds the partitions to the transaction (KIP-890)."""
_FIRST_FLEXIBLE: Final = 9
_ACKS_ALL: Final = -1
_UNKNOWN: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducePartition:
    """One record batch for a partition. Versions 13 and later require `topic_id`."""

    topic_partition: TopicPartition
    topic_id: UUID | None
    records: memoryview | bytes = field(repr=False)


class RecordError(NamedTuple):
    """An error for one record. `batch_index` is the index of the record in the batch."""

    batch_index: int
    message: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducedPartition:
    """A partition in a Produce response. Missing offsets and timestamps are -1."""

    topic_partition: TopicPartition
    error_code: ErrorCode
    base_offset: int = _UNKNOWN
    log_append_time_ms: int = _UNKNOWN
    log_start_offset: int = _UNKNOWN
    record_errors: tuple[RecordError, ...] = ()
    error_message: str | None = None
    current_leader: LeaderEpoch | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceResponse:
    """A Produce response.

    `endpoints` contains the brokers that `current_leader` fields refer to (version 10 and later).
    """

    throttle_ms: int
    partitions: tuple[ProducedPartition, ...]
    endpoints: tuple[Broker, ...]


def produce_version(negotiated: int, partitions: Sequence[ProducePartition]) -> int:
    """Return the negotiated version, or one that uses topic names if a topic id is unknown."""
    if all(partition.topic_id is not None for partition in partitions):
        return negotiated
    return min(negotiated, LAST_VERSION_BY_NAME)


def produce_request(
    version: int,
    partitions: Sequence[ProducePartition],
    *,
    timeout_ms: int,
    transactional_id: str | None = None,
) -> Request[ProduceResponse]:
    """Build a Produce request with one batch for each partition.

    The broker waits up to `timeout_ms` for the in-sync replicas. In version 12 and later, the
    broker also adds the partitions to the transaction of `transactional_id` (KIP-890).
    """
    sent = {_key(version, one): one.topic_partition for one in partitions}
    assert len(sent) == len(partitions), "each partition once"
    return Request(
        api=Api.PRODUCE,
        version=version,
        body=_write(version, partitions, timeout_ms, transactional_id),
        read=partial(_read, version, sent),
        throttle_ms=lambda response: response.throttle_ms,
    )


_PartitionKey = tuple[str | UUID | None, int]
"""The topic name or topic id, depending on the version, and the partition index."""


def _key(version: int, partition: ProducePartition) -> _PartitionKey:
    by_name = version <= LAST_VERSION_BY_NAME
    topic_partition = partition.topic_partition
    topic = topic_partition.topic if by_name else partition.topic_id
    return topic, topic_partition.partition


def _write(
    version: int,
    partitions: Sequence[ProducePartition],
    timeout_ms: int,
    transactional_id: str | None,
) -> list[bytes | memoryview]:
    flexible = version >= _FIRST_FLEXIBLE
    end = NO_TAGGED_FIELDS if flexible else b""
    topics: dict[str, list[ProducePartition]] = {}
    for partition in partitions:
        topics.setdefault(partition.topic_partition.topic, []).append(partition)
    parts: list[bytes | memoryview] = []
    out = bytearray(nullable_string(transactional_id, flexible=flexible))
    out += int16(_ACKS_ALL)
    out += int32(timeout_ms)
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
            out += int32(partition.topic_partition.partition)
            out += length(len(partition.records), flexible=flexible)
            parts += [bytes(out), partition.records]
            out = bytearray(end)
        out += end
    parts.append(bytes(out + end))
    return parts


def _read(
    version: int, sent: dict[_PartitionKey, TopicPartition], reader: Reader
) -> ProduceResponse:
    flexible = version >= _FIRST_FLEXIBLE
    pending = dict(sent)
    topics = reader.array(
        lambda: _read_topic(version, pending, reader), "responses", flexible=flexible
    )
    if pending:
        missing = ", ".join(str(partition) for partition in pending.values())
        raise MalformedResponseError(f"the response does not contain {missing}")
    throttle_ms = reader.int32("throttle_time_ms")
    endpoints: tuple[Broker, ...] = ()

    def read_tagged(tag: int) -> bool:
        nonlocal endpoints
        if tag != 0 or version < 10:
            return False
        endpoints = reader.array(lambda: read_endpoint(reader), "node_endpoints", flexible=True)
        return True

    if flexible:
        reader.tagged_fields(read_tagged, "the response")
    return ProduceResponse(
        throttle_ms=throttle_ms,
        partitions=tuple([partition for topic in topics for partition in topic]),
        endpoints=endpoints,
    )


def _read_topic(
    version: int, pending: dict[_PartitionKey, TopicPartition], reader: Reader
) -> tuple[ProducedPartition, ...]:
    flexible = version >= _FIRST_FLEXIBLE
    topic: str | UUID | None
    if version <= LAST_VERSION_BY_NAME:
        topic = reader.string("name", flexible=flexible)
    else:
        topic = reader.uuid("topic_id")
    partitions = reader.array(
        lambda: _read_partition(version, topic, pending, reader),
        "partition_responses",
        flexible=flexible,
    )
    if flexible:
        reader.skip_tagged_fields("a topic")
    return partitions


def _read_partition(
    version: int,
    topic: str | UUID | None,
    pending: dict[_PartitionKey, TopicPartition],
    reader: Reader,
) -> ProducedPartition:
    flexible = version >= _FIRST_FLEXIBLE
    index = reader.int32("index")
    topic_partition = pending.pop((topic, index), None)
    if topic_partition is None:
        raise MalformedResponseError(
            f"partition {index} of topic {topic} was not in the request or occurs twice"
        )
    error_code = reader.error_code("error_code")
    base_offset = reader.int64("base_offset")
    log_append_time_ms = reader.int64("log_append_time_ms")
    log_start_offset = reader.int64("log_start_offset") if version >= 5 else _UNKNOWN
    record_errors: tuple[RecordError, ...] = ()
    error_message = None
    if version >= 8:
        record_errors = reader.array(
            lambda: _read_record_error(reader, flexible=flexible),
            "record_errors",
            flexible=flexible,
        )
        error_message = reader.nullable_string("error_message", flexible=flexible)
    current_leader: LeaderEpoch | None = None

    def read_tagged(tag: int) -> bool:
        nonlocal current_leader
        if tag != 0 or version < 10:
            return False
        current_leader = read_leader(reader)
        reader.skip_tagged_fields("the current leader")
        return True

    if flexible:
        reader.tagged_fields(read_tagged, "a partition")
    return ProducedPartition(
        topic_partition=topic_partition,
        error_code=error_code,
        base_offset=base_offset,
        log_append_time_ms=log_append_time_ms,
        log_start_offset=log_start_offset,
        record_errors=record_errors,
        error_message=error_message,
        current_leader=current_leader,
    )


def _read_record_error(reader: Reader, *, flexible: bool) -> RecordError:
    error = RecordError(
        reader.int32("batch_index"),
        reader.nullable_string("batch_index_error_message", flexible=flexible),
    )
    if flexible:
        reader.skip_tagged_fields("a record error")
    return error
