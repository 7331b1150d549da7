"""Tests of Metadata responses, and of merging them."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from integration import raw
from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.wire.metadata import (
    NO_LEADER,
    Broker,
    ClusterMetadata,
    PartitionMetadata,
    TopicMetadata,
    cluster_metadata,
)
from pyspark_kafka.wire.transport import Address

OLD, NEW = UUID(int=1), UUID(int=2)
BROKERS = {
    broker_id: Broker(broker_id=broker_id, address=Address("h", broker_id)) for broker_id in (1, 2)
}


def partition(index: int, leader_id: int, leader_epoch: int) -> PartitionMetadata:
    return PartitionMetadata(
        partition=index,
        leader_id=leader_id,
        leader_epoch=leader_epoch,
    )


def metadata_of(
    *leaders: tuple[int, int], topic_id: UUID | None = OLD, name: str = "t"
) -> ClusterMetadata:
    """Return metadata of a topic whose partitions have these leaders and leader epochs."""
    topic = TopicMetadata(
        name=name,
        topic_id=topic_id,
        is_internal=False,
        partitions={i: partition(i, *leader) for i, leader in enumerate(leaders)},
    )
    return ClusterMetadata(brokers=BROKERS, topics={name: topic})


def leaders(metadata: ClusterMetadata, name: str = "t") -> list[tuple[int, int]]:
    return [(p.leader_id, p.leader_epoch) for p in metadata.topics[name].partitions.values()]


def test_an_older_epoch_does_not_replace_a_newer_one() -> None:
    merged = metadata_of((1, 5), (1, 5), (1, 5)).merged(metadata_of((2, 4), (2, 5), (2, 6)))
    assert leaders(merged) == [(1, 5), (2, 5), (2, 6)]


def test_a_topic_that_was_created_again_has_new_epochs() -> None:
    merged = metadata_of((1, 5)).merged(metadata_of((2, 0), topic_id=NEW))
    assert leaders(merged) == [(2, 0)]
    assert merged.topics["t"].topic_id == NEW


def test_an_unknown_epoch_replaces_a_known_one() -> None:
    merged = metadata_of((1, 5), topic_id=None).merged(metadata_of((2, -1), topic_id=None))
    assert leaders(merged) == [(2, -1)]


def test_removed_partitions_are_dropped() -> None:
    assert leaders(metadata_of((1, 5), (1, 5)).merged(metadata_of((1, 5)))) == [(1, 5)]


def test_other_topics_are_kept_and_failed_ones_dropped() -> None:
    both = metadata_of((1, 0)).merged(metadata_of((2, 0), name="u", topic_id=NEW))
    assert both.topics.keys() == {"t", "u"}
    update = ClusterMetadata(brokers={}, failed={"t": ErrorCode.unknown_topic_or_partition})
    merged = both.merged(update)
    assert merged.topics.keys() == {"u"}
    assert merged.failed == {"t": ErrorCode.unknown_topic_or_partition}
    assert merged.brokers == {}
    assert merged.merged(metadata_of((1, 0))).failed == {}


@pytest.mark.parametrize(
    ("leader_id", "leader_epoch", "expected"),
    [(2, 6, (2, 6)), (2, 5, (1, 5)), (2, 4, (1, 5)), (9, 6, (1, 5))],
)
def test_the_leader_of_an_error_response(
    leader_id: int, leader_epoch: int, expected: tuple[int, int]
) -> None:
    moved = metadata_of((1, 5)).with_leader(TopicPartition("t", 0), leader_id, leader_epoch)
    assert leaders(moved) == [expected]


def response(version: int, **fields: Any) -> Any:
    return raw.response(
        "metadata",
        version,
        brokers=[{"node_id": 3, "host": "::1", "port": 9, "rack": "r"}],
        controller_id=3,
        **fields,
    )


@pytest.mark.parametrize(("version", "epoch"), [(4, -1), (8, -1), (9, 7), (13, 7)])
def test_a_response_of_any_version(version: int, epoch: int) -> None:
    partition: dict[str, Any] = {"partition_index": 2, "leader_id": 3, "replica_nodes": [3, 4]}
    if version >= 7:
        partition["leader_epoch"] = 7
    topic: dict[str, Any] = {"name": "t", "is_internal": True, "partitions": [partition]}
    if version >= 10:
        topic["topic_id"] = OLD
    found = cluster_metadata(response(version, topics=[topic]))
    assert found.brokers[3] == Broker(broker_id=3, address=Address("::1", 9), rack="r")
    assert str(found.brokers[3]) == "broker 3 at [::1]:9"
    one = found.topics["t"]
    assert one.is_internal
    assert one.topic_id == (OLD if version >= 10 else None)
    expected = PartitionMetadata(partition=2, leader_id=3, leader_epoch=epoch)
    assert one.partitions == {2: expected}


def test_failed_topics_and_partitions_without_a_leader() -> None:
    leaderless = {"partition_index": 0, "error_code": 5, "leader_id": -1, "leader_epoch": 8}
    topics = [
        {"name": "gone", "error_code": 3},
        {"name": "secret", "error_code": 29},
        {"name": "t", "partitions": [leaderless]},
    ]
    found = cluster_metadata(response(12, topics=topics))
    assert found.failed == {
        "gone": ErrorCode.unknown_topic_or_partition,
        "secret": ErrorCode.topic_authorization_failed,
    }
    one = found.partition(TopicPartition("t", 0))
    assert one is not None
    assert (one.leader_id, one.leader_epoch) == (NO_LEADER, 8)
    assert found.partition(TopicPartition("t", 1)) is None
    assert found.partition(TopicPartition("gone", 0)) is None
