"""CreatePartitions (37), versions 0 to 3: add partitions to topics (KIP-195).

The response contains a result for each topic. The errors are:

- INVALID_REQUEST: the topic is repeated in the request.
- INVALID_PARTITIONS: the requested count is not above the current count.
- INVALID_REPLICA_ASSIGNMENT: a manual assignment does not match the new partitions, or contains
  brokers that are not registered.

Source: `kafka.server.ControllerApis.handleCreatePartitions`.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.controller_api.contract import NO_THROTTLE_MS, Api, Call, ControllerContext
from broker_ref.frozen import dataclass
from broker_ref.protocol.errors import ApiError
from broker_ref.security.acls import AclOperation


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The replicas of a new partition."""

    broker_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedTopic:
    """A topic and its new number of partitions."""

    name: str
    count: int
    assignments: tuple[Assignment, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePartitionsRequest:
    """A CreatePartitions request."""

    topics: tuple[RequestedTopic, ...]
    validate_only: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicResponse:
    """The error code for a topic."""

    name: str
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePartitionsResponse:
    """A CreatePartitions response."""

    results: tuple[TopicResponse, ...]
    throttle_time_ms: int = NO_THROTTLE_MS


def handle(
    context: ControllerContext, call: Call, request: CreatePartitionsRequest
) -> CreatePartitionsResponse:
    """Add partitions to each topic."""
    named = Counter(topic.name for topic in request.topics)
    responses = []
    for topic in {topic.name: topic for topic in request.topics}.values():
        try:
            if named[topic.name] > 1:
                raise ApiError(
                    ErrorCode.invalid_request,
                    "The topic name occurs more than once in the request.",
                )
            call.auth.check_topic(AclOperation.ALTER, topic.name)
            _create_partitions(context, topic, validate_only=request.validate_only)
        except ApiError as error:
            responses.append(
                TopicResponse(
                    name=topic.name, error_code=error.error_code, error_message=error.message
                )
            )
        else:
            responses.append(TopicResponse(name=topic.name))
    return CreatePartitionsResponse(results=tuple(responses))


def _create_partitions(
    context: ControllerContext, topic: RequestedTopic, *, validate_only: bool
) -> None:
    assignments = None
    if topic.assignments is not None:
        assignments = [assignment.broker_ids for assignment in topic.assignments]
    context.controller.create_partitions(
        topic.name, topic.count, assignments, validate_only=validate_only
    )


API: Final = Api(key=37, versions=range(4), request=CreatePartitionsRequest, handle=handle)
