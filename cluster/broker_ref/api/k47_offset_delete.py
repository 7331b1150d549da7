"""OffsetDelete (47), version 0: delete committed offsets of a group (KIP-496).

The error for a partition is GROUP_SUBSCRIBED_TO_TOPIC if a member is subscribed to its topic, and
UNKNOWN_TOPIC_OR_PARTITION if the partition does not exist. Deleting an offset that was never
committed succeeds. Pending offsets of an open transaction are also deleted, and the transaction
marker does not restore them. The whole request fails with one of these errors:

- INVALID_GROUP_ID: the group id is invalid.
- GROUP_ID_NOT_FOUND: the group does not exist.
- NON_EMPTY_GROUP: the group has members that are not consumers.

Source: `kafka.server.KafkaApis.handleOffsetDeleteRequest`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import NO_THROTTLE_MS, Api, Broker, Call, on_group
from broker_ref.api.coordinator_replies import respond_to
from broker_ref.frozen import dataclass
from broker_ref.group.offsets import TopicPartition
from broker_ref.protocol.errors import ApiError
from broker_ref.security.acls import AclOperation, ResourceType


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedPartition:
    """A partition whose committed offset is deleted."""

    partition_index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedTopic:
    """The requested partitions of a topic."""

    name: str
    partitions: tuple[DeletedPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetDeleteRequest:
    """An OffsetDelete request."""

    group_id: str
    topics: tuple[DeletedTopic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionResponse:
    """The error code for a partition."""

    partition_index: int
    error_code: ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicResponse:
    """The partition results for a topic."""

    name: str
    partitions: tuple[PartitionResponse, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetDeleteResponse:
    """An OffsetDelete response."""

    error_code: ErrorCode = ErrorCode.none
    topics: tuple[TopicResponse, ...] = ()
    throttle_time_ms: int = NO_THROTTLE_MS


def handle(broker: Broker, call: Call, request: OffsetDeleteRequest) -> object:
    """Delete the committed offsets of the requested partitions."""
    unauthorized = {
        topic.name
        for topic in request.topics
        if not call.auth.allows(AclOperation.READ, ResourceType.TOPIC, topic.name)
    }
    present = [
        key
        for topic in request.topics
        if topic.name not in unauthorized
        for key in _keys(topic)
        if broker.metadata.partition(key.topic, key.partition) is not None
    ]
    try:
        codes, reply = broker.groups.delete_offsets(request.group_id, present, call.now_ms)
    except ApiError as error:
        return OffsetDeleteResponse(error_code=error.error_code)

    def respond(outcome: ErrorCode) -> OffsetDeleteResponse:
        if outcome is not ErrorCode.none:
            return OffsetDeleteResponse(error_code=outcome)
        return _response(request, code)

    def code(key: TopicPartition) -> ErrorCode:
        if key.topic in unauthorized:
            return ErrorCode.topic_authorization_failed
        return codes.get(key, ErrorCode.unknown_topic_or_partition)

    return respond_to(reply, respond)


def _response(
    request: OffsetDeleteRequest, code: Callable[[TopicPartition], ErrorCode]
) -> OffsetDeleteResponse:
    return OffsetDeleteResponse(
        topics=tuple(
            TopicResponse(
                name=topic.name,
                partitions=tuple(
                    PartitionResponse(partition_index=key.partition, error_code=code(key))
                    for key in _keys(topic)
                ),
            )
            for topic in request.topics
        )
    )


def _keys(topic: DeletedTopic) -> list[TopicPartition]:
    return [
        TopicPartition(topic=topic.name, partition=partition.partition_index)
        for partition in topic.partitions
    ]


API: Final = Api(
    key=47,
    versions=range(1),
    request=OffsetDeleteRequest,
    handle=handle,
    requires=(on_group(AclOperation.DELETE),),
)
