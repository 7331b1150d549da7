"""ConsumerGroupHeartbeat (68), versions 0 and 1: join a consumer group and receive an assignment.

A member joins with epoch 0 and leaves with epoch -1. A static member that is going to rejoin leaves
with epoch -2. All other heartbeats contain the member's epoch. If the member's owned partitions
have changed, the heartbeat also contains these partitions. The response contains the member's
epoch, and the assignment if the assignment has changed. From version 1 on, members generate their
own ids (KIP-1082) and can subscribe with a regular expression.

Errors are INVALID_REQUEST, UNSUPPORTED_ASSIGNOR, GROUP_ID_NOT_FOUND, UNKNOWN_MEMBER_ID,
FENCED_MEMBER_EPOCH, UNRELEASED_INSTANCE_ID, FENCED_INSTANCE_ID, GROUP_MAX_SIZE_REACHED,
INVALID_REGULAR_EXPRESSION, TOPIC_AUTHORIZATION_FAILED, and UNSUPPORTED_VERSION if `group.version`
is 0. The broker responds when the changes to the group have been replicated to all in-sync
replicas. Source: KIP-848; `kafka.server.KafkaApis.handleConsumerGroupHeartbeat`.
"""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.consumer_groups import check_is_enabled
from broker_ref.api.contract import NO_THROTTLE_MS, Api, Broker, Call, on_group
from broker_ref.api.coordinator_replies import respond_to
from broker_ref.frozen import dataclass
from broker_ref.group.consumer.heartbeats import (
    NOT_SENT,
    ConsumerHeartbeat,
    ConsumerHeartbeatResult,
)
from broker_ref.protocol.errors import ApiError
from broker_ref.protocol.identifiers import Uuid
from broker_ref.security.acls import AclOperation, ResourceType

FIRST_VERSION_OF_OWN_MEMBER_ID: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPartitions:
    """Partitions of a topic."""

    topic_id: Uuid
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The partitions assigned to a member."""

    topic_partitions: tuple[TopicPartitions, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupHeartbeatRequest:
    """A ConsumerGroupHeartbeat request. Fields are None or -1 if they have not changed."""

    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = NOT_SENT
    subscribed_topic_names: tuple[str, ...] | None = None
    subscribed_topic_regex: str | None = None
    server_assignor: str | None = None
    topic_partitions: tuple[TopicPartitions, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupHeartbeatResponse:
    """A ConsumerGroupHeartbeat response."""

    error_code: ErrorCode
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: Assignment | None = None
    throttle_time_ms: int = NO_THROTTLE_MS


def handle(broker: Broker, call: Call, request: ConsumerGroupHeartbeatRequest) -> object:
    """Pass the request to the group coordinator. Return the response or a `Wait`."""

    def is_visible(topic: str) -> bool:
        return call.auth.allows(AclOperation.DESCRIBE, ResourceType.TOPIC, topic)

    try:
        check_is_enabled(broker)
    except ApiError as error:
        return ConsumerGroupHeartbeatResponse(
            error_code=error.error_code, error_message=error.message
        )
    if not all(map(is_visible, request.subscribed_topic_names or ())):
        return ConsumerGroupHeartbeatResponse(error_code=ErrorCode.topic_authorization_failed)
    heartbeat = ConsumerHeartbeat(
        group_id=request.group_id,
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        subscribed_topic_names=request.subscribed_topic_names,
        subscribed_topic_regex=request.subscribed_topic_regex,
        server_assignor=request.server_assignor,
        topic_partitions=_owned(request),
        client_id=call.client_id or "",
        client_host=f"/{call.client_host}",
        requires_member_id=call.version >= FIRST_VERSION_OF_OWN_MEMBER_ID,
    )
    return respond_to(
        broker.groups.consumer_heartbeat(heartbeat, is_visible, call.now_ms), _respond
    )


def _owned(request: ConsumerGroupHeartbeatRequest) -> dict[Uuid, frozenset[int]] | None:
    """Return the partitions that the member owns. The request may contain a topic several times.

    Topics without partitions are included, because the list of a joining member must be empty.
    """
    if request.topic_partitions is None:
        return None
    owned: dict[Uuid, set[int]] = {}
    for one in request.topic_partitions:
        owned.setdefault(one.topic_id, set()).update(one.partitions)
    return {topic_id: frozenset(partitions) for topic_id, partitions in owned.items()}


def _respond(result: ConsumerHeartbeatResult) -> ConsumerGroupHeartbeatResponse:
    assignment = None
    if result.assignment is not None:
        assignment = Assignment(
            topic_partitions=tuple(
                TopicPartitions(topic_id=topic_id, partitions=tuple(sorted(partitions)))
                for topic_id, partitions in result.assignment.items()
            )
        )
    return ConsumerGroupHeartbeatResponse(
        error_code=result.error_code,
        error_message=result.error_message,
        member_id=result.member_id,
        member_epoch=result.member_epoch,
        heartbeat_interval_ms=result.heartbeat_interval_ms,
        assignment=assignment,
    )


API: Final = Api(
    key=68,
    versions=range(2),
    request=ConsumerGroupHeartbeatRequest,
    handle=handle,
    requires=(on_group(AclOperation.READ),),
)
