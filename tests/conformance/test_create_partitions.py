"""Tests of CreatePartitions, which can only add partitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from integration.raw import RawConnection
from tests.conformance.batches import batch, values
from tests.conformance.eventually import eventually
from tests.conformance.wire import append, describe_topics, only, produce, served

TopicFactory = Callable[..., str]


def grow(raw: RawConnection, *topics: dict[str, Any], **options: Any) -> Any:
    return raw.call("create_partitions", 3, timeout=30_000, topics=list(topics), **options)


def grow_one(raw: RawConnection, name: str, count: int, **topic: Any) -> Any:
    return only(grow(raw, {"name": name, "count": count, "assignments": None, **topic}).results)


def partition_count(raw: RawConnection, name: str) -> int:
    return len(only(describe_topics(raw, name).topics).partitions)


def await_count(raw: RawConnection, name: str, count: int) -> None:
    """Wait until all brokers show this partition count, because the controller responds earlier."""
    eventually(lambda: partition_count(raw, name) == count)


def test_topic_grows_and_keeps_its_records(raw: RawConnection, topic: TopicFactory) -> None:
    name = topic()
    append(raw, name, batch(values("a")))
    result = grow_one(raw, name, 3, assignments=[{"broker_ids": [1]}, {"broker_ids": [1]}])
    assert (result.error_code, result.name) == (ErrorCode.none, name)
    await_count(raw, name, 3)
    new = ErrorCode.none
    eventually(lambda: produce(raw, name, batch(values("b")), partition=2).error_code == new)
    assert append(raw, name, batch(values("c"))) == 1


def test_every_version_grows_a_topic(raw: RawConnection, topic: TopicFactory) -> None:
    name = topic()
    for count, version in enumerate(served(raw, "create_partitions"), start=2):
        requested = {"name": name, "count": count, "assignments": None}
        response = raw.call("create_partitions", version, timeout=30_000, topics=[requested])
        assert only(response.results).error_code == ErrorCode.none, version
        await_count(raw, name, count)


@pytest.mark.parametrize("count", [2, 1, 0, -1])
def test_new_count_must_be_higher(raw: RawConnection, topic: TopicFactory, count: int) -> None:
    name = topic(partitions=2)
    result = grow_one(raw, name, count)
    assert result.error_code == ErrorCode.invalid_partitions
    assert result.error_message
    assert partition_count(raw, name) == 2


def test_validate_only_changes_nothing(raw: RawConnection, topic: TopicFactory) -> None:
    name = topic()
    requested = {"name": name, "count": 4, "assignments": None}
    assert only(grow(raw, requested, validate_only=True).results).error_code == ErrorCode.none
    assert partition_count(raw, name) == 1


def test_new_replicas_may_be_assigned(raw: RawConnection, topic: TopicFactory) -> None:
    name = topic()
    result = grow_one(raw, name, 3, assignments=[{"broker_ids": [1]}, {"broker_ids": [1]}])
    assert result.error_code == ErrorCode.none
    await_count(raw, name, 3)


@pytest.mark.parametrize(
    "brokers", [[[1]], [[1], [7]], [[1], [1, 1]], [[1], []], [[1], [1], [1]]], ids=str
)
def test_invalid_assignment_is_refused(
    raw: RawConnection, topic: TopicFactory, brokers: list[list[int]]
) -> None:
    name = topic()
    result = grow_one(raw, name, 3, assignments=[{"broker_ids": ids} for ids in brokers])
    assert result.error_code == ErrorCode.invalid_replica_assignment
    assert partition_count(raw, name) == 1


def test_each_topic_has_one_result(
    raw: RawConnection, topic: TopicFactory, unique_name: Callable[[], str]
) -> None:
    good, bad, unknown = topic(), topic(partitions=3), unique_name()
    response = grow(
        raw,
        *({"name": n, "count": 2, "assignments": None} for n in (good, bad, unknown)),
    )
    assert {result.name: result.error_code for result in response.results} == {
        good: ErrorCode.none,
        bad: ErrorCode.invalid_partitions,
        unknown: ErrorCode.unknown_topic_or_partition,
    }
    assert len(response.results) == 3


def test_topic_named_twice_is_refused_with_one_result(
    raw: RawConnection, topic: TopicFactory
) -> None:
    name = topic()
    response = grow(raw, *({"name": name, "count": n, "assignments": None} for n in (2, 3)))
    assert only(response.results).error_code == ErrorCode.invalid_request
    assert partition_count(raw, name) == 1
