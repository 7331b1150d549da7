"""DeleteRecords (21), versions 0 to 2: advance the log start offset (KIP-107).

Records below the requested offset can no longer be read. Offset -1 represents the high
watermark. The response contains the low watermark, which is the minimum log start offset of all
live replicas. Followers report their log start offset with each fetch. The broker responds when the
low watermark has reached the requested offset. If the timeout expires first, the error is
REQUEST_TIMED_OUT. The new log start offset survives a crash.

Other errors are:

- OFFSET_OUT_OF_RANGE: the offset is above the high watermark.
- POLICY_VIOLATION: the cleanup policy is `compact`.
- INVALID_TOPIC_EXCEPTION: the topic is internal.
- NOT_LEADER_OR_FOLLOWER: the leader has changed.

Source: `kafka.server.KafkaApis.handleDeleteRecordsRequest`.
"""

from __future__ import annotations

import dataclasses
from contextlib import suppress
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import NO_THROTTLE_MS, Api, Broker, Call, Wait
from broker_ref.frozen import dataclass
from broker_ref.log.errors import LogError
from broker_ref.log.storage import StorageError
from broker_ref.protocol.errors import ApiError
from broker_ref.replication.partition import Partition, PartitionKey
from broker_ref.security.acls import AclOperation


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedPartition:
    """A partition and its new log start offset."""

    partition_index: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedTopic:
    """The requested partitions of a topic."""

    name: str
    partitions: tuple[RequestedPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRecordsRequest:
    """A DeleteRecords request."""

    topics: tuple[RequestedTopic, ...]
    timeout_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionResponse:
    """The low watermark of a partition, or an error."""

    partition_index: int
    low_watermark: int = -1
    error_code: ErrorCode = ErrorCode.none


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicResponse:
    """The partition responses for a topic."""

    name: str
    partitions: tuple[PartitionResponse, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRecordsResponse:
    """A DeleteRecords response."""

    topics: tuple[TopicResponse, ...]
    throttle_time_ms: int = NO_THROTTLE_MS


@dataclass(slots=True, kw_only=True)
class DeleteRecordsPartitionStatus:
    """The response for a partition. The response is final if `partition` is None.

    Otherwise, the request waits until the low watermark has reached `required_offset`.
    """

    response: PartitionResponse
    partition: Partition | None = None
    required_offset: int = -1


@dataclass(slots=True, kw_only=True)
class DelayedDeleteRecords:
    """A DeleteRecords request that waits for low watermarks (Kafka's `DelayedDeleteRecords`)."""

    topics: tuple[tuple[str, tuple[DeleteRecordsPartitionStatus, ...]], ...]

    def try_complete(self, now_ms: int) -> DeleteRecordsResponse | None:
        """Return the response if each low watermark has reached the offset required for it."""
        del now_ms
        waiting = False
        for status in self._all_statuses():
            if status.partition is not None and not _is_done(status, status.partition):
                waiting = True
        return None if waiting else self._response()

    def expire(self, now_ms: int) -> DeleteRecordsResponse:
        """Return the response, with REQUEST_TIMED_OUT for partitions without a final response."""
        self.try_complete(now_ms)
        for status in self._all_statuses():
            if status.partition is not None:
                status.response = dataclasses.replace(
                    status.response, error_code=ErrorCode.request_timed_out
                )
        return self._response()

    def keys(self) -> tuple[PartitionKey, ...]:
        """Return the keys of the partitions that the request is waiting for."""
        return tuple(
            status.partition.key for status in self._all_statuses() if status.partition is not None
        )

    def _all_statuses(self) -> tuple[DeleteRecordsPartitionStatus, ...]:
        return tuple(status for _, statuses in self.topics for status in statuses)

    def _response(self) -> DeleteRecordsResponse:
        return DeleteRecordsResponse(
            topics=tuple(
                TopicResponse(name=name, partitions=tuple(status.response for status in statuses))
                for name, statuses in self.topics
            )
        )


def handle(broker: Broker, call: Call, request: DeleteRecordsRequest) -> object:
    """Advance and persist the log start offsets, then wait for the low watermarks."""
    delayed = DelayedDeleteRecords(
        topics=tuple(
            (
                topic.name,
                tuple(
                    _delete(broker, call, topic.name, partition) for partition in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )
    # A checkpoint processes all partitions, so a request that is rejected must not cause one.
    if delayed.keys():
        # If the checkpoint fails, the records can reappear after a crash, as in Kafka.
        with suppress(StorageError):
            broker.replicas.checkpoint()
    done = delayed.try_complete(call.now_ms)
    if done is not None:
        return done
    deadline_ms = call.now_ms + max(request.timeout_ms, 0)
    return Wait(operation=delayed, keys=delayed.keys(), deadline_ms=deadline_ms)


def _delete(
    broker: Broker, call: Call, topic: str, requested: RequestedPartition
) -> DeleteRecordsPartitionStatus:
    index = requested.partition_index
    try:
        call.auth.check_topic(AclOperation.DELETE, topic)
        _check_not_internal(broker, topic, index)
        partition = broker.replicas.partition(topic, index)
        required_offset = partition.delete_records_before(requested.offset)
        low_watermark = partition.low_watermark
    except (ApiError, LogError) as error:
        return DeleteRecordsPartitionStatus(
            response=PartitionResponse(partition_index=index, error_code=error.error_code)
        )
    return DeleteRecordsPartitionStatus(
        response=PartitionResponse(partition_index=index, low_watermark=low_watermark),
        partition=partition,
        required_offset=required_offset,
    )


def _check_not_internal(broker: Broker, topic: str, index: int) -> None:
    """Reject internal topics.

    As in Kafka, this function does not reject an unknown partition of an internal topic.
    """
    known = broker.metadata.topics.get(topic)
    if known is not None and known.is_internal and index in known.partitions:
        raise ApiError(
            ErrorCode.invalid_topic_exception,
            f"Clients cannot delete records from the internal topic {topic!r}.",
        )


def _is_done(status: DeleteRecordsPartitionStatus, partition: Partition) -> bool:
    """Update the response in `status`. Return whether this response is final."""
    index = status.response.partition_index
    try:
        low_watermark = partition.low_watermark
    except ApiError as error:
        status.response = PartitionResponse(partition_index=index, error_code=error.error_code)
    else:
        status.response = PartitionResponse(partition_index=index, low_watermark=low_watermark)
        if low_watermark < status.required_offset:
            return False
    status.partition = None
    return True


API: Final = Api(key=21, versions=range(3), request=DeleteRecordsRequest, handle=handle)
