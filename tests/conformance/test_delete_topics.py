"""Tests of DeleteTopics, by topic name and by topic id."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from kio.schema.errors import ErrorCode

from integration.clusters import Cluster
from integration.raw import RawConnection
from tests.conformance.batches import batch, values
from tests.conformance.eventually import eventually
from tests.conformance.wire import (
    LATEST,
    append,
    describe_topics,
    fetch,
    list_offset,
    only,
    served,
    topic_id,
)

TopicFactory = Callable[..., str]
NameFactory = Callable[[], str]


def delete(raw: RawConnection, *topics: dict[str, Any]) -> Any:
    return raw.call("delete_topics", 6, timeout=30_000, topics=list(topics))


def await_deletion(raw: RawConnection, name: str) -> None:
    """Wait until all brokers have deleted the topic, because the controller responds earlier."""
    unknown = ErrorCode.unknown_topic_or_partition
    eventually(lambda: only(describe_topics(raw, name).topics).error_code == unknown)


def test_deleted_topic_is_unknown(raw: RawConnection, topic: TopicFactory) -> None:
    name = topic()
    identifier = topic_id(raw, name)
    result = only(delete(raw, {"name": name}).responses)
    assert (result.error_code, result.name, result.topic_id) == (ErrorCode.none, name, identifier)
    await_deletion(raw, name)
    eventually(lambda: fetch(raw, name).error_code == ErrorCode.unknown_topic_or_partition)
    assert fetch(raw, identifier, version=13).error_code == ErrorCode.unknown_topic_id


def test_topic_is_deleted_by_its_id(raw: RawConnection, topic: TopicFactory) -> None:
    name = topic()
    identifier = topic_id(raw, name)
    result = only(delete(raw, {"name": None, "topic_id": identifier}).responses)
    assert (result.error_code, result.name, result.topic_id) == (ErrorCode.none, name, identifier)
    await_deletion(raw, name)


def test_every_version_deletes_a_topic(raw: RawConnection, topic: TopicFactory) -> None:
    for version in served(raw, "delete_topics"):
        name = topic()
        requested = {"topics": [{"name": name}]} if version >= 6 else {"topic_names": [name]}
        result = only(raw.call("delete_topics", version, timeout=30_000, **requested).responses)
        assert (result.error_code, result.name) == (ErrorCode.none, name), version
        await_deletion(raw, name)


def test_unknown_topics(raw: RawConnection, topic: TopicFactory, unique_name: NameFactory) -> None:
    known, unknown, identifier = topic(), unique_name(), uuid.uuid4()
    response = delete(
        raw, {"name": known}, {"name": unknown}, {"name": None, "topic_id": identifier}
    )
    by_name = {result.name: result.error_code for result in response.responses if result.name}
    assert by_name == {known: ErrorCode.none, unknown: ErrorCode.unknown_topic_or_partition}
    (by_id,) = [result for result in response.responses if not result.name]
    assert (by_id.error_code, by_id.topic_id) == (ErrorCode.unknown_topic_id, identifier)


def test_topic_named_twice_is_refused(raw: RawConnection, topic: TopicFactory) -> None:
    name = topic()
    identifier = topic_id(raw, name)
    by_name, by_id = {"name": name}, {"name": None, "topic_id": identifier}
    for requested in ([by_name] * 3, [by_id] * 2, [by_id, by_id, by_name], [by_name, by_id]):
        for result in delete(raw, *requested).responses:
            assert result.error_code == ErrorCode.invalid_request
    assert only(describe_topics(raw, name).topics).error_code == ErrorCode.none
    repeated, deleted = sorted(
        delete(raw, by_name, by_name, by_id).responses, key=lambda result: -result.error_code
    )
    assert (repeated.name, repeated.topic_id) == (name, None)
    assert (repeated.error_code, deleted.error_code) == (ErrorCode.invalid_request, ErrorCode.none)
    assert (deleted.name, deleted.topic_id) == (name, identifier)


def test_name_together_with_an_id_is_refused(raw: RawConnection, topic: TopicFactory) -> None:
    name = topic()
    result = only(delete(raw, {"name": name, "topic_id": topic_id(raw, name)}).responses)
    assert result.error_code == ErrorCode.invalid_request
    assert only(describe_topics(raw, name).topics).error_code == ErrorCode.none


def test_recreated_topic_is_empty_and_has_a_new_id(
    raw: RawConnection, topic: TopicFactory, cluster: Cluster
) -> None:
    name = topic()
    before = topic_id(raw, name)
    append(raw, name, batch(values("a", "b")))
    delete(raw, {"name": name})
    await_deletion(raw, name)
    cluster.create_topic(name, assignment=[[1], [1]])
    assert topic_id(raw, name) != before
    assert list_offset(raw, name, LATEST).offset == 0
    assert append(raw, name, batch(values("c"))) == 0
