"""Tests of OffsetForLeaderEpoch: end offsets of leader epochs, and fencing (KIP-101, KIP-320)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from integration.raw import RawConnection
from tests.conformance.batches import batch, values
from tests.conformance.wire import LATEST, append, list_offset, only, served

TopicFactory = Callable[..., str]


def end_of_epoch(
    raw: RawConnection,
    topic: str,
    epoch: int,
    *,
    partition: int = 0,
    version: int = 4,
    current_leader_epoch: int = -1,
) -> Any:
    requested = {
        "partition": partition,
        "leader_epoch": epoch,
        "current_leader_epoch": current_leader_epoch,
    }
    fields: dict[str, Any] = {"topics": [{"topic": topic, "partitions": [requested]}]}
    if version >= 3:
        fields["replica_id"] = -1
    response = only(raw.call("offset_for_leader_epoch", version, **fields).topics)
    assert response.topic == topic
    return only(response.partitions)


@pytest.fixture
def leader_epoch(raw: RawConnection, topic: TopicFactory) -> tuple[str, int]:
    name = topic()
    append(raw, name, batch(values("a", "b", "c")))
    return name, list_offset(raw, name, LATEST).leader_epoch


def test_every_version_returns_the_end_of_the_current_epoch(
    raw: RawConnection, leader_epoch: tuple[str, int]
) -> None:
    name, epoch = leader_epoch
    for version in served(raw, "offset_for_leader_epoch"):
        response = end_of_epoch(raw, name, epoch, version=version)
        found = (
            response.error_code,
            response.partition,
            response.leader_epoch,
            response.end_offset,
        )
        assert found == (ErrorCode.none, 0, epoch, 3), version


@pytest.mark.parametrize("epoch", [-1, 1000])
def test_unknown_epoch(raw: RawConnection, leader_epoch: tuple[str, int], epoch: int) -> None:
    name, _ = leader_epoch
    response = end_of_epoch(raw, name, epoch)
    assert (response.error_code, response.leader_epoch, response.end_offset) == (
        ErrorCode.none,
        -1,
        -1,
    )


def test_request_with_an_old_current_epoch_is_fenced(
    raw: RawConnection, leader_epoch: tuple[str, int]
) -> None:
    name, epoch = leader_epoch
    same = end_of_epoch(raw, name, epoch, current_leader_epoch=epoch)
    assert (same.error_code, same.end_offset) == (ErrorCode.none, 3)
    newer = end_of_epoch(raw, name, epoch, current_leader_epoch=epoch + 1)
    assert (newer.error_code, newer.end_offset) == (ErrorCode.unknown_leader_epoch, -1)
    if epoch > 0:
        older = end_of_epoch(raw, name, epoch, current_leader_epoch=epoch - 1)
        assert (older.error_code, older.end_offset) == (ErrorCode.fenced_leader_epoch, -1)


def test_unknown_partitions(raw: RawConnection, topic: TopicFactory) -> None:
    for name, partition in ((topic(), 7), ("no-such-topic", 0)):
        response = end_of_epoch(raw, name, 0, partition=partition)
        found = (response.error_code, response.leader_epoch, response.end_offset)
        assert found == (ErrorCode.unknown_topic_or_partition, -1, -1)
