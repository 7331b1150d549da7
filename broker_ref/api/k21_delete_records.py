"""DeleteRecords (21), versions 0 to 2: raise the log start offset (KIP-107).

Behaviour: records below the offset can no longer be read; -1 is the high watermark. The response
contains the low watermark, which is the minimum log start offset of the live replicas. It is sent
when all of them have reached the offset, which followers report in their fetches, or with
REQUEST_TIMED_OUT. OFFSET_OUT_OF_RANGE: above the high watermark; POLICY_VIOLATION: the cleanup
policy does not contain `delete`; INVALID_TOPIC_EXCEPTION: an internal topic;
NOT_LEADER_OR_FOLLOWER: the leader has changed. The new log start offsets survive a crash. Source:
`kafka.server.KafkaApis.handleDeleteRecordsRequest`.
"""

from __future__ import annotations

import dataclasses
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import NO_THROTTLE_MS, Api, Broker, Call, Wait
from broker_ref.log.errors import LogError
from broker_ref.log.storage import StorageError
from broker_ref.protocol.errors import ApiError
from broker_ref.replication.partition import Partition, PartitionKey


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedPartition:
    """A partition and its new log start offset."""

    partition_index: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedTopic:
    """The partitions of a topic."""

    name: str
    partitions: tuple[RequestedPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRecordsRequest:
    """A DeleteRecords request."""

    topics: tuple[RequestedTopic, ...]
    timeout_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionAnswer:
    """The low watermark of a partition, or an error."""

    partition_index: int
    low_watermark: int = -1
    error_code: ErrorCode = ErrorCode.none


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicAnswer:
    """The answers of a topic."""

    name: str
    partitions: tuple[PartitionAnswer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRecordsResponse:
    """A DeleteRecords response."""

    topics: tuple[TopicAnswer, ...]
    throttle_time_ms: int = NO_THROTTLE_MS


@dataclass(slots=True, kw_only=True)
class DeleteRecordsPartitionStatus:
    """The answer for a partition so far; it waits for the low watermark `required_offset`."""

    answer: PartitionAnswer
    partition: Partition | None = None
    required_offset: int = -1


@dataclass(slots=True, kw_only=True)
class DelayedDeleteRecords:
    """A request that waits for low watermarks (Kafka's `DelayedDeleteRecords`)."""

    topics: tuple[tuple[str, tuple[DeleteRecordsPartitionStatus, ...]], ...]

    def try_complete(self, now_ms: int) -> DeleteRecordsResponse | None:
        """Return the response if no partition waits."""
        del now_ms
        waiting = False
        for status in self._all_statuses():
            if status.partition is not None and not _is_done(status, status.partition):
                waiting = True
        return None if waiting else self._response()

    def expire(self, now_ms: int) -> DeleteRecordsResponse:
        """Return the response with REQUEST_TIMED_OUT for the partitions that still wait."""
        self.try_complete(now_ms)
        for status in self._all_statuses():
            if status.partition is not None:
                status.answer = dataclasses.replace(
                    status.answer, error_code=ErrorCode.request_timed_out
                )
        return self._response()

    def keys(self) -> tuple[PartitionKey, ...]:
        """Return the partitions that are waited for."""
        return tuple(
            status.partition.key for status in self._all_statuses() if status.partition is not None
        )

    def _all_statuses(self) -> tuple[DeleteRecordsPartitionStatus, ...]:
        return tuple(status for _, statuses in self.topics for status in statuses)

    def _response(self) -> DeleteRecordsResponse:
        return DeleteRecordsResponse(
            topics=tuple(
                TopicAnswer(name=name, partitions=tuple(status.answer for status in statuses))
                for name, statuses in self.topics
            )
        )


def handle(broker: Broker, call: Call, request: DeleteRecordsRequest) -> object:
    """Raise and persist the log start offsets, then wait for the followers."""
    delayed = DelayedDeleteRecords(
        topics=tuple(
            (
                topic.name,
                tuple(_delete(broker, topic.name, partition) for partition in topic.partitions),
            )
            for topic in request.topics
        )
    )
    with suppress(StorageError):  # After a crash the records can reappear, as in Kafka.
        broker.replicas.checkpoint()
    done = delayed.try_complete(call.now_ms)
    if done is not None:
        return done
    deadline_ms = call.now_ms + max(request.timeout_ms, 0)
    return Wait(operation=delayed, keys=delayed.keys(), deadline_ms=deadline_ms)


def _delete(
    broker: Broker, topic: str, requested: RequestedPartition
) -> DeleteRecordsPartitionStatus:
    index = requested.partition_index
    try:
        _check_not_internal(broker, topic, index)
        partition = broker.replicas.partition(topic, index)
        required_offset = partition.delete_records_before(requested.offset)
        low_watermark = partition.low_watermark
    except (ApiError, LogError) as error:
        return DeleteRecordsPartitionStatus(
            answer=PartitionAnswer(partition_index=index, error_code=error.error_code)
        )
    return DeleteRecordsPartitionStatus(
        answer=PartitionAnswer(partition_index=index, low_watermark=low_watermark),
        partition=partition,
        required_offset=required_offset,
    )


def _check_not_internal(broker: Broker, topic: str, index: int) -> None:
    """Reject internal topics; as in Kafka, an unknown partition takes precedence."""
    known = broker.metadata.topics.get(topic)
    if known is not None and known.is_internal and index in known.partitions:
        raise ApiError(
            ErrorCode.invalid_topic_exception,
            f"Clients cannot delete records of internal topic {topic!r}.",
        )


def _is_done(status: DeleteRecordsPartitionStatus, partition: Partition) -> bool:
    """Return whether a partition no longer waits; its answer then contains the result."""
    index = status.answer.partition_index
    try:
        low_watermark = partition.low_watermark
    except ApiError as error:
        status.answer = PartitionAnswer(partition_index=index, error_code=error.error_code)
    else:
        status.answer = PartitionAnswer(partition_index=index, low_watermark=low_watermark)
        if low_watermark < status.required_offset:
            return False
    status.partition = None
    return True


API: Final = Api(key=21, versions=range(3), request=DeleteRecordsRequest, handle=handle)
