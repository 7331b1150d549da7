"""OffsetForLeaderEpoch (23), versions 2 to 4: the end offset of a leader epoch.

The response contains the largest leader epoch in the log that is not above the requested epoch, and
the end offset of this epoch. The end offset is the start offset of the next epoch, or the log end
offset for the latest epoch. Both values are -1 if the requested epoch is -1 or above all epochs in
the log. Followers use the end offset to truncate their logs (KIP-101, KIP-279). Clients use the end
offset to detect the truncation of records that they have read (KIP-320). Only the leader returns
end offsets. It first checks the leader epoch in the request. Source:
`kafka.server.KafkaApis.handleOffsetForLeaderEpochRequest`.
"""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import NO_THROTTLE_MS, Api, Broker, Call
from broker_ref.frozen import dataclass
from broker_ref.protocol.errors import ApiError
from broker_ref.security.acls import AclOperation, ResourceType


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedPartition:
    """A partition, the requested leader epoch, and the leader epoch that the client expects."""

    partition: int
    leader_epoch: int
    current_leader_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedTopic:
    """The requested partitions of a topic."""

    topic: str
    partitions: tuple[RequestedPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetForLeaderEpochRequest:
    """An OffsetForLeaderEpoch request."""

    topics: tuple[RequestedTopic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionResponse:
    """The leader epoch and its end offset, or -1."""

    partition: int
    error_code: ErrorCode = ErrorCode.none
    leader_epoch: int = -1
    end_offset: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicResponse:
    """The partition responses for a topic."""

    topic: str
    partitions: tuple[PartitionResponse, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetForLeaderEpochResponse:
    """An OffsetForLeaderEpoch response."""

    topics: tuple[TopicResponse, ...]
    throttle_time_ms: int = NO_THROTTLE_MS


def handle(
    broker: Broker, call: Call, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    """Look up the end offset for every partition."""
    return OffsetForLeaderEpochResponse(
        topics=tuple(
            TopicResponse(
                topic=topic.topic,
                partitions=tuple(
                    _partition(broker, call, topic.topic, each) for each in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )


def _partition(
    broker: Broker, call: Call, topic: str, requested: RequestedPartition
) -> PartitionResponse:
    try:
        if not call.auth.allows(AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER):
            call.auth.check_topic(AclOperation.DESCRIBE, topic)
        partition = broker.replicas.partition(topic, requested.partition)
        partition.check_leader(requested.current_leader_epoch)
    except ApiError as error:
        return PartitionResponse(partition=requested.partition, error_code=error.error_code)
    epoch, end_offset = partition.log.leader_epochs.end_offset_for_epoch(
        requested.leader_epoch, log_end_offset=partition.log.log_end_offset
    )
    return PartitionResponse(
        partition=requested.partition, leader_epoch=epoch, end_offset=end_offset
    )


API: Final = Api(key=23, versions=range(2, 5), request=OffsetForLeaderEpochRequest, handle=handle)
