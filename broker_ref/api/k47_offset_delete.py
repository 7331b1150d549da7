"""OffsetDelete (47), version 0: delete a group's offsets of partitions (KIP-496).

Behaviour: GROUP_SUBSCRIBED_TO_TOPIC: a member subscribes to the topic; UNKNOWN_TOPIC_OR_PARTITION:
no such partition; an offset that was never committed counts as deleted. Pending offsets of an open
transaction are deleted too, and its marker does not restore them. Errors of the whole request:
INVALID_GROUP_ID, GROUP_ID_NOT_FOUND, and NON_EMPTY_GROUP if the members are not consumers. Source:
`kafka.server.KafkaApis.handleOffsetDeleteRequest`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import NO_THROTTLE_MS, Api, Broker, Call
from broker_ref.api.coordinator_replies import answer
from broker_ref.group.offsets import TopicPartition
from broker_ref.protocol.errors import ApiError


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedPartition:
    """A partition whose offset is deleted."""

    partition_index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedTopic:
    """The partitions of a topic."""

    name: str
    partitions: tuple[DeletedPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetDeleteRequest:
    """An OffsetDelete request."""

    group_id: str
    topics: tuple[DeletedTopic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionAnswer:
    """The result of a partition."""

    partition_index: int
    error_code: ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicAnswer:
    """The results of a topic."""

    name: str
    partitions: tuple[PartitionAnswer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetDeleteResponse:
    """An OffsetDelete response."""

    error_code: ErrorCode = ErrorCode.none
    topics: tuple[TopicAnswer, ...] = ()
    throttle_time_ms: int = NO_THROTTLE_MS


def handle(broker: Broker, call: Call, request: OffsetDeleteRequest) -> object:
    """Delete the offsets."""
    present = [
        key
        for topic in request.topics
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
        unknown = ErrorCode.unknown_topic_or_partition
        return _response(request, lambda key: codes.get(key, unknown))

    return answer(reply, respond)


def _response(
    request: OffsetDeleteRequest, code: Callable[[TopicPartition], ErrorCode]
) -> OffsetDeleteResponse:
    return OffsetDeleteResponse(
        topics=tuple(
            TopicAnswer(
                name=topic.name,
                partitions=tuple(
                    PartitionAnswer(partition_index=key.partition, error_code=code(key))
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


API: Final = Api(key=47, versions=range(1), request=OffsetDeleteRequest, handle=handle)
