"""OffsetForLeaderEpoch (23), versions 2 to 4: where a leader epoch ends in the leader's log.

Behaviour: the answer is the largest epoch that the log has up to the one asked for, and the offset
at which the next begins, or the log end for the latest; -1 and -1 for an epoch that is newer than
all of the log's, or none. Followers find out with it where to truncate (KIP-101, KIP-279), clients
whether records that they read are gone (KIP-320). Only the leader answers, and leader epochs are
fenced.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import NO_THROTTLE_MS, Api, Broker, Call
from broker_ref.protocol.errors import ApiError


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedPartition:
    """A partition, the epoch asked for, and the one that the client takes for the present one."""

    partition: int
    leader_epoch: int
    current_leader_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedTopic:
    """Partitions of a topic."""

    topic: str
    partitions: tuple[RequestedPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetForLeaderEpochRequest:
    """What to look up."""

    topics: tuple[RequestedTopic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionAnswer:
    """The epoch found and where it ends; -1 for what there is not."""

    partition: int
    error_code: ErrorCode = ErrorCode.none
    leader_epoch: int = -1
    end_offset: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicAnswer:
    """The answers for a topic."""

    topic: str
    partitions: tuple[PartitionAnswer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetForLeaderEpochResponse:
    """The answers for every topic."""

    topics: tuple[TopicAnswer, ...]
    throttle_time_ms: int = NO_THROTTLE_MS


def handle(
    broker: Broker, call: Call, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    """Look every partition up."""
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
