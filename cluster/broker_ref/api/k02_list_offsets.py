"""ListOffsets (2), versions 1 to 11: offsets by timestamp, and log start and end offsets.

For a timestamp, the broker returns the offset of the first visible record with the timestamp or a
later one, or -1 if there is none. Negative timestamps are constants:

- -1: the latest offset, which is the high watermark or, with read_committed, the last stable offset
- -2: the earliest offset
- -3: the offset of the record with the largest timestamp (from version 7 on, KIP-734)
- -4: the earliest local offset (from version 8 on, KIP-405), which is the earliest offset because
  there is no tiered storage
- -5: the latest tiered offset (from version 9 on), which is always -1
- -6: the earliest offset that is pending upload (from version 11 on), which is always -1

Other constants, and constants that require a later version, are rejected with UNSUPPORTED_VERSION.
The response contains one INVALID_REQUEST error for a partition that is repeated in the request. The
broker checks the client's leader epoch, and returns the leader epoch of the offset (version 4,
KIP-320). Replicas can read all records up to the log end offset. Their `replica_id` is a broker id,
or -2 for debugging. Followers also serve requests with the `replica_id` -2.

A new leader rejects some requests from consumers while its high watermark is below the start of its
leader epoch. During this time, a request for the latest offset, or for a timestamp without a
result, fails with OFFSET_NOT_AVAILABLE, or LEADER_NOT_AVAILABLE before version 5 (KIP-207).

A lookup by timestamp decodes records. If a request requires many lookups, the broker performs them
in steps and serves other requests between the steps. Source:
`kafka.server.KafkaApis.handleListOffsetRequest`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import NO_THROTTLE_MS, Api, Broker, Call, Wait
from broker_ref.frozen import dataclass
from broker_ref.log.errors import LogError
from broker_ref.protocol.errors import ApiError
from broker_ref.replication.partition import FetchIsolation, Partition
from broker_ref.security.acls import AclOperation, ResourceType

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

WORK_PER_STEP: Final = 10_000
"""The number of records that one step decodes. This takes about 100 ms.

A step exceeds this number by at most one lookup.
"""

LOOKUP_WORK: Final = 100
"""A lookup counts as this many additional records, because it reads from the disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedPartition:
    """A partition and a timestamp. Negative timestamps are special values, such as -1 (latest)."""

    partition_index: int
    timestamp: int
    current_leader_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedTopic:
    """The requested partitions of a topic."""

    name: str
    partitions: tuple[RequestedPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsRequest:
    """A ListOffsets request."""

    replica_id: int
    topics: tuple[RequestedTopic, ...]
    isolation_level: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionResponse:
    """The offset that was found, with its timestamp and leader epoch. Missing values are -1."""

    partition_index: int
    error_code: ErrorCode = ErrorCode.none
    timestamp: int = -1
    offset: int = -1
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicResponse:
    """The partition responses for a topic."""

    name: str
    partitions: tuple[PartitionResponse, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsResponse:
    """A ListOffsets response."""

    topics: tuple[TopicResponse, ...]
    throttle_time_ms: int = NO_THROTTLE_MS


@dataclass(slots=True, kw_only=True)
class DelayedListOffsets:
    """A ListOffsets request that is processed in steps. The last step yields the response."""

    steps: Iterator[ListOffsetsResponse | None]

    def try_complete(self, now_ms: int) -> None:
        """Return None, because the next step runs at the deadline."""

    def expire(self, now_ms: int) -> object:
        """Run the next step. Return the response, or a `Wait` if more steps remain."""
        response = next(self.steps)
        return response or Wait(operation=self, keys=(), deadline_ms=now_ms)


@dataclass(slots=True, kw_only=True)
class _Step:
    """A step of a request. `work` is the number of decoded records."""

    work: int = 0


def handle(broker: Broker, call: Call, request: ListOffsetsRequest) -> object:
    """Look up the offset for every requested partition."""
    return DelayedListOffsets(steps=_steps(broker, call, request)).expire(call.now_ms)


def _steps(
    broker: Broker, call: Call, request: ListOffsetsRequest
) -> Iterator[ListOffsetsResponse | None]:
    """Look up the offsets. Yield None after each step except the last, then the response."""
    named = Counter(
        (topic.name, partition.partition_index)
        for topic in request.topics
        for partition in topic.partitions
    )
    responses: dict[str, dict[int, PartitionResponse]] = {}
    step = _Step()
    for topic in request.topics:
        of_topic = responses.setdefault(topic.name, {})
        for partition in topic.partitions:
            if step.work >= WORK_PER_STEP:
                yield None
                step = _Step()
            index = partition.partition_index
            if not call.auth.allows(AclOperation.DESCRIBE, ResourceType.TOPIC, topic.name):
                of_topic[index] = PartitionResponse(
                    partition_index=index, error_code=ErrorCode.topic_authorization_failed
                )
            elif named[topic.name, index] > 1:
                of_topic[index] = PartitionResponse(
                    partition_index=index, error_code=ErrorCode.invalid_request
                )
            else:
                of_topic[index] = _partition(
                    broker, call, request, topic.name, partition, step=step
                )
    yield ListOffsetsResponse(
        topics=tuple(
            TopicResponse(name=name, partitions=tuple(of_topic.values()))
            for name, of_topic in responses.items()
        )
    )


def _partition(
    broker: Broker,
    call: Call,
    request: ListOffsetsRequest,
    topic: str,
    requested: RequestedPartition,
    *,
    step: _Step,
) -> PartitionResponse:
    index = requested.partition_index
    timestamp = requested.timestamp
    if timestamp < 0 and call.version < FIRST_VERSIONS.get(timestamp, call.version + 1):
        return PartitionResponse(partition_index=index, error_code=ErrorCode.unsupported_version)
    try:
        partition = broker.replicas.partition(topic, index)
        if request.replica_id == DEBUGGING_REPLICA_ID:
            partition.check_replica(requested.current_leader_epoch)
        else:
            partition.check_leader(requested.current_leader_epoch)
        return _look_up(partition, request, index, timestamp, step=step)
    except (ApiError, LogError) as error:
        if isinstance(error, LogError):  # The lookup may have decoded an entire batch.
            step.work += WORK_PER_STEP
        error_code = error.error_code
        if (
            error_code is ErrorCode.offset_not_available
            and call.version < FIRST_VERSION_WITH_OFFSET_NOT_AVAILABLE
        ):
            error_code = ErrorCode.leader_not_available
        return PartitionResponse(partition_index=index, error_code=error_code)


def _look_up(
    partition: Partition, request: ListOffsetsRequest, index: int, timestamp: int, *, step: _Step
) -> PartitionResponse:
    log = partition.log
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        epoch = log.leader_epochs.epoch_for_offset(log.log_start_offset)
        return PartitionResponse(
            partition_index=index,
            offset=log.log_start_offset,
            leader_epoch=-1 if epoch is None else epoch,
        )
    if timestamp == LATEST:
        _require_known_end(partition, request)
        return PartitionResponse(
            partition_index=index,
            offset=_end_offset(partition, request),
            leader_epoch=partition.leader_epoch,
        )
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return PartitionResponse(partition_index=index)
    if timestamp == MAX_TIMESTAMP:
        found = log.offset_of_max_timestamp(end_offset=_end_offset(partition, request))
    else:
        found = log.offset_for_timestamp(timestamp, end_offset=_end_offset(partition, request))
    step.work += LOOKUP_WORK
    if found is None:
        _require_known_end(partition, request)
        return PartitionResponse(partition_index=index)
    step.work += found.records_decoded
    return PartitionResponse(
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
    """Reject a consumer's request if the high watermark is too low (KIP-207).

    The high watermark must have reached the start offset of the current leader epoch.
    """
    if request.replica_id != CONSUMER_REPLICA_ID or not partition.is_leader:
        return
    epoch, start_offset = partition.log.leader_epochs.entries[-1]
    if epoch == partition.leader_epoch and start_offset > partition.high_watermark:
        raise ApiError(
            ErrorCode.offset_not_available,
            f"The high watermark of {partition.key.topic}-{partition.key.partition} is "
            f"{partition.high_watermark}. It has not reached offset {start_offset}, the start "
            f"offset of leader epoch {epoch}. Retry later.",
        )


API: Final = Api(key=2, versions=range(1, 12), request=ListOffsetsRequest, handle=handle)
