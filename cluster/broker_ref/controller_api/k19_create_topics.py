"""CreateTopics (19), versions 2 to 7: create topics.

Each topic is validated separately, and all valid topics are created in one commit. A repeated topic
name is rejected with INVALID_REQUEST. If the request contains too many partitions in total, all
topics are rejected with POLICY_VIOLATION. A partition count or replication factor of -1 selects the
default (KIP-464). Both must be -1 if the request assigns the replicas manually. The error for an
invalid config is INVALID_CONFIG. With `validate_only`, no topic is created.

When the response is sent, the topic is stored durably in the metadata. Brokers create the logs when
they apply the metadata. Responses contain partition counts, replication factors and configs from
version 5 on (KIP-525), and topic ids from version 7 on. If a client may create a topic but not
describe its configs, the response contains only the topic id. Source:
`kafka.server.ControllerApis.handleCreateTopics`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.topic_descriptions import describe_topic_configs
from broker_ref.controller.records import ConfigResourceType
from broker_ref.controller.topics import CreatedTopic, NewTopic
from broker_ref.controller_api.contract import NO_THROTTLE_MS, Api, Call, ControllerContext
from broker_ref.dynamic_configs import DynamicBrokerConfig
from broker_ref.frozen import dataclass
from broker_ref.protocol.errors import ApiError
from broker_ref.protocol.identifiers import ZERO_UUID, Uuid
from broker_ref.security.acls import AclOperation, ResourceType


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The replicas of a partition."""

    partition_index: int
    broker_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """The name and value of a topic config."""

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
class ConfigResponse:
    """An effective config of the topic."""

    name: str
    value: str | None
    read_only: bool
    config_source: int
    is_sensitive: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicResponse:
    """The created topic, or an error."""

    name: str
    topic_id: Uuid = ZERO_UUID
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None
    topic_config_error_code: ErrorCode = ErrorCode.none
    num_partitions: int = -1
    replication_factor: int = -1
    configs: tuple[ConfigResponse, ...] | None = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopicsResponse:
    """A CreateTopics response."""

    topics: tuple[TopicResponse, ...]
    throttle_time_ms: int = NO_THROTTLE_MS


def handle(
    context: ControllerContext, call: Call, request: CreateTopicsRequest
) -> CreateTopicsResponse:
    """Create the valid topics."""
    by_name = {topic.name: topic for topic in request.topics}
    named = Counter(topic.name for topic in request.topics)
    outcomes: dict[str, CreatedTopic | ApiError] = {}
    for name in by_name:
        if named[name] > 1:
            outcomes[name] = ApiError(
                ErrorCode.invalid_request, "The topic name occurs more than once in the request."
            )
        elif not _may_create(call, name):
            outcomes[name] = call.auth.denial(AclOperation.CREATE, ResourceType.TOPIC, name)
    valid = [name for name in by_name if name not in outcomes]
    try:
        context.controller.topics.check_partition_total(_new_topic(by_name[name]) for name in valid)
    except ApiError as error:
        return CreateTopicsResponse(topics=tuple(_error_response(name, error) for name in by_name))
    try:
        created = context.controller.create_topics(
            [_new_topic(by_name[name]) for name in valid], validate_only=request.validate_only
        )
    except ApiError as error:  # The commit failed.
        created = [error] * len(valid)
    outcomes.update(zip(valid, created, strict=True))
    describe = _described(context)
    return CreateTopicsResponse(
        topics=tuple(
            _error_response(name, outcome)
            if isinstance(outcome := outcomes[name], ApiError)
            else _response(describe, call, name, outcome)
            for name in by_name
        )
    )


def _described(
    context: ControllerContext,
) -> Callable[[Mapping[str, str]], tuple[ConfigResponse, ...]]:
    """Return a function that describes a topic's configs and caches its results.

    Most topics in a request have the same configs.
    """
    configs = DynamicBrokerConfig(context.config)
    of_all_brokers = context.metadata.configs(ConfigResourceType.BROKER, "")
    configs.update(own={}, cluster=of_all_brokers)
    known: dict[frozenset[tuple[str, str]], tuple[ConfigResponse, ...]] = {}

    def describe(own: Mapping[str, str]) -> tuple[ConfigResponse, ...]:
        key = frozenset(own.items())
        if key not in known:
            known[key] = tuple(
                ConfigResponse(
                    name=described.name,
                    value=described.value,
                    read_only=False,
                    config_source=described.source,
                    is_sensitive=False,
                )
                for described in describe_topic_configs(configs, own)
            )
        return known[key]

    return describe


def _may_create(call: Call, name: str) -> bool:
    return call.auth.allows(AclOperation.CREATE, ResourceType.CLUSTER) or call.auth.allows(
        AclOperation.CREATE, ResourceType.TOPIC, name
    )


def _error_response(name: str, error: ApiError) -> TopicResponse:
    return TopicResponse(name=name, error_code=error.error_code, error_message=error.message)


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


def _response(
    describe: Callable[[Mapping[str, str]], tuple[ConfigResponse, ...]],
    call: Call,
    name: str,
    created: CreatedTopic,
) -> TopicResponse:
    if not call.auth.allows(AclOperation.DESCRIBE_CONFIGS, ResourceType.TOPIC, name):
        return TopicResponse(
            name=name,
            topic_id=created.topic_id,
            topic_config_error_code=ErrorCode.topic_authorization_failed,
        )
    return TopicResponse(
        name=name,
        topic_id=created.topic_id,
        num_partitions=created.partition_count,
        replication_factor=created.replication_factor,
        configs=describe(created.configs),
    )


API: Final = Api(key=19, versions=range(2, 8), request=CreateTopicsRequest, handle=handle)
