"""ListOffsets (2), versions 1 to 11: the offset that belongs to a time, or to an end of the log.

Behaviour: a timestamp finds the first record that is as late, or -1 where none a client may see
is. Negative ones have meanings, each from its version on: -1 latest (the high watermark, the last
stable offset with read_committed), -2 earliest, -3 the record with the largest timestamp (version
7, KIP-734), -4 earliest local (version 8, KIP-405), which without tiered storage is the earliest,
-5 latest tiered (version 9) and -6 earliest pending upload (version 11), of which there is none.
Others, or too early a version, are UNSUPPORTED_VERSION. A topic or partition named twice is
answered once; such a partition is INVALID_REQUEST. Leader epochs are fenced, and told from version 4 on (KIP-320).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import NO_THROTTLE_MS, Api, Broker, Call
from broker_ref.log.errors import LogError
from broker_ref.protocol.errors import ApiError
from broker_ref.replication.partition import Partition

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6

FIRST_VERSIONS: Final = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}

READ_COMMITTED: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedPartition:
    """A partition and the time, or what stands for one."""

    partition_index: int
    timestamp: int
    current_leader_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedTopic:
    """Partitions of a topic."""

    name: str
    partitions: tuple[RequestedPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsRequest:
    """What to look up, for whom."""

    replica_id: int
    topics: tuple[RequestedTopic, ...]
    isolation_level: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionAnswer:
    """The offset, its record's timestamp and leader epoch; -1 for what there is not."""

    partition_index: int
    error_code: ErrorCode = ErrorCode.none
    timestamp: int = -1
    offset: int = -1
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicAnswer:
    """The answers for a topic."""

    name: str
    partitions: tuple[PartitionAnswer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsResponse:
    """The answers for every topic."""

    topics: tuple[TopicAnswer, ...]
    throttle_time_ms: int = NO_THROTTLE_MS


def handle(broker: Broker, call: Call, request: ListOffsetsRequest) -> ListOffsetsResponse:
    """Look every partition up."""
    named = Counter(
        (topic.name, partition.partition_index)
        for topic in request.topics
        for partition in topic.partitions
    )
    answers: dict[str, dict[int, PartitionAnswer]] = {}
    for topic in request.topics:
        answered = answers.setdefault(topic.name, {})
        for partition in topic.partitions:
            index = partition.partition_index
            if named[topic.name, index] > 1:
                answered[index] = PartitionAnswer(
                    partition_index=index, error_code=ErrorCode.invalid_request
                )
            else:
                answered[index] = _answer(broker, call, request, topic.name, partition)
    return ListOffsetsResponse(
        topics=tuple(
            TopicAnswer(name=name, partitions=tuple(answered.values()))
            for name, answered in answers.items()
        )
    )


def _answer(
    broker: Broker,
    call: Call,
    request: ListOffsetsRequest,
    topic: str,
    requested: RequestedPartition,
) -> PartitionAnswer:
    index = requested.partition_index
    timestamp = requested.timestamp
    if timestamp < 0 and call.version < FIRST_VERSIONS.get(timestamp, call.version + 1):
        return PartitionAnswer(partition_index=index, error_code=ErrorCode.unsupported_version)
    try:
        partition = broker.replicas.partition(topic, index)
        partition.check_leader(requested.current_leader_epoch)
        return _look_up(partition, request, index, timestamp)
    except (ApiError, LogError) as error:
        return PartitionAnswer(partition_index=index, error_code=error.error_code)


def _look_up(
    partition: Partition, request: ListOffsetsRequest, index: int, timestamp: int
) -> PartitionAnswer:
    log = partition.log
    end_offset = partition.high_watermark
    if request.isolation_level == READ_COMMITTED:
        end_offset = partition.last_stable_offset
    if timestamp == LATEST:
        return PartitionAnswer(
            partition_index=index, offset=end_offset, leader_epoch=partition.leader_epoch
        )
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        epoch = log.leader_epochs.epoch_for_offset(log.log_start_offset)
        return PartitionAnswer(
            partition_index=index,
            offset=log.log_start_offset,
            leader_epoch=-1 if epoch is None else epoch,
        )
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return PartitionAnswer(partition_index=index)
    if timestamp == MAX_TIMESTAMP:
        found = log.offset_of_max_timestamp(end_offset=end_offset)
    else:
        found = log.offset_for_timestamp(timestamp, end_offset=end_offset)
    if found is None:
        return PartitionAnswer(partition_index=index)
    return PartitionAnswer(
        partition_index=index,
        timestamp=found.timestamp_ms,
        offset=found.offset,
        leader_epoch=found.leader_epoch,
    )


API: Final = Api(key=2, versions=range(1, 12), request=ListOffsetsRequest, handle=handle)
