"""OffsetCommit and OffsetFetch of consumers that assign partitions themselves.

Such a consumer is no member of its group: generation -1, empty member id.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from integration.raw import RawConnection
from tests.conformance.groups import await_coordinator, commit, committed, fetch_offsets
from tests.conformance.wire import only, served, topic_id

TopicFactory = Callable[..., str]
METADATA_MAX = 4096
_NOBODY: dict[str, Any] = {"generation_id_or_member_epoch": 5, "member_id": "nobody"}


@pytest.fixture
def group(raw: RawConnection, unique_name: Callable[[], str]) -> str:
    """A group id whose coordinator is ready."""
    name = unique_name()
    await_coordinator(raw, name)
    return name


def test_what_was_committed_is_returned_in_full(
    raw: RawConnection, topic: TopicFactory, group: str
) -> None:
    name = topic(partitions=2)
    code = commit(raw, group, name, 17, metadata="read until noon — ünïcödé", leader_epoch=0)
    assert code == ErrorCode.none
    assert commit(raw, group, name, 3, partition=1) == ErrorCode.none
    assert committed(raw, group, name, 0, 1) == [(17, "read until noon — ünïcödé", 0), (3, "", -1)]


def test_a_leader_epoch_is_kept_whatever_it_is(
    raw: RawConnection, topic: TopicFactory, group: str
) -> None:
    name = topic()
    commit(raw, group, name, 17, leader_epoch=12)
    assert committed(raw, group, name) == [(17, "", 12)]


def test_no_metadata_is_empty_metadata(raw: RawConnection, topic: TopicFactory, group: str) -> None:
    name = topic()
    assert commit(raw, group, name, 1, metadata=None) == ErrorCode.none
    assert committed(raw, group, name) == [(1, "", -1)]


def test_the_last_commit_counts_even_where_it_goes_back(
    raw: RawConnection, topic: TopicFactory, group: str
) -> None:
    name = topic()
    for offset in (5, 9, 2):
        assert commit(raw, group, name, offset) == ErrorCode.none
    assert committed(raw, group, name) == [(2, "", -1)]


def test_the_offset_need_not_exist(raw: RawConnection, topic: TopicFactory, group: str) -> None:
    name = topic()
    assert commit(raw, group, name, 1_000_000) == ErrorCode.none
    assert committed(raw, group, name) == [(1_000_000, "", -1)]


def test_every_version_commits(raw: RawConnection, topic: TopicFactory, group: str) -> None:
    name = topic()
    for offset, version in enumerate(served(raw, "offset_commit"), start=1):
        assert commit(raw, group, name, offset, version=version) == ErrorCode.none, version
        assert committed(raw, group, name) == [(offset, "", -1)], version


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
        answered = only(only(found.topics).partitions)
        assert (answered.committed_offset, answered.metadata) == (42, "m"), version


@pytest.mark.parametrize("version", [1, 5, 7, 8, 9])
def test_an_unknown_group_has_committed_nothing(
    raw: RawConnection, topic: TopicFactory, group: str, version: int
) -> None:
    found = fetch_offsets(raw, group, {topic(): [0]}, version=version)
    answered = only(only(found.topics).partitions)
    assert (answered.error_code, answered.committed_offset) == (ErrorCode.none, -1)
    assert answered.metadata == ""


def test_a_partition_without_a_commit_has_offset_minus_one(
    raw: RawConnection, topic: TopicFactory, group: str, unique_name: Callable[[], str]
) -> None:
    name = topic(partitions=2)
    commit(raw, group, name, 4)
    assert committed(raw, group, name, 0, 1, 7) == [(4, "", -1), (-1, "", -1), (-1, "", -1)]
    assert committed(raw, group, unique_name()) == [(-1, "", -1)]


def test_all_topics_are_those_with_a_commit(
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


def test_all_topics_of_an_unknown_group_are_none(raw: RawConnection, group: str) -> None:
    found = fetch_offsets(raw, group, None)
    assert (found.error_code, found.topics) == (ErrorCode.none, ())


def test_several_groups_in_one_request(
    raw: RawConnection, topic: TopicFactory, unique_name: Callable[[], str], group: str
) -> None:
    name = topic()
    other, unknown = unique_name(), unique_name()
    commit(raw, group, name, 1)
    commit(raw, other, name, 2)
    topics = [{"name": name, "partition_indexes": [0]}]
    groups = [{"group_id": g, "topics": topics} for g in (group, other, unknown)]
    found = raw.call("offset_fetch", 9, groups=groups).groups
    offsets = {g.group_id: only(only(g.topics).partitions).committed_offset for g in found}
    assert offsets == {group: 1, other: 2, unknown: -1}


def test_groups_do_not_see_each_other(
    raw: RawConnection, topic: TopicFactory, group: str, unique_name: Callable[[], str]
) -> None:
    name = topic()
    commit(raw, group, name, 1)
    commit(raw, unique_name(), name, 2)
    assert committed(raw, group, name) == [(1, "", -1)]


def test_metadata_has_a_limit(raw: RawConnection, topic: TopicFactory, group: str) -> None:
    name = topic()
    assert commit(raw, group, name, 1, metadata="x" * METADATA_MAX) == ErrorCode.none
    too_large = commit(raw, group, name, 2, metadata="x" * (METADATA_MAX + 1))
    assert too_large == ErrorCode.offset_metadata_too_large
    assert committed(raw, group, name) == [(1, "x" * METADATA_MAX, -1)]


def test_a_commit_for_an_unknown_topic_or_partition_is_refused(
    raw: RawConnection, topic: TopicFactory, group: str, unique_name: Callable[[], str]
) -> None:
    unknown = ErrorCode.unknown_topic_or_partition
    assert commit(raw, group, unique_name(), 1) == unknown
    assert commit(raw, group, topic(), 1, partition=1) == unknown


@pytest.mark.parametrize(
    ("version", "error_code"),
    [(8, ErrorCode.illegal_generation), (9, ErrorCode.group_id_not_found)],
)
def test_a_member_of_a_group_that_does_not_exist_may_not_commit(
    raw: RawConnection, topic: TopicFactory, group: str, version: int, error_code: ErrorCode
) -> None:
    name = topic()
    assert commit(raw, group, name, 1, version=version, **_NOBODY) == error_code
    assert committed(raw, group, name) == [(-1, "", -1)]


@pytest.mark.parametrize("version", [8, 9])
def test_somebody_unknown_may_not_commit_as_a_member(
    raw: RawConnection, topic: TopicFactory, group: str, version: int
) -> None:
    name = topic()
    commit(raw, group, name, 2)
    refused = commit(raw, group, name, 3, version=version, **_NOBODY)
    assert refused == ErrorCode.unknown_member_id
    assert committed(raw, group, name) == [(2, "", -1)]


def test_an_empty_group_id_is_a_group_id(raw: RawConnection, topic: TopicFactory) -> None:
    name = topic()
    await_coordinator(raw, "")
    assert commit(raw, "", name, 1) == ErrorCode.none
    assert committed(raw, "", name) == [(1, "", -1)]
