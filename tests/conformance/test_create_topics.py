"""Tests of CreateTopics and its errors."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from integration.raw import RawConnection
from tests.conformance.eventually import eventually
from tests.conformance.wire import describe_topics, only, served, topic_id

NameFactory = Callable[[], str]
TopicFactory = Callable[..., str]


def create(raw: RawConnection, *topics: dict[str, Any], **options: Any) -> Any:
    """Send CreateTopics v7; by default a topic has one partition and one replica."""
    requested = [
        {"num_partitions": 1, "replication_factor": 1, **topic}
        if "assignments" not in topic
        else {"num_partitions": -1, "replication_factor": -1, **topic}
        for topic in topics
    ]
    return raw.call("create_topics", 7, timeout=30_000, topics=requested, **options)


def create_one(raw: RawConnection, **topic: Any) -> Any:
    return only(create(raw, topic).topics)


def exists(raw: RawConnection, name: str) -> bool:
    return bool(only(describe_topics(raw, name).topics).error_code == ErrorCode.none)


def test_response_describes_the_topic(raw: RawConnection, unique_name: NameFactory) -> None:
    name = unique_name()
    result = create_one(
        raw, name=name, num_partitions=3, configs=[{"name": "retention.ms", "value": "1000"}]
    )
    assert (result.error_code, result.name) == (ErrorCode.none, name)
    assert (result.num_partitions, result.replication_factor) == (3, 1)
    assert isinstance(result.topic_id, uuid.UUID)
    # The controller responds before all brokers have the topic in their metadata.
    eventually(lambda: exists(raw, name))
    assert result.topic_id == topic_id(raw, name)
    configs = {config.name: config for config in result.configs}
    dynamic_topic, default = 1, 5
    assert (configs["retention.ms"].value, configs["retention.ms"].config_source) == (
        "1000",
        dynamic_topic,
    )
    assert (configs["cleanup.policy"].value, configs["cleanup.policy"].config_source) == (
        "delete",
        default,
    )


def test_every_version_creates_a_topic(raw: RawConnection, unique_name: NameFactory) -> None:
    for version in served(raw, "create_topics"):
        name = unique_name()
        topic = {"name": name, "num_partitions": 2, "replication_factor": 1}
        response = raw.call("create_topics", version, timeout=30_000, topics=[topic])
        result = only(response.topics)
        assert (result.error_code, result.name) == (ErrorCode.none, name), version
        eventually(lambda n=name: exists(raw, n))  # type: ignore[misc]
        assert len(only(describe_topics(raw, name).topics).partitions) == 2, version


def test_defaults_apply_where_counts_are_missing(
    raw: RawConnection, unique_name: NameFactory
) -> None:
    result = create_one(raw, name=unique_name(), num_partitions=-1, replication_factor=-1)
    assert result.error_code == ErrorCode.none
    assert (result.num_partitions, result.replication_factor) == (1, 1)


def test_replicas_may_be_assigned(raw: RawConnection, unique_name: NameFactory) -> None:
    assignments = [{"partition_index": i, "broker_ids": [1]} for i in range(2)]
    result = create_one(raw, name=unique_name(), assignments=assignments)
    assert (result.error_code, result.num_partitions) == (ErrorCode.none, 2)


def test_validate_only_creates_nothing(raw: RawConnection, unique_name: NameFactory) -> None:
    name = unique_name()
    result = only(create(raw, {"name": name}, validate_only=True).topics)
    assert result.error_code == ErrorCode.none
    assert result.topic_id is not None
    assert not exists(raw, name)
    bad = only(create(raw, {"name": name, "num_partitions": 0}, validate_only=True).topics)
    assert bad.error_code == ErrorCode.invalid_partitions


def test_existing_topic_is_not_created_again(raw: RawConnection, topic: TopicFactory) -> None:
    name = topic(partitions=2)
    before = topic_id(raw, name)
    result = create_one(raw, name=name, num_partitions=5)
    assert result.error_code == ErrorCode.topic_already_exists
    assert result.error_message
    assert topic_id(raw, name) == before
    assert len(only(describe_topics(raw, name).topics).partitions) == 2


@pytest.mark.parametrize("count", [0, -2])
def test_number_of_partitions_must_be_positive(
    raw: RawConnection, unique_name: NameFactory, count: int
) -> None:
    name = unique_name()
    result = create_one(raw, name=name, num_partitions=count)
    assert result.error_code == ErrorCode.invalid_partitions
    assert result.error_message
    result = create_one(raw, name=name, num_partitions=count, replication_factor=0)
    assert result.error_code == ErrorCode.invalid_replication_factor
    assert not exists(raw, name)


@pytest.mark.parametrize("factor", [0, -2, 99])
def test_replication_factor_above_the_number_of_brokers_is_refused(
    raw: RawConnection, unique_name: NameFactory, factor: int
) -> None:
    name = unique_name()
    result = create_one(raw, name=name, replication_factor=factor)
    assert result.error_code == ErrorCode.invalid_replication_factor
    assert not exists(raw, name)


@pytest.mark.parametrize(
    "assignments",
    [
        pytest.param([{"partition_index": 0, "broker_ids": [7]}], id="no such broker"),
        pytest.param([{"partition_index": 0, "broker_ids": [1, 1]}], id="a broker twice"),
        pytest.param([{"partition_index": 0, "broker_ids": []}], id="no broker"),
        pytest.param([{"partition_index": 1, "broker_ids": [1]}], id="not from zero"),
        pytest.param(
            [{"partition_index": 0, "broker_ids": [1]}, {"partition_index": 2, "broker_ids": [1]}],
            id="a gap",
        ),
    ],
)
def test_invalid_assignment_is_refused(
    raw: RawConnection, unique_name: NameFactory, assignments: list[dict[str, Any]]
) -> None:
    name = unique_name()
    result = create_one(raw, name=name, assignments=assignments)
    assert result.error_code == ErrorCode.invalid_replica_assignment
    assert not exists(raw, name)


@pytest.mark.parametrize("field", ["num_partitions", "replication_factor"])
def test_assignment_and_a_number_exclude_each_other(
    raw: RawConnection, unique_name: NameFactory, field: str
) -> None:
    assignments = [{"partition_index": 0, "broker_ids": [1]}]
    result = create_one(raw, name=unique_name(), assignments=assignments, **{field: 1})
    assert result.error_code == ErrorCode.invalid_request


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "a,b", "ä", "x" * 250])
def test_invalid_name_is_refused(raw: RawConnection, name: str) -> None:
    result = create_one(raw, name=name)
    assert result.error_code == ErrorCode.invalid_topic_exception
    assert result.error_message


def test_longest_name_has_249_characters(raw: RawConnection) -> None:
    assert create_one(raw, name="n" * 249).error_code == ErrorCode.none


def test_dots_and_underscores_collide(raw: RawConnection, unique_name: NameFactory) -> None:
    # Metric names replace both characters with underscores, so these topics collide.
    name = unique_name()
    assert create_one(raw, name=f"{name}.a_b").error_code == ErrorCode.none
    collides = create_one(raw, name=f"{name}_a.b")
    assert collides.error_code == ErrorCode.invalid_topic_exception


@pytest.mark.parametrize(
    ("config", "value"),
    [
        ("no.such.config", "1"),
        ("retention.ms", "soon"),
        ("retention.ms", "-2"),
        ("cleanup.policy", "forget"),
        ("max.message.bytes", "-1"),
        ("message.timestamp.type", "Yesterday"),
        ("min.insync.replicas", "0"),
        ("segment.bytes", "1"),
        ("retention.ms", None),
    ],
)
def test_invalid_config_is_refused(
    raw: RawConnection, unique_name: NameFactory, config: str, value: str | None
) -> None:
    name = unique_name()
    result = create_one(raw, name=name, configs=[{"name": config, "value": value}])
    assert result.error_code == ErrorCode.invalid_config
    assert result.error_message
    assert not exists(raw, name)


def test_both_cleanup_policies_together_are_valid(
    raw: RawConnection, unique_name: NameFactory
) -> None:
    config = {"name": "cleanup.policy", "value": "compact,delete"}
    assert create_one(raw, name=unique_name(), configs=[config]).error_code == ErrorCode.none


def test_topic_named_twice_is_refused(raw: RawConnection, unique_name: NameFactory) -> None:
    name, other = unique_name(), unique_name()
    response = create(raw, {"name": name}, {"name": name}, {"name": other})
    codes = {result.name: result.error_code for result in response.topics}
    assert codes == {name: ErrorCode.invalid_request, other: ErrorCode.none}
    assert not exists(raw, name)


def test_one_invalid_topic_does_not_affect_the_others(
    raw: RawConnection, unique_name: NameFactory, topic: TopicFactory
) -> None:
    good, bad, known = unique_name(), unique_name(), topic()
    response = create(raw, {"name": good}, {"name": bad, "num_partitions": 0}, {"name": known})
    codes = {result.name: result.error_code for result in response.topics}
    assert codes == {
        good: ErrorCode.none,
        bad: ErrorCode.invalid_partitions,
        known: ErrorCode.topic_already_exists,
    }


def test_request_without_topics(raw: RawConnection) -> None:
    assert create(raw).topics == ()
