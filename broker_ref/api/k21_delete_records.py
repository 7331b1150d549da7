"""DeleteRecords (21), versions 0 to 2: raise the log start offset (KIP-107).

Behaviour: everything below the offset is gone for readers, -1 standing for the high watermark. The
answer is the new low watermark, the least log start offset of the replicas that are alive, and
comes when all of them have it, which followers tell as they fetch, or with REQUEST_TIMED_OUT after
the timeout. OFFSET_OUT_OF_RANGE above the high watermark, POLICY_VIOLATION where the topic's
cleanup policy has no `delete`, INVALID_TOPIC_EXCEPTION for internal topics, NOT_LEADER_OR_FOLLOWER
where leadership moves meanwhile. The new log start offsets survive a crash.
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
    """Where a partition is to begin."""

    partition_index: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedTopic:
    """Partitions of a topic."""

    name: str
    partitions: tuple[RequestedPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRecordsRequest:
    """Where partitions are to begin."""

    topics: tuple[RequestedTopic, ...]
    timeout_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionAnswer:
    """Where a partition begins now."""

    partition_index: int
    low_watermark: int = -1
    error_code: ErrorCode = ErrorCode.none


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicAnswer:
    """The answers for a topic."""

    name: str
    partitions: tuple[PartitionAnswer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRecordsResponse:
    """The answers for every topic."""

    topics: tuple[TopicAnswer, ...]
    throttle_time_ms: int = NO_THROTTLE_MS


@dataclass(slots=True, kw_only=True)
class DeleteRecordsPartitionStatus:
    """The answer for one partition as it stands; `required_offset` is what it waits for."""

    answer: PartitionAnswer
    partition: Partition | None = None
    required_offset: int = -1


@dataclass(slots=True, kw_only=True)
class DelayedDeleteRecords:
    """A deletion that not every replica has done yet (Kafka's DelayedDeleteRecords)."""

    topics: tuple[tuple[str, tuple[DeleteRecordsPartitionStatus, ...]], ...]

    def try_complete(self, now_ms: int) -> DeleteRecordsResponse | None:
        """The response once no partition waits."""
        del now_ms
        waiting = False
        for status in self._all_statuses():
            if status.partition is not None and not _is_done(status, status.partition):
                waiting = True
        return None if waiting else self._response()

    def expire(self, now_ms: int) -> DeleteRecordsResponse:
        """The response with REQUEST_TIMED_OUT for the partitions that still wait."""
        self.try_complete(now_ms)
        for status in self._all_statuses():
            if status.partition is not None:
                status.answer = dataclasses.replace(
                    status.answer, error_code=ErrorCode.request_timed_out
                )
        return self._response()

    def keys(self) -> tuple[PartitionKey, ...]:
        """The partitions whose low watermark matters."""
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
    """Delete in every partition, make the new beginnings durable, then wait for the followers."""
    delayed = DelayedDeleteRecords(
        topics=tuple(
            (
                topic.name,
                tuple(_delete(broker, topic.name, partition) for partition in topic.partitions),
            )
            for topic in request.topics
        )
    )
    with suppress(StorageError):  # A crash might then bring records back, as with Kafka.
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
    """Refuse internal topics, but tell first of partitions that there are not, as Kafka does."""
    known = broker.metadata.topics.get(topic)
    if known is not None and known.is_internal and index in known.partitions:
        raise ApiError(
            ErrorCode.invalid_topic_exception,
            f"Clients cannot delete records of internal topic {topic!r}.",
        )


def _is_done(status: DeleteRecordsPartitionStatus, partition: Partition) -> bool:
    """Whether a partition waits no more; its answer says then what has come of it."""
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
