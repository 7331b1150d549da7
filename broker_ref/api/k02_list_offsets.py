"""ListOffsets (2), versions 1 to 11: offsets by timestamp, and log start and end offsets.

Behaviour: a timestamp returns the first record with at least this timestamp, or -1 if no visible
record has one. Negative timestamps are constants: -1 latest (the high watermark, or the last stable
offset with read_committed), -2 earliest, -3 the record with the largest timestamp (version 7,
KIP-734), -4 earliest local (version 8, KIP-405; the earliest, without tiered storage), -5 latest
tiered (version 9) and -6 earliest pending upload (version 11); the last two return -1.
UNSUPPORTED_VERSION: another constant, or one of a later version. A repeated topic or partition is
answered once; a repeated partition is INVALID_REQUEST. Leader epochs are checked, and returned from
version 4 on (KIP-320). Replicas (`replica_id` from 0 on, and -2 for a debugger, which may ask a
follower) see all records up to the log end. If the high watermark of a new leader has not reached
the start of its epoch, latest and later timestamps are OFFSET_NOT_AVAILABLE for consumers, or
LEADER_NOT_AVAILABLE before version 5 (KIP-207). Source:
`kafka.server.KafkaApis.handleListOffsetRequest`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import NO_THROTTLE_MS, Api, Broker, Call
from broker_ref.log.errors import LogError
from broker_ref.protocol.errors import ApiError
from broker_ref.replication.partition import FetchIsolation, Partition

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

CONSUMER_REPLICA_ID: Final = -1
DEBUGGING_REPLICA_ID: Final = -2

FIRST_VERSION_WITH_OFFSET_NOT_AVAILABLE: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedPartition:
    """A partition and a timestamp or constant."""

    partition_index: int
    timestamp: int
    current_leader_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedTopic:
    """The partitions of a topic."""

    name: str
    partitions: tuple[RequestedPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsRequest:
    """A ListOffsets request."""

    replica_id: int
    topics: tuple[RequestedTopic, ...]
    isolation_level: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionAnswer:
    """The offset with the record's timestamp and leader epoch; -1 for missing values."""

    partition_index: int
    error_code: ErrorCode = ErrorCode.none
    timestamp: int = -1
    offset: int = -1
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicAnswer:
    """The answers of a topic."""

    name: str
    partitions: tuple[PartitionAnswer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsResponse:
    """A ListOffsets response."""

    topics: tuple[TopicAnswer, ...]
    throttle_time_ms: int = NO_THROTTLE_MS


def handle(broker: Broker, call: Call, request: ListOffsetsRequest) -> ListOffsetsResponse:
    """Look up every partition."""
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
        if request.replica_id == DEBUGGING_REPLICA_ID:
            partition.check_replica(requested.current_leader_epoch)
        else:
            partition.check_leader(requested.current_leader_epoch)
        return _look_up(partition, request, index, timestamp)
    except (ApiError, LogError) as error:
        error_code = error.error_code
        if (
            error_code is ErrorCode.offset_not_available
            and call.version < FIRST_VERSION_WITH_OFFSET_NOT_AVAILABLE
        ):
            error_code = ErrorCode.leader_not_available
        return PartitionAnswer(partition_index=index, error_code=error_code)


def _look_up(
    partition: Partition, request: ListOffsetsRequest, index: int, timestamp: int
) -> PartitionAnswer:
    log = partition.log
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        epoch = log.leader_epochs.epoch_for_offset(log.log_start_offset)
        return PartitionAnswer(
            partition_index=index,
            offset=log.log_start_offset,
            leader_epoch=-1 if epoch is None else epoch,
        )
    if timestamp == LATEST:
        _require_known_end(partition, request)
        return PartitionAnswer(
            partition_index=index,
            offset=_end_offset(partition, request),
            leader_epoch=partition.leader_epoch,
        )
    found = None
    if timestamp == MAX_TIMESTAMP:
        found = log.offset_of_max_timestamp(end_offset=_end_offset(partition, request))
    elif timestamp not in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        found = log.offset_for_timestamp(timestamp, end_offset=_end_offset(partition, request))
    if found is None:
        _require_known_end(partition, request)
        return PartitionAnswer(partition_index=index)
    return PartitionAnswer(
        partition_index=index,
        timestamp=found.timestamp_ms,
        offset=found.offset,
        leader_epoch=found.leader_epoch,
    )


def _end_offset(partition: Partition, request: ListOffsetsRequest) -> int:
    if request.replica_id != CONSUMER_REPLICA_ID:
        return partition.log.log_end_offset
    committed = request.isolation_level == READ_COMMITTED
    return partition.end_offset_for(
        FetchIsolation.READ_COMMITTED if committed else FetchIsolation.READ_UNCOMMITTED
    )


def _require_known_end(partition: Partition, request: ListOffsetsRequest) -> None:
    """Reject consumers until the leader knows what earlier leaders committed (KIP-207)."""
    if request.replica_id != CONSUMER_REPLICA_ID or not partition.is_leader:
        return
    epoch, start_offset = partition.log.leader_epochs.entries[-1]
    if epoch == partition.leader_epoch and start_offset > partition.high_watermark:
        raise ApiError(
            ErrorCode.offset_not_available,
            f"The high watermark {partition.high_watermark} of "
            f"{partition.key.topic}-{partition.key.partition} has not reached offset "
            f"{start_offset}, the start of leader epoch {epoch}. Retry later.",
        )


API: Final = Api(key=2, versions=range(1, 12), request=ListOffsetsRequest, handle=handle)
