"""ConsumerGroupDescribe (69), versions 0 and 1: consumer groups with their members.

The response contains the epochs of a group, and the current and target assignments of its members.
From version 1 on, it also contains the protocol of each member (KIP-1099). The error is
GROUP_ID_NOT_FOUND for a group that does not exist and for a classic group. The error is
TOPIC_AUTHORIZATION_FAILED if a topic is assigned to a member and the client may not describe this
topic. Source: KIP-848; `kafka.server.KafkaApis.handleConsumerGroupDescribe`.
"""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.consumer_groups import check_is_enabled
from broker_ref.api.contract import NO_THROTTLE_MS, OPERATIONS_NOT_REQUESTED, Api, Broker, Call
from broker_ref.controller.metadata import ClusterMetadata
from broker_ref.frozen import dataclass
from broker_ref.group.consumer import assignment as partitions
from broker_ref.group.consumer.group import ConsumerGroup
from broker_ref.group.consumer.member import ConsumerGroupMember
from broker_ref.protocol.errors import ApiError
from broker_ref.protocol.identifiers import Uuid
from broker_ref.security.acls import AclOperation, ResourceType

CLASSIC_MEMBER: Final = 0
CONSUMER_MEMBER: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupDescribeRequest:
    """A ConsumerGroupDescribe request."""

    group_ids: tuple[str, ...]
    include_authorized_operations: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPartitions:
    """Partitions of a topic."""

    topic_id: Uuid
    topic_name: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The partitions assigned to a member."""

    topic_partitions: tuple[TopicPartitions, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A group member. Its assignment includes the partitions that the member must revoke."""

    member_id: str
    instance_id: str | None
    rack_id: str | None
    member_epoch: int
    client_id: str
    client_host: str
    subscribed_topic_names: tuple[str, ...]
    subscribed_topic_regex: str | None
    assignment: Assignment
    target_assignment: Assignment
    member_type: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupResponse:
    """The description of a group."""

    group_id: str
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None
    group_state: str = ""
    group_epoch: int = 0
    assignment_epoch: int = 0
    assignor_name: str = ""
    members: tuple[Member, ...] = ()
    authorized_operations: int = OPERATIONS_NOT_REQUESTED


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupDescribeResponse:
    """A ConsumerGroupDescribe response."""

    groups: tuple[GroupResponse, ...]
    throttle_time_ms: int = NO_THROTTLE_MS


def handle(
    broker: Broker, call: Call, request: ConsumerGroupDescribeRequest
) -> ConsumerGroupDescribeResponse:
    """Describe each group once, even if the request repeats it."""
    return ConsumerGroupDescribeResponse(
        groups=tuple(
            _described(broker, call, request, one) for one in dict.fromkeys(request.group_ids)
        )
    )


def _described(
    broker: Broker, call: Call, request: ConsumerGroupDescribeRequest, group_id: str
) -> GroupResponse:
    try:
        check_is_enabled(broker)
        call.auth.check(AclOperation.DESCRIBE, ResourceType.GROUP, group_id)
        group, assignor = broker.groups.describe_consumer_group(group_id)
        members = tuple(
            _member(group, member, broker.metadata) for member in group.members.values()
        )
        _check_topics(call, members)
    except ApiError as error:
        return GroupResponse(
            group_id=group_id, error_code=error.error_code, error_message=error.message
        )
    operations = OPERATIONS_NOT_REQUESTED
    if request.include_authorized_operations:
        operations = call.auth.authorized_operations(ResourceType.GROUP, group_id)
    return GroupResponse(
        group_id=group_id,
        group_state=group.state.value,
        group_epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=assignor,
        members=members,
        authorized_operations=operations,
    )


def _check_topics(call: Call, members: tuple[Member, ...]) -> None:
    topics = {
        one.topic_name
        for member in members
        for assignment in (member.assignment, member.target_assignment)
        for one in assignment.topic_partitions
    }
    if not all(call.auth.allows(AclOperation.DESCRIBE, ResourceType.TOPIC, one) for one in topics):
        raise ApiError(
            ErrorCode.topic_authorization_failed,
            "The group has described topic(s) that the client is not authorized to describe.",
        )


def _member(group: ConsumerGroup, member: ConsumerGroupMember, metadata: ClusterMetadata) -> Member:
    owned = partitions.assignment_of(
        (topic_id, partition)
        for assigned in (member.assigned, member.pending_revocation)
        for topic_id, epochs in assigned.items()
        for partition in epochs
    )
    return Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=tuple(sorted(member.subscribed_topic_names)),
        subscribed_topic_regex=member.subscribed_topic_regex,
        assignment=_assignment(owned, metadata),
        target_assignment=_assignment(group.target.get(member.member_id, {}), metadata),
        member_type=CLASSIC_MEMBER if member.uses_classic_protocol else CONSUMER_MEMBER,
    )


def _assignment(assigned: partitions.Assignment, metadata: ClusterMetadata) -> Assignment:
    """Return the partitions of topics that exist."""
    return Assignment(
        topic_partitions=tuple(
            TopicPartitions(
                topic_id=topic_id,
                topic_name=metadata.topics_by_id[topic_id].name,
                partitions=tuple(sorted(found)),
            )
            for topic_id, found in assigned.items()
            if topic_id in metadata.topics_by_id
        )
    )


API: Final = Api(key=69, versions=range(2), request=ConsumerGroupDescribeRequest, handle=handle)
