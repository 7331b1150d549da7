"""CreateTopics (19), versions 2 to 7: make topics.

Behaviour: each topic is made or refused by itself, unless the request names it twice
(INVALID_REQUEST), or asks for too many partitions in all (POLICY_VIOLATION for every one). Counts
of -1 take the broker's defaults (KIP-464), an assignment of replicas by hand excludes counts,
configs are checked (INVALID_CONFIG), `validate_only` makes nothing. Made is what the answer says:
the controller has noted it durably; brokers open the logs as they learn of it. From version 5 the
answer tells counts and configs (KIP-525), from 7 topic ids.
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
    """A topic to make."""

    name: str
    num_partitions: int
    replication_factor: int
    assignments: tuple[Assignment, ...]
    configs: tuple[TopicConfig, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopicsRequest:
    """Topics to make, or only to check."""

    topics: tuple[RequestedTopic, ...]
    validate_only: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredConfig:
    """A config as it holds for the topic."""

    name: str
    value: str | None
    read_only: bool
    config_source: int
    is_sensitive: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicAnswer:
    """The topic made, or why it is not."""

    name: str
    topic_id: Uuid = ZERO_UUID
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None
    num_partitions: int = -1
    replication_factor: int = -1
    configs: tuple[AnsweredConfig, ...] | None = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopicsResponse:
    """The answers for every topic."""

    topics: tuple[TopicAnswer, ...]
    throttle_time_ms: int = NO_THROTTLE_MS


def handle(
    context: ControllerContext, call: Call, request: CreateTopicsRequest
) -> CreateTopicsResponse:
    """Make one topic after the other."""
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
