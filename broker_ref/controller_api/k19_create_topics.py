"""CreateTopics (19), versions 2 to 7: create topics.

Behaviour: each topic is created or rejected separately, except for repeated names (INVALID_REQUEST)
and too many partitions in total (POLICY_VIOLATION for all). Counts of -1 use the broker's defaults
(KIP-464); a manual assignment of replicas excludes counts; configs are validated (INVALID_CONFIG);
`validate_only` creates nothing. The response implies that the topic is durable in the metadata;
brokers open the logs when they apply it. Responses contain counts and configs from version 5 on
(KIP-525), and topic ids from version 7 on. Source:
`kafka.server.ControllerApis.handleCreateTopics`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.topic_descriptions import describe_topic_configs
from broker_ref.controller.topics import CreatedTopic, NewTopic
from broker_ref.controller_api.contract import NO_THROTTLE_MS, Api, Call, ControllerContext
from broker_ref.protocol.errors import ApiError
from broker_ref.protocol.identifiers import ZERO_UUID, Uuid


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The replicas of a partition."""

    partition_index: int
    broker_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """A config of a topic."""

    name: str
    value: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedTopic:
    """A topic to create."""

    name: str
    num_partitions: int
    replication_factor: int
    assignments: tuple[Assignment, ...]
    configs: tuple[TopicConfig, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopicsRequest:
    """A CreateTopics request."""

    topics: tuple[RequestedTopic, ...]
    validate_only: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredConfig:
    """An effective config of the topic."""

    name: str
    value: str | None
    read_only: bool
    config_source: int
    is_sensitive: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicAnswer:
    """The new topic, or an error."""

    name: str
    topic_id: Uuid = ZERO_UUID
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None
    num_partitions: int = -1
    replication_factor: int = -1
    configs: tuple[AnsweredConfig, ...] | None = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopicsResponse:
    """A CreateTopics response."""

    topics: tuple[TopicAnswer, ...]
    throttle_time_ms: int = NO_THROTTLE_MS


def handle(
    context: ControllerContext, call: Call, request: CreateTopicsRequest
) -> CreateTopicsResponse:
    """Create each topic."""
    del call
    try:
        context.controller.topics.check_partition_total(
            _new_topic(topic) for topic in request.topics
        )
    except ApiError as error:
        return CreateTopicsResponse(
            topics=tuple(_refusal(name, error) for name in {t.name: t for t in request.topics})
        )
    named = Counter(topic.name for topic in request.topics)
    answers = []
    for topic in {topic.name: topic for topic in request.topics}.values():
        try:
            if named[topic.name] > 1:
                raise ApiError(ErrorCode.invalid_request, "Duplicate topic name.")
            created = context.controller.create_topic(
                _new_topic(topic), validate_only=request.validate_only
            )
        except ApiError as error:
            answers.append(_refusal(topic.name, error))
        else:
            answers.append(_answer(context, topic.name, created, request.validate_only))
    return CreateTopicsResponse(topics=tuple(answers))


def _refusal(name: str, error: ApiError) -> TopicAnswer:
    return TopicAnswer(name=name, error_code=error.error_code, error_message=error.message)


def _new_topic(topic: RequestedTopic) -> NewTopic:
    return NewTopic(
        name=topic.name,
        partition_count=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments=tuple(
            (assignment.partition_index, assignment.broker_ids) for assignment in topic.assignments
        ),
        configs={config.name: config.value for config in topic.configs},
    )


def _answer(
    context: ControllerContext, name: str, created: CreatedTopic, validate_only: bool
) -> TopicAnswer:
    return TopicAnswer(
        name=name,
        topic_id=ZERO_UUID if validate_only else created.topic_id,
        num_partitions=created.partition_count,
        replication_factor=created.replication_factor,
        configs=tuple(
            AnsweredConfig(
                name=described.name,
                value=described.value,
                read_only=False,
                config_source=described.source,
                is_sensitive=False,
            )
            for described in describe_topic_configs(context.config, created.configs)
        ),
    )


API: Final = Api(key=19, versions=range(2, 8), request=CreateTopicsRequest, handle=handle)
