"""ConsumerGroupHeartbeat requests and their results.

Source: Kafka's `GroupCoordinatorService.throwIfConsumerGroupHeartbeatRequestIsInvalid`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.frozen import dataclass
from broker_ref.group.consumer.assignment import Assignment
from broker_ref.group.consumer.member import JOIN_EPOCH, LEAVE_EPOCH, LEAVE_STATIC_EPOCH
from broker_ref.protocol.errors import ApiError

NOT_SENT: Final = -1
"""The rebalance timeout in a heartbeat that does not change the timeout of the member."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeat:
    """A ConsumerGroupHeartbeat request. A field is None if it has not changed.

    `topic_partitions` contains the partitions that the member owns. `requires_member_id` is True if
    the client must generate the member id (version 1 and later, KIP-1082).
    """

    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = NOT_SENT
    subscribed_topic_names: Collection[str] | None = None
    subscribed_topic_regex: str | None = None
    server_assignor: str | None = None
    topic_partitions: Assignment | None = None
    client_id: str = ""
    client_host: str = ""
    requires_member_id: bool = True

    @property
    def is_leave(self) -> bool:
        """Whether the member is leaving the group."""
        return self.member_epoch in (LEAVE_EPOCH, LEAVE_STATIC_EPOCH)

    @property
    def is_full(self) -> bool:
        """Whether the request contains the full state of the member.

        Clients send such a request after errors.
        """
        has_subscription = (self.subscribed_topic_names, self.subscribed_topic_regex) != (
            None,
            None,
        )
        return (
            self.rebalance_timeout_ms != NOT_SENT
            and has_subscription
            and self.topic_partitions is not None
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeatResult:
    """The result of a heartbeat. `assignment` is None if the member already has its assignment."""

    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: Assignment | None = None


def check_heartbeat(request: ConsumerHeartbeat, assignors: Collection[str]) -> None:
    """Raise ApiError (INVALID_REQUEST or UNSUPPORTED_ASSIGNOR) for an invalid request."""
    epoch = request.member_epoch
    if request.requires_member_id or epoch > JOIN_EPOCH or epoch == LEAVE_EPOCH:
        _check_not_empty(request.member_id, "MemberId")
    _check_not_empty(request.group_id, "GroupId")
    _check_not_empty(request.instance_id, "InstanceId")
    _check_not_empty(request.rack_id, "RackId")
    if epoch == JOIN_EPOCH:
        if request.rebalance_timeout_ms == NOT_SENT:
            raise _invalid("RebalanceTimeoutMs must be provided in first request.")
        if request.topic_partitions is None or request.topic_partitions:
            raise _invalid("TopicPartitions must be empty when (re-)joining.")
        if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
            raise _invalid(
                "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when "
                "(re-)joining."
            )
    elif epoch == LEAVE_STATIC_EPOCH:
        if request.instance_id is None:
            raise _invalid("InstanceId can't be null.")
    elif epoch < LEAVE_STATIC_EPOCH:
        raise _invalid("MemberEpoch is invalid.")
    if request.server_assignor is not None and request.server_assignor not in assignors:
        raise ApiError(
            ErrorCode.unsupported_assignor,
            f"ServerAssignor {request.server_assignor} is not supported. Supported assignors: "
            f"{', '.join(assignors)}.",
        )


def _check_not_empty(text: str | None, name: str) -> None:
    if text is not None and not text.strip():
        raise _invalid(f"{name} can't be empty.")


def _invalid(message: str) -> ApiError:
    return ApiError(ErrorCode.invalid_request, message)
