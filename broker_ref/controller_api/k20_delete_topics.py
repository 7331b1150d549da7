"""DeleteTopics (20), versions 1 to 6: delete topics by name or, from version 6 on, by id (KIP-516).

Behaviour: the response implies that the topics are removed from the metadata; brokers remove their
logs and committed offsets when they apply it. INVALID_REQUEST: a topic that is repeated, by name or
by name and id, or that has both name and id, or neither; it is not deleted. If
`delete.topic.enable` is false, all topics are TOPIC_DELETION_DISABLED (INVALID_REQUEST before
version 3). Source: `kafka.server.ControllerApis.handleDeleteTopics`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.controller.metadata import Topic
from broker_ref.controller_api.contract import NO_THROTTLE_MS, Api, Call, ControllerContext
from broker_ref.protocol.errors import ApiError
from broker_ref.protocol.identifiers import ZERO_UUID, Uuid, uuid_text

FIRST_VERSION_BY_TOPIC_ID: Final = 6
FIRST_VERSION_OF_DELETION_DISABLED: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedTopic:
    """A topic by name or by id."""

    name: str | None
    topic_id: Uuid = ZERO_UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopicsRequest:
    """A DeleteTopics request: `topic_names` up to version 5, then `topics`."""

    topic_names: tuple[str, ...] = ()
    topics: tuple[RequestedTopic, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicAnswer:
    """The result of a topic."""

    name: str | None
    topic_id: Uuid = ZERO_UUID
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopicsResponse:
    """A DeleteTopics response."""

    responses: tuple[TopicAnswer, ...]
    throttle_time_ms: int = NO_THROTTLE_MS


def handle(
    context: ControllerContext, call: Call, request: DeleteTopicsRequest
) -> DeleteTopicsResponse:
    """Delete each topic."""
    requested = request.topics
    if call.version < FIRST_VERSION_BY_TOPIC_ID:
        requested = tuple(RequestedTopic(name=name) for name in request.topic_names)
    found = [_find(context, topic) for topic in requested]
    named = Counter(topic.topic_id for topic in found if isinstance(topic, Topic))
    answers = tuple(
        _delete(context, call, topic, named, found[index]) for index, topic in enumerate(requested)
    )
    return DeleteTopicsResponse(responses=tuple(dict.fromkeys(answers)))


def _find(context: ControllerContext, requested: RequestedTopic) -> Topic | ApiError:
    """Return the topic, or the error for a topic that cannot be found."""
    by_id = requested.topic_id != ZERO_UUID
    if by_id and requested.name is not None:
        return ApiError(
            ErrorCode.invalid_request, "You may not specify both topic name and topic id."
        )
    if by_id:
        found = context.metadata.topics_by_id.get(requested.topic_id)
        if found is None:
            return ApiError(
                ErrorCode.unknown_topic_id,
                f"There is no topic with id {uuid_text(requested.topic_id)}.",
            )
        return found
    if requested.name is None:
        return ApiError(ErrorCode.invalid_request, "Neither topic name nor id were specified.")
    return context.metadata.topics.get(requested.name) or ApiError(
        ErrorCode.unknown_topic_or_partition, f"There is no topic {requested.name!r}."
    )


def _delete(
    context: ControllerContext,
    call: Call,
    requested: RequestedTopic,
    named: Mapping[Uuid, int],
    found: Topic | ApiError,
) -> TopicAnswer:
    answered = TopicAnswer(name=requested.name, topic_id=requested.topic_id)
    try:
        if not context.config.delete_topic_enable:
            known = call.version >= FIRST_VERSION_OF_DELETION_DISABLED
            raise ApiError(
                ErrorCode.topic_deletion_disabled if known else ErrorCode.invalid_request,
                "Topic deletion is disabled: delete.topic.enable is false.",
            )
        if isinstance(found, ApiError):
            raise found
        answered = TopicAnswer(name=found.name, topic_id=found.topic_id)
        if named[found.topic_id] > 1:
            raise ApiError(ErrorCode.invalid_request, "Duplicate topic name.")
        context.controller.delete_topic(found)
    except ApiError as error:
        return TopicAnswer(
            name=answered.name,
            topic_id=answered.topic_id,
            error_code=error.error_code,
            error_message=error.message,
        )
    return answered


API: Final = Api(key=20, versions=range(1, 7), request=DeleteTopicsRequest, handle=handle)
