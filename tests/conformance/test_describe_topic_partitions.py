"""Tests of DescribeTopicPartitions: paging, cursors and errors (KIP-966)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from integration.raw import RawConnection
from tests.conformance.wire import describe_topics, only, topic_id

TopicFactory = Callable[..., str]
Cursor = tuple[str, int]


def describe(
    raw: RawConnection, *topics: str, limit: int = 2000, cursor: Cursor | None = None
) -> Any:
    """Send DescribeTopicPartitions for these topics, or for all topics if none is given."""
    return raw.call(
        "describe_topic_partitions",
        0,
        topics=[{"name": topic} for topic in topics],
        response_partition_limit=limit,
        cursor=None if cursor is None else {"topic_name": cursor[0], "partition_index": cursor[1]},
    )


def page(response: Any) -> tuple[list[tuple[str, list[int]]], Cursor | None]:
    """Return the topics and partitions of a response, and the cursor of the next page."""
    topics = [
        (topic.name, [partition.partition_index for partition in topic.partitions])
        for topic in response.topics
    ]
    following = response.next_cursor
    return topics, None if following is None else (following.topic_name, following.partition_index)


@pytest.fixture
def names(topic: TopicFactory) -> list[str]:
    return sorted(topic(partitions=2) for _ in range(3))


def test_topic_and_its_partitions(raw: RawConnection, topic: TopicFactory) -> None:
    name = topic(partitions=2)
    response = describe(raw, name)
    found = only(response.topics)
    expected = only(describe_topics(raw, name).topics)
    assert (found.error_code, found.name, found.topic_id) == (
        ErrorCode.none,
        name,
        topic_id(raw, name),
    )
    assert found.is_internal is False
    assert found.topic_authorized_operations == 0b1101_1111_1000
    assert response.next_cursor is None
    returned = [
        (p.error_code, p.partition_index, p.leader_id, p.leader_epoch, p.replica_nodes, p.isr_nodes)
        for p in found.partitions
    ]
    assert returned == [
        (
            ErrorCode.none,
            p.partition_index,
            p.leader_id,
            p.leader_epoch,
            p.replica_nodes,
            p.isr_nodes,
        )
        for p in sorted(expected.partitions, key=lambda each: each.partition_index)
    ]
    assert {
        (p.offline_replicas, p.eligible_leader_replicas, p.last_known_elr) for p in found.partitions
    } == {((), (), ())}


def test_topics_are_returned_once_and_in_order(raw: RawConnection, names: list[str]) -> None:
    requested = [*reversed(names), names[0]]
    assert page(describe(raw, *requested)) == ([(name, [0, 1]) for name in names], None)


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5])
def test_pages_add_up(raw: RawConnection, names: list[str], limit: int) -> None:
    found: list[tuple[str, int]] = []
    cursor: Cursor | None = None
    for _ in range(7):
        topics, cursor = page(describe(raw, *names, limit=limit, cursor=cursor))
        partitions = [(name, index) for name, indexes in topics for index in indexes]
        assert 1 <= len(partitions) <= limit
        found += partitions
        if cursor is None:
            break
    assert found == [(name, index) for name in names for index in (0, 1)]


def test_cursor_of_the_next_page(raw: RawConnection, names: list[str]) -> None:
    first, second, third = names
    assert page(describe(raw, *names, limit=3)) == ([(first, [0, 1]), (second, [0])], (second, 1))
    assert page(describe(raw, *names, limit=4))[1] == (third, 0)
    assert page(describe(raw, *names, limit=6))[1] is None


@pytest.mark.parametrize("limit", [0, -1])
def test_page_has_at_least_one_partition(raw: RawConnection, names: list[str], limit: int) -> None:
    assert page(describe(raw, *names, limit=limit)) == ([(names[0], [0])], (names[0], 1))


def test_cursor_skips_earlier_partitions(raw: RawConnection, names: list[str]) -> None:
    first, second, third = names
    del first
    found = page(describe(raw, *names, cursor=(second, 1)))
    assert found == ([(second, [1]), (third, [0, 1])], None)
    beyond = page(describe(raw, *names, cursor=(second, 9)))
    assert beyond == ([(second, []), (third, [0, 1])], None)


def test_cursor_must_be_within_the_requested_topics(raw: RawConnection, names: list[str]) -> None:
    first, second, third = names
    for cursor in ((second, 0), (third, -1)):
        refused = describe(raw, first, third, cursor=cursor)
        found = {(topic.name, topic.error_code, topic.partitions) for topic in refused.topics}
        assert found == {(name, ErrorCode.invalid_request, ()) for name in (first, third)}, cursor


def test_all_topics(raw: RawConnection, names: list[str]) -> None:
    found, _ = page(describe(raw, cursor=(names[0], 0), limit=2000))
    listed = [name for name, _ in found]
    assert listed == sorted(listed)
    assert listed[0] == names[0]
    assert set(names) <= set(listed)


def test_unknown_topics_have_an_error_code(raw: RawConnection, names: list[str]) -> None:
    response = describe(raw, names[0], "zz-no-such-topic", "no/name")
    assert {topic.name: topic.error_code for topic in response.topics} == {
        names[0]: ErrorCode.none,
        "zz-no-such-topic": ErrorCode.unknown_topic_or_partition,
        "no/name": ErrorCode.invalid_topic_exception,
    }
    again = only(describe(raw, "zz-no-such-topic").topics)
    assert again.error_code == ErrorCode.unknown_topic_or_partition
    assert (again.topic_id is None or again.topic_id.int == 0, again.partitions) == (True, ())
