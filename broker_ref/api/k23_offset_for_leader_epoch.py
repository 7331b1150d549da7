"""OffsetForLeaderEpoch (23), versions 2 to 4: the end offset of a leader epoch.

Behaviour: the response contains the largest epoch in the log up to the requested one, and the start
offset of the next epoch, or the log end offset for the latest; -1 and -1 if the epoch is newer than
all epochs in the log, or -1. Followers use it to truncate (KIP-101, KIP-279), clients to detect
that records they read were truncated (KIP-320). Only the leader responds; leader epochs are
checked. Source: `kafka.server.KafkaApis.handleOffsetForLeaderEpochRequest`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import NO_THROTTLE_MS, Api, Broker, Call
from broker_ref.protocol.errors import ApiError


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedPartition:
    """A partition, the requested epoch, and the leader epoch that the client knows."""

    partition: int
    leader_epoch: int
    current_leader_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedTopic:
    """The partitions of a topic."""

    topic: str
    partitions: tuple[RequestedPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetForLeaderEpochRequest:
    """An OffsetForLeaderEpoch request."""

    topics: tuple[RequestedTopic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionAnswer:
    """The epoch and its end offset, or -1."""

    partition: int
    error_code: ErrorCode = ErrorCode.none
    leader_epoch: int = -1
    end_offset: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicAnswer:
    """The answers of a topic."""

    topic: str
    partitions: tuple[PartitionAnswer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetForLeaderEpochResponse:
    """An OffsetForLeaderEpoch response."""

    topics: tuple[TopicAnswer, ...]
    throttle_time_ms: int = NO_THROTTLE_MS


def handle(
    broker: Broker, call: Call, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    """Look up every partition."""
    del call
    return OffsetForLeaderEpochResponse(
        topics=tuple(
            TopicAnswer(
                topic=topic.topic,
                partitions=tuple(_answer(broker, topic.topic, each) for each in topic.partitions),
            )
            for topic in request.topics
        )
    )


def _answer(broker: Broker, topic: str, requested: RequestedPartition) -> PartitionAnswer:
    try:
        partition = broker.replicas.partition(topic, requested.partition)
        partition.check_leader(requested.current_leader_epoch)
    except ApiError as error:
        return PartitionAnswer(partition=requested.partition, error_code=error.error_code)
    epoch, end_offset = partition.log.leader_epochs.end_offset_for_epoch(
        requested.leader_epoch, log_end_offset=partition.log.log_end_offset
    )
    return PartitionAnswer(partition=requested.partition, leader_epoch=epoch, end_offset=end_offset)


API: Final = Api(key=23, versions=range(2, 5), request=OffsetForLeaderEpochRequest, handle=handle)
