"""Tests of OffsetCommit by consumers that assign partitions manually.

These consumers are not members of their group: the generation is -1 and the member id is empty.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from integration.raw import RawConnection
from tests.conformance.groups import await_coordinator, commit, committed, find_coordinator
from tests.conformance.wire import only, served

TopicFactory = Callable[..., str]
METADATA_MAX = 4096
_UNKNOWN_MEMBER: dict[str, Any] = {"generation_id_or_member_epoch": 5, "member_id": "nobody"}


def test_commit_is_returned_in_full(raw: RawConnection, topic: TopicFactory, group: str) -> None:
    name = topic(partitions=2)
    code = commit(raw, group, name, 17, metadata="read until noon — ünïcödé", leader_epoch=0)
    assert code == ErrorCode.none
    assert commit(raw, group, name, 3, partition=1) == ErrorCode.none
    assert committed(raw, group, name, 0, 1) == [(17, "read until noon — ünïcödé", 0), (3, "", -1)]


def test_any_leader_epoch_is_stored(raw: RawConnection, topic: TopicFactory, group: str) -> None:
    name = topic()
    commit(raw, group, name, 17, leader_epoch=12)
    assert committed(raw, group, name) == [(17, "", 12)]


def test_null_metadata_is_stored_as_empty(
    raw: RawConnection, topic: TopicFactory, group: str
) -> None:
    name = topic()
    assert commit(raw, group, name, 1, metadata=None) == ErrorCode.none
    assert committed(raw, group, name) == [(1, "", -1)]


def test_last_commit_counts_even_if_the_offset_is_lower(
    raw: RawConnection, topic: TopicFactory, group: str
) -> None:
    name = topic()
    for offset in (5, 9, 2):
        assert commit(raw, group, name, offset) == ErrorCode.none
    assert committed(raw, group, name) == [(2, "", -1)]


def test_committed_offset_need_not_exist(
    raw: RawConnection, topic: TopicFactory, group: str
) -> None:
    name = topic()
    assert commit(raw, group, name, 1_000_000) == ErrorCode.none
    assert committed(raw, group, name) == [(1_000_000, "", -1)]


def test_every_version_commits(raw: RawConnection, topic: TopicFactory, group: str) -> None:
    name = topic()
    for offset, version in enumerate(served(raw, "offset_commit"), start=1):
        assert commit(raw, group, name, offset, version=version) == ErrorCode.none, version
        assert committed(raw, group, name) == [(offset, "", -1)], version


def test_metadata_has_a_limit(raw: RawConnection, topic: TopicFactory, group: str) -> None:
    name = topic()
    assert commit(raw, group, name, 1, metadata="x" * METADATA_MAX) == ErrorCode.none
    in_utf16 = "\N{GRINNING FACE}" * (METADATA_MAX // 2)  # two code units each
    assert commit(raw, group, name, 1, partition=0, metadata=in_utf16) == ErrorCode.none
    for metadata in ("x" * (METADATA_MAX + 1), in_utf16 + "x"):
        too_large = commit(raw, group, name, 2, metadata=metadata)
        assert too_large == ErrorCode.offset_metadata_too_large
    assert commit(raw, group, name, 1, metadata="x" * METADATA_MAX) == ErrorCode.none
    assert committed(raw, group, name) == [(1, "x" * METADATA_MAX, -1)]


def test_commit_for_an_unknown_topic_or_partition_is_refused(
    raw: RawConnection, topic: TopicFactory, group: str, unique_name: Callable[[], str]
) -> None:
    unknown = ErrorCode.unknown_topic_or_partition
    assert commit(raw, group, unique_name(), 1) == unknown
    assert commit(raw, group, topic(), 1, partition=1) == unknown


@pytest.mark.parametrize(
    ("version", "error_code"),
    [(8, ErrorCode.illegal_generation), (9, ErrorCode.group_id_not_found)],
)
def test_member_of_a_group_that_does_not_exist_may_not_commit(
    raw: RawConnection, topic: TopicFactory, group: str, version: int, error_code: ErrorCode
) -> None:
    name = topic()
    assert commit(raw, group, name, 1, version=version, **_UNKNOWN_MEMBER) == error_code
    assert committed(raw, group, name) == [(-1, "", -1)]


@pytest.mark.parametrize("version", [8, 9])
def test_unknown_member_may_not_commit(
    raw: RawConnection, topic: TopicFactory, group: str, version: int
) -> None:
    name = topic()
    commit(raw, group, name, 2)
    refused = commit(raw, group, name, 3, version=version, **_UNKNOWN_MEMBER)
    assert refused == ErrorCode.unknown_member_id
    assert committed(raw, group, name) == [(2, "", -1)]


def test_refused_commit_reports_only_missing_partitions_separately(
    raw: RawConnection, topic: TopicFactory, group: str, unique_name: Callable[[], str]
) -> None:
    """The member is unknown, so the size of the metadata is not checked."""

    def requested(name: str, metadata: str) -> dict[str, Any]:
        partition = {
            "partition_index": 0,
            "committed_offset": 1,
            "committed_metadata": metadata,
            "committed_leader_epoch": -1,
        }
        return {"name": name, "partitions": [partition]}

    name = topic()
    commit(raw, group, name, 2)
    response = raw.call(
        "offset_commit",
        9,
        group_id=group,
        topics=[
            requested(name, "x"),
            requested(topic(), "x" * (METADATA_MAX + 1)),
            requested(unique_name(), "x"),
        ],
        **_UNKNOWN_MEMBER,
    )
    assert sorted(only(one.partitions).error_code.name for one in response.topics) == [
        "unknown_member_id",
        "unknown_member_id",
        "unknown_topic_or_partition",
    ]


def test_empty_group_id_may_commit(raw: RawConnection, topic: TopicFactory) -> None:
    name = topic()
    found = only(find_coordinator(raw, "").coordinators)
    with RawConnection(f"{found.host}:{found.port}") as coordinator:
        await_coordinator(coordinator, "")
        assert commit(coordinator, "", name, 1) == ErrorCode.none
        assert committed(coordinator, "", name) == [(1, "", -1)]
