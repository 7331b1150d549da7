"""CreatePartitions (37), versions 0 to 3: add partitions to topics (KIP-195).

Behaviour: one result per topic; INVALID_REQUEST: a repeated topic; INVALID_PARTITIONS: the count is
not an increase; INVALID_REPLICA_ASSIGNMENT: a manual assignment does not match the new partitions,
or names unregistered brokers. Source: `kafka.server.ControllerApis.handleCreatePartitions`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.controller_api.contract import NO_THROTTLE_MS, Api, Call, ControllerContext
from broker_ref.protocol.errors import ApiError


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
class TopicAnswer:
    """The result of a topic."""

    name: str
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePartitionsResponse:
    """A CreatePartitions response."""

    results: tuple[TopicAnswer, ...]
    throttle_time_ms: int = NO_THROTTLE_MS


def handle(
    context: ControllerContext, call: Call, request: CreatePartitionsRequest
) -> CreatePartitionsResponse:
    """Add partitions to each topic."""
    del call
    named = Counter(topic.name for topic in request.topics)
    answers = []
    for topic in {topic.name: topic for topic in request.topics}.values():
        try:
            if named[topic.name] > 1:
                raise ApiError(ErrorCode.invalid_request, "Duplicate topic name.")
            _grow(context, topic, validate_only=request.validate_only)
        except ApiError as error:
            answers.append(
                TopicAnswer(
                    name=topic.name, error_code=error.error_code, error_message=error.message
                )
            )
        else:
            answers.append(TopicAnswer(name=topic.name))
    return CreatePartitionsResponse(results=tuple(answers))


def _grow(context: ControllerContext, topic: RequestedTopic, *, validate_only: bool) -> None:
    assignments = None
    if topic.assignments is not None:
        assignments = [assignment.broker_ids for assignment in topic.assignments]
    context.controller.create_partitions(
        topic.name, topic.count, assignments, validate_only=validate_only
    )


API: Final = Api(key=37, versions=range(4), request=CreatePartitionsRequest, handle=handle)
