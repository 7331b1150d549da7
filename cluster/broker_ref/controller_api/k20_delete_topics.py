"""DeleteTopics (20), versions 1 to 6: delete topics.

Topics are identified by name, and from version 6 on by name or topic id (KIP-516). When the
response is sent, the topics have been removed from the metadata. Brokers remove the logs and
committed offsets when they apply the metadata. If a topic name or id is repeated in the request,
the error is INVALID_REQUEST and the topic is not deleted, even if the client is not authorized to
delete it. The same applies if an entry contains both a name and an id, or neither. For authorized
clients, the error is also INVALID_REQUEST if a name and an id in the request identify the same
topic. If `delete.topic.enable` is false, the error for all topics is TOPIC_DELETION_DISABLED, or
INVALID_REQUEST before version 3. Source: `kafka.server.ControllerApis.handleDeleteTopics`.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.controller.metadata import Topic
from broker_ref.controller_api.contract import NO_THROTTLE_MS, Api, Call, ControllerContext
from broker_ref.frozen import dataclass
from broker_ref.protocol.errors import ApiError
from broker_ref.protocol.identifiers import ZERO_UUID, Uuid, uuid_text
from broker_ref.security.acls import AclOperation, ResourceType

FIRST_VERSION_BY_TOPIC_ID: Final = 6
FIRST_VERSION_OF_DELETION_DISABLED: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedTopic:
    """A topic, identified by name or id."""

    name: str | None
    topic_id: Uuid = ZERO_UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopicsRequest:
    """A DeleteTopics request.

    It contains `topic_names` up to version 5, and `topics` from version 6 on.
    """

    topic_names: tuple[str, ...] = ()
    topics: tuple[RequestedTopic, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicResponse:
    """The error code for a topic."""

    name: str | None
    topic_id: Uuid = ZERO_UUID
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopicsResponse:
    """A DeleteTopics response."""

    responses: tuple[TopicResponse, ...]
    throttle_time_ms: int = NO_THROTTLE_MS


def handle(
    context: ControllerContext, call: Call, request: DeleteTopicsRequest
) -> DeleteTopicsResponse:
    """Delete the requested topics that exist and that the client may delete, in one commit."""
    requested = request.topics
    if call.version < FIRST_VERSION_BY_TOPIC_ID:
        requested = tuple(RequestedTopic(name=name) for name in request.topic_names)
    counts = Counter(requested)
    found = {topic: _find(context, topic) for topic in counts}
    # If an id is repeated, the topic cannot be deleted by name either. If a name is repeated, the
    # topic can still be deleted by id.
    named = Counter(
        target.topic_id
        for topic, target in found.items()
        if isinstance(target, Topic) and not (counts[topic] > 1 and topic.name is not None)
    )
    repeated = ApiError(
        ErrorCode.invalid_request, "The topic occurs more than once in the request."
    )
    responses = tuple(
        _checked(context, call, topic, named, repeated if counts[topic] > 1 else target)
        for topic, target in found.items()
    )
    try:
        context.controller.delete_topics(
            target
            for response, target in zip(responses, found.values(), strict=True)
            if response.error_code is ErrorCode.none and isinstance(target, Topic)
        )
    except ApiError as error:  # The commit failed.
        responses = tuple(
            _failed(each, error) if each.error_code is ErrorCode.none else each
            for each in responses
        )
    return DeleteTopicsResponse(responses=tuple(dict.fromkeys(responses)))


def _find(context: ControllerContext, requested: RequestedTopic) -> Topic | ApiError:
    """Return the topic, or the error if the topic cannot be found."""
    by_id = requested.topic_id != ZERO_UUID
    if by_id and requested.name is not None:
        return ApiError(
            ErrorCode.invalid_request,
            "A topic must be specified by name or by id, not by both.",
        )
    if by_id:
        found = context.metadata.topics_by_id.get(requested.topic_id)
        if found is None:
            return ApiError(
                ErrorCode.unknown_topic_id,
                f"There is no topic with the id {uuid_text(requested.topic_id)}.",
            )
        return found
    if requested.name is None:
        return ApiError(
            ErrorCode.invalid_request,
            "A topic must be specified by name or by id, but both are missing.",
        )
    return context.metadata.topics.get(requested.name) or ApiError(
        ErrorCode.unknown_topic_or_partition, f"There is no topic {requested.name!r}."
    )


def _checked(
    context: ControllerContext,
    call: Call,
    requested: RequestedTopic,
    named: Mapping[Uuid, int],
    found: Topic | ApiError,
) -> TopicResponse:
    """Return the response for a topic, with an error code if the topic cannot be deleted."""
    response = TopicResponse(name=requested.name, topic_id=requested.topic_id)
    try:
        if not context.config.delete_topic_enable:
            known = call.version >= FIRST_VERSION_OF_DELETION_DISABLED
            raise ApiError(
                ErrorCode.topic_deletion_disabled if known else ErrorCode.invalid_request,
                "Topic deletion is disabled, because delete.topic.enable is false.",
            )
        if not _may_describe(call, requested, found):
            raise call.auth.denial(AclOperation.DESCRIBE, ResourceType.TOPIC, requested.name or "")
        if isinstance(found, ApiError):
            raise found
        if not _may(call, AclOperation.DELETE, found.name):
            response = TopicResponse(name=found.name, topic_id=requested.topic_id)
            raise call.auth.denial(AclOperation.DELETE, ResourceType.TOPIC, found.name)
        response = TopicResponse(name=found.name, topic_id=found.topic_id)
        if named[found.topic_id] > 1:
            raise ApiError(
                ErrorCode.invalid_request,
                "The request contains both the name and the id of the topic.",
            )
    except ApiError as error:
        return _failed(response, error)
    return response


def _failed(response: TopicResponse, error: ApiError) -> TopicResponse:
    return dataclasses.replace(response, error_code=error.error_code, error_message=error.message)


def _may_describe(call: Call, requested: RequestedTopic, found: Topic | ApiError) -> bool:
    """Return whether the response may reveal whether the topic exists."""
    if isinstance(found, Topic):
        return _may(call, AclOperation.DESCRIBE, found.name)
    if found.error_code is not ErrorCode.unknown_topic_or_partition:
        return True
    return _may(call, AclOperation.DESCRIBE, requested.name or "")


def _may(call: Call, operation: AclOperation, topic: str) -> bool:
    return call.auth.allows(AclOperation.DELETE, ResourceType.CLUSTER) or call.auth.allows(
        operation, ResourceType.TOPIC, topic
    )


API: Final = Api(key=20, versions=range(1, 7), request=DeleteTopicsRequest, handle=handle)
