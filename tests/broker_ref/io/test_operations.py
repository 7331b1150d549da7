"""Tests of operations on a running cluster of one broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import broker_ref
from broker_ref.io.operations import (
    OperationError,
    PartitionInfo,
    live_brokers,
    move_leader,
    partition_info,
)

TOPIC = "orders"


@pytest.fixture(scope="module")
def bootstrap_servers() -> Iterator[str]:
    with broker_ref.Cluster() as cluster:
        cluster.create_topic(TOPIC, partitions=2)
        yield cluster.bootstrap_servers


def test_brokers_and_partitions_are_looked_up(bootstrap_servers: str) -> None:
    assert live_brokers(bootstrap_servers) == {1}
    state = partition_info(bootstrap_servers, TOPIC, 1)
    assert state == PartitionInfo(leader_id=1, replicas=(1,), isr=(1,))


def test_moving_a_leader_to_itself_changes_nothing(bootstrap_servers: str) -> None:
    move_leader(bootstrap_servers, TOPIC, 0, to=1)
    assert partition_info(bootstrap_servers, TOPIC, 0).leader_id == 1


def test_an_impossible_leader_move_is_named(bootstrap_servers: str) -> None:
    with pytest.raises(OperationError, match=r"orders-0\b.*\b2\b"):
        move_leader(bootstrap_servers, TOPIC, 0, to=2)
    with pytest.raises(OperationError, match=r"orders-7\b.*\b2\b"):
        move_leader(bootstrap_servers, TOPIC, 7, to=1)
    for _ in range(2):  # The first request has not created the topic.
        with pytest.raises(OperationError, match="UNKNOWN_TOPIC_OR_PARTITION"):
            move_leader(bootstrap_servers, "no-such-topic", 0, to=1)


def test_unresponsive_brokers_are_named() -> None:
    with pytest.raises(OperationError, match=r"127\.0\.0\.1:1\b"):
        live_brokers("127.0.0.1:1")
