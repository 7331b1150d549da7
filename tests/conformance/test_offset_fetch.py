"""Tests of OffsetFetch: some partitions or all topics, one or several groups (KIP-709)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kio.schema.errors import ErrorCode

from integration.raw import RawConnection
from tests.conformance.groups import commit, committed, fetch_offsets
from tests.conformance.wire import only, served, topic_id

TopicFactory = Callable[..., str]


def test_every_version_fetches(raw: RawConnection, topic: TopicFactory, group: str) -> None:
    name = topic()
    identifier = topic_id(raw, name)
    commit(raw, group, name, 42, metadata="m")
    for version in served(raw, "offset_fetch"):
        if version >= 10:
            topics = [{"topic_id": identifier, "partition_indexes": [0]}]
            groups = [{"group_id": group, "topics": topics}]
            found = only(raw.call("offset_fetch", version, groups=groups).groups)
        else:
            found = fetch_offsets(raw, group, {name: [0]}, version=version)
        responses = only(only(found.topics).partitions)
        assert (responses.committed_offset, responses.metadata) == (42, "m"), version


@pytest.mark.parametrize("version", [1, 5, 7, 8, 9])
def test_unknown_group_has_no_offsets(
    raw: RawConnection, topic: TopicFactory, group: str, version: int
) -> None:
    found = fetch_offsets(raw, group, {topic(): [0]}, version=version)
    responses = only(only(found.topics).partitions)
    assert (responses.error_code, responses.committed_offset) == (ErrorCode.none, -1)
    assert responses.metadata == ""


def test_partition_without_a_commit_has_offset_minus_one(
    raw: RawConnection, topic: TopicFactory, group: str, unique_name: Callable[[], str]
) -> None:
    name = topic(partitions=2)
    commit(raw, group, name, 4)
    assert committed(raw, group, name, 0, 1, 7) == [(4, "", -1), (-1, "", -1), (-1, "", -1)]
    assert committed(raw, group, unique_name()) == [(-1, "", -1)]


def test_null_topics_return_all_committed_topics(
    raw: RawConnection, topic: TopicFactory, group: str
) -> None:
    first, second = topic(partitions=3), topic()
    commit(raw, group, first, 1, partition=0)
    commit(raw, group, first, 2, partition=2)
    commit(raw, group, second, 3)
    for version in (2, 7, 8, 9):
        found = fetch_offsets(raw, group, None, version=version)
        assert found.error_code == ErrorCode.none, version
        offsets = {
            (t.name, p.partition_index): p.committed_offset
            for t in found.topics
            for p in t.partitions
        }
        assert offsets == {(first, 0): 1, (first, 2): 2, (second, 0): 3}, version


def test_null_topics_of_an_unknown_group_return_nothing(raw: RawConnection, group: str) -> None:
    found = fetch_offsets(raw, group, None)
    assert (found.error_code, found.topics) == (ErrorCode.none, ())


def test_several_groups_in_one_request(
    raw: RawConnection, topic: TopicFactory, new_group: Callable[[], str]
) -> None:
    name = topic()
    group, other, unknown = new_group(), new_group(), new_group()
    commit(raw, group, name, 1)
    commit(raw, other, name, 2)
    topics = [{"name": name, "partition_indexes": [0]}]
    groups = [{"group_id": g, "topics": topics} for g in (group, other, unknown)]
    found = raw.call("offset_fetch", 9, groups=groups).groups
    offsets = {g.group_id: only(only(g.topics).partitions).committed_offset for g in found}
    assert offsets == {group: 1, other: 2, unknown: -1}


def test_groups_are_independent(
    raw: RawConnection, topic: TopicFactory, new_group: Callable[[], str]
) -> None:
    name = topic()
    group, other = new_group(), new_group()
    commit(raw, group, name, 1)
    commit(raw, other, name, 2)
    assert committed(raw, group, name) == [(1, "", -1)]
