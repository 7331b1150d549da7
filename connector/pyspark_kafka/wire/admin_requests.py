"""Sends administrative requests for topics and brokers, without retries.

CreateTopics requests are serialized with kio, but DescribeConfigs requests are not. The lists of
replicas and brokers come from Metadata responses. If a response does not contain exactly the
requested resources, an error is raised. Errors contain the broker's message. Sources:
CreateTopicsRequest.json and DescribeConfigsRequest.json of Kafka; KIP-226, KIP-569.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from pyspark_kafka.errors import KafkaError, ProtocolError, sentence
from pyspark_kafka.wire.connection import Connection, Request, entity_request
from pyspark_kafka.wire.error_codes import REACTIONS, Reaction, error_class, format_code
from pyspark_kafka.wire.metadata import NO_LEADER, Broker, metadata_request
from pyspark_kafka.wire.reader import MalformedResponseError, Reader
from pyspark_kafka.wire.router import ApiError, Router
from pyspark_kafka.wire.versions import Api
from pyspark_kafka.wire.writer import NO_TAGGED_FIELDS, int8, length, string

_TOPIC: Final = 2
_BROKER: Final = 4
_FIRST_FLEXIBLE_CONFIGS: Final = 4
_FIRST_WITH_DOCUMENTATION: Final = 3
_ALL_KEYS: Final = -1


def create_topic(
    router: Router,
    topic: str,
    *,
    partition_count: int,
    replication_factor: int,
    config: Mapping[str, str],
    deadline: float,
) -> bool:
    """Create a topic. Return False if it already exists. Raises `ApiError` or `KafkaError`."""
    metadata = router.refresh([], deadline=deadline)
    controller = metadata.brokers.get(metadata.controller_id)
    if controller is None:
        raise ApiError(ErrorCode.not_controller, "finding the controller")
    connection = router.connection(controller, deadline=deadline)
    request = entity_request(
        Api.CREATE_TOPICS,
        connection.versions.choose(Api.CREATE_TOPICS),
        topics=[
            {
                "name": topic,
                "num_partitions": partition_count,
                "replication_factor": replication_factor,
                "assignments": [],
                "configs": [{"name": name, "value": value} for name, value in config.items()],
            }
        ],
        timeout=int(router.clock.left_s(deadline) * 1000),
    )
    response = router.call(connection, request, deadline=deadline)
    operation = f"creating topic {topic!r}"
    if [result.name for result in response.topics] != [topic]:
        raise ProtocolError(
            f"{sentence(operation)} failed: the topics in the response from "
            f"{connection.broker} do not match the request.",
            topic=topic,
        )
    (result,) = response.topics
    if result.error_code is ErrorCode.topic_already_exists:
        return False
    _check(result.error_code, result.error_message, operation, topic=topic)
    return True


def check_leaders(router: Router, topic: str, *, deadline: float) -> None:
    """Raise `ApiError` unless every partition of the topic has a leader.

    If the metadata does not contain the topic yet, the topic has no leaders.
    """
    metadata = router.refresh([topic], deadline=deadline)
    found = metadata.topics.get(topic)
    operation = f"finding the leaders of topic {topic!r}"
    failed = metadata.failed.get(topic, ErrorCode.unknown_topic_or_partition)
    if found is None and failed is not ErrorCode.unknown_topic_or_partition:
        raise ApiError(failed, operation, topic=topic)
    if found is None or any(
        partition.leader_id == NO_LEADER for partition in found.partitions.values()
    ):
        raise ApiError(ErrorCode.leader_not_available, operation, topic=topic)


def replication_of(router: Router, topic: str, *, deadline: float) -> int:
    """Return the lowest replica count among the topic's partitions. Raises `ApiError`."""

    def make_request(connection: Connection) -> Request[Any]:
        return metadata_request(connection.versions.choose(Api.METADATA), [topic])

    response = router.call_any(make_request, deadline=deadline)
    operation = f"finding the replicas of topic {topic!r}"
    codes = {found.name: found.error_code for found in response.topics}
    code = codes.get(topic, ErrorCode.unknown_topic_or_partition)
    if code not in (ErrorCode.none, ErrorCode.leader_not_available):
        raise ApiError(code, operation, topic=topic)
    counts = [
        len(partition.replica_nodes) for found in response.topics for partition in found.partitions
    ]
    if not counts:
        raise ApiError(ErrorCode.leader_not_available, operation, topic=topic)
    return min(counts)


def brokers(router: Router, *, deadline: float) -> Sequence[Broker]:
    """Return the live brokers. Raises `ApiError` if the metadata contains no broker."""
    found = router.refresh([], deadline=deadline).brokers
    if not found:
        raise ApiError(ErrorCode.broker_not_available, "finding the brokers")
    return list(found.values())


def topic_config(router: Router, topic: str, *, deadline: float) -> Mapping[str, str]:
    """Return the effective configs of a topic, without sensitive values. Raises `ApiError`."""
    connection = router.any_connection(deadline=deadline)
    return _config(router, connection, _TOPIC, topic, deadline)


def broker_config(router: Router, broker: Broker, *, deadline: float) -> Mapping[str, str]:
    """Request the configs of a broker from the broker itself. Raises `ApiError`."""
    connection = router.connection(broker, deadline=deadline)
    return _config(router, connection, _BROKER, str(broker.broker_id), deadline)


def _config(
    router: Router, connection: Connection, kind: int, name: str, deadline: float
) -> Mapping[str, str]:
    version = connection.versions.choose(Api.DESCRIBE_CONFIGS)
    request = describe_configs_request(version, kind, name)
    response = router.call(connection, request, deadline=deadline)
    what = f"topic {name!r}" if kind == _TOPIC else f"broker {name}"
    if kind == _TOPIC:
        router.invalidate(response.error_code, topic=name)
    fields = {"topic": name} if kind == _TOPIC else {}
    operation = f"describing the configs of {what}"
    _check(response.error_code, response.error_message, operation, **fields)
    found: Mapping[str, str] = response.config
    return found


def _check(code: ErrorCode, message: str | None, operation: str, **fields: Any) -> None:
    """Raise an error unless the error code is NONE.

    Raises `KafkaError` if the error is permanent and the broker sent a message. Otherwise,
    raises `ApiError`.
    """
    if code is ErrorCode.none:
        return
    kind = error_class(code)
    if kind is not KafkaError or REACTIONS[code] is not Reaction.FAIL or not message:
        raise ApiError(code, operation, **fields)
    raise KafkaError(
        f"{sentence(operation)} failed: {format_code(code)} ({message.removesuffix('.')}).",
        **fields,
    )


class _Config(NamedTuple):
    throttle_ms: int
    error_code: ErrorCode
    error_message: str | None
    config: Mapping[str, str]


def describe_configs_request(version: int, kind: int, name: str) -> Request[_Config]:
    """Build a DescribeConfigs request for all configs of one resource."""
    flexible = version >= _FIRST_FLEXIBLE_CONFIGS
    end = NO_TAGGED_FIELDS if flexible else b""
    body = length(1, flexible=flexible) + int8(kind) + string(name, flexible=flexible)
    body += length(_ALL_KEYS, flexible=flexible) + end
    body += int8(0)  # no synonyms
    if version >= _FIRST_WITH_DOCUMENTATION:
        body += int8(0)  # no documentation

    def read(reader: Reader) -> _Config:
        throttle_ms = reader.int32("throttle_time_ms")
        results = reader.array(
            lambda: _read_config(version, kind, name, throttle_ms, reader),
            "results",
            flexible=flexible,
        )
        if len(results) != 1:
            raise MalformedResponseError(
                f"the response contains {len(results)} resources instead of one"
            )
        if flexible:
            reader.skip_tagged_fields("the response")
        return results[0]

    return Request(
        api=Api.DESCRIBE_CONFIGS,
        version=version,
        body=(body + end,),
        read=read,
        throttle_ms=lambda response: response.throttle_ms,
    )


def _read_config(version: int, kind: int, name: str, throttle_ms: int, reader: Reader) -> _Config:
    flexible = version >= _FIRST_FLEXIBLE_CONFIGS
    error_code = reader.error_code("error_code")
    message = reader.nullable_string("error_message", flexible=flexible)
    resource = (reader.int8("resource_type"), reader.string("resource_name", flexible=flexible))
    if resource != (kind, name):
        raise MalformedResponseError(
            f"the response contains resource {resource} instead of {(kind, name)}"
        )
    settings = reader.array(lambda: _read_setting(version, reader), "configs", flexible=flexible)
    if flexible:
        reader.skip_tagged_fields("a resource")
    config = {setting: value for setting, value in settings if value is not None}
    return _Config(throttle_ms, error_code, message, config)


def _read_setting(version: int, reader: Reader) -> tuple[str, str | None]:
    flexible = version >= _FIRST_FLEXIBLE_CONFIGS
    name = reader.string("name", flexible=flexible)
    value = reader.nullable_string("value", flexible=flexible)
    reader.boolean("read_only")
    reader.int8("config_source")
    reader.boolean("is_sensitive")
    reader.array(lambda: _skip_synonym(reader, flexible=flexible), "synonyms", flexible=flexible)
    if version >= _FIRST_WITH_DOCUMENTATION:
        reader.int8("config_type")
        reader.nullable_string("documentation", flexible=flexible)
    if flexible:
        reader.skip_tagged_fields("a setting")
    return name, value


def _skip_synonym(reader: Reader, *, flexible: bool) -> None:
    reader.string("name", flexible=flexible)
    reader.nullable_string("value", flexible=flexible)
    reader.int8("source")
    if flexible:
        reader.skip_tagged_fields("a synonym")
