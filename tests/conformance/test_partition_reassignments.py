"""Tests of partition reassignments during writes (KIP-455)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from integration.raw import RawConnection
from tests.conformance.batches import Record, batch, values
from tests.conformance.eventually import eventually
from tests.conformance.nodes import Nodes
from tests.conformance.topic_settings import BROKER, DELETE, SET, change, own_settings
from tests.conformance.wire import append, only, served

NameFactory = Callable[[], str]
TopicFactory = Callable[..., str]
Replicas = Sequence[int] | None
slow = pytest.mark.slow


def reassign(
    raw: RawConnection, name: str, *replicas: Replicas, version: int = 0, **fields: bool
) -> Any:
    """Request these replicas for partitions 0, 1, and so on; None cancels a reassignment."""
    partitions = [{"partition_index": i, "replicas": r} for i, r in enumerate(replicas)]
    topics = [{"name": name, "partitions": partitions}]
    response = raw.call(
        "alter_partition_reassignments", version, topics=topics, timeout=30_000, **fields
    )
    assert response.error_code == ErrorCode.none
    return [p.error_code for p in only(response.responses).partitions]


def reassign_one(raw: RawConnection, name: str, replicas: Replicas) -> Any:
    return only(reassign(raw, name, replicas))


def list_reassignments(
    raw: RawConnection, name: str | None, *partitions: int
) -> dict[tuple[str, int], Any]:
    """List the reassignments of these partitions, or all of them if `name` is None."""
    topics = None if name is None else [{"name": name, "partition_indexes": partitions or (0,)}]
    response = raw.call("list_partition_reassignments", 0, topics=topics, timeout=30_000)
    assert response.error_code == ErrorCode.none
    return {
        (topic.name, found.partition_index): (
            tuple(found.replicas),
            tuple(found.adding_replicas),
            tuple(found.removing_replicas),
        )
        for topic in response.topics
        for found in topic.partitions
    }


def await_replicas(nodes: Nodes, name: str, *replicas: int) -> None:
    """Wait until no reassignment is in progress and exactly these replicas are in sync."""
    eventually(lambda: nodes.known(name).replicas == replicas, timeout_s=60)
    nodes.await_isr(name, *replicas)
    assert list_reassignments(nodes.any(), name) == {}


def test_no_reassignments_without_a_request(raw: RawConnection, topic: TopicFactory) -> None:
    name = topic(partitions=2)
    for version in served(raw, "list_partition_reassignments"):
        topics = [{"name": name, "partition_indexes": [0, 1]}]
        response = raw.call("list_partition_reassignments", version, topics=topics)
        assert (response.error_code, response.topics) == (ErrorCode.none, ())


def test_unknown_topics_are_not_listed(raw: RawConnection, unique_name: NameFactory) -> None:
    assert list_reassignments(raw, unique_name()) == {}


@pytest.mark.parametrize(
    "replicas",
    [
        pytest.param([], id="no broker"),
        pytest.param([77], id="unknown broker"),
        pytest.param([1, 77], id="a known and an unknown broker"),
        pytest.param([1, 1], id="a broker twice"),
        pytest.param([-1], id="negative id"),
        pytest.param([2**31 - 1], id="largest id"),
        pytest.param(list(range(10_000)), id="ten thousand brokers"),
    ],
)
def test_invalid_replicas_are_refused(
    raw: RawConnection, topic: TopicFactory, replicas: list[int]
) -> None:
    name = topic()
    assert reassign_one(raw, name, replicas) == ErrorCode.invalid_replica_assignment
    assert list_reassignments(raw, name) == {}


def test_unknown_topic_or_partition(
    raw: RawConnection, topic: TopicFactory, unique_name: NameFactory
) -> None:
    unknown = ErrorCode.unknown_topic_or_partition
    assert reassign_one(raw, unique_name(), [1]) == unknown
    assert reassign(raw, topic(), [1], [1]) == [ErrorCode.none, unknown]


def test_cancelling_without_a_reassignment_is_refused(
    raw: RawConnection, topic: TopicFactory
) -> None:
    assert reassign_one(raw, topic(), None) == ErrorCode.no_reassignment_in_progress


def test_reassignment_to_the_current_replicas_does_nothing(
    raw: RawConnection, topic: TopicFactory
) -> None:
    name = topic()
    for version in served(raw, "alter_partition_reassignments"):
        assert only(reassign(raw, name, [1], version=version)) == ErrorCode.none
    assert list_reassignments(raw, name) == {}


def test_ten_thousand_partitions_get_a_result_each(raw: RawConnection, topic: TopicFactory) -> None:
    codes = reassign(raw, topic(), *([None] * 10_000))
    assert len(codes) == 10_000
    assert codes[0] == ErrorCode.no_reassignment_in_progress
    assert set(codes[1:]) == {ErrorCode.unknown_topic_or_partition}


@slow
def test_replication_factor_can_be_kept(nodes: Nodes, unique_name: NameFactory) -> None:
    name = nodes.create(unique_name(), [1, 2])

    def keeping_it(*replicas: int) -> Any:
        raw, fields = nodes.any(), {"allow_replication_factor_change": False}
        return only(reassign(raw, name, replicas, version=1, **fields))

    assert keeping_it(1) == ErrorCode.invalid_replication_factor
    assert keeping_it(1, 2, 3) == ErrorCode.invalid_replication_factor
    assert keeping_it(7, 8, 9) == ErrorCode.invalid_replica_assignment
    assert keeping_it(3, 1) == ErrorCode.none
    await_replicas(nodes, name, 3, 1)


@slow
def test_partition_is_reassigned_with_its_records(nodes: Nodes, unique_name: NameFactory) -> None:
    name = nodes.create(unique_name(), [1])
    for value in ("a", "b"):
        append(nodes.to(1), name, batch(values(value)))
    assert reassign_one(nodes.any(), name, [2, 3]) == ErrorCode.none
    await_replicas(nodes, name, 2, 3)
    # The old leader is not among the new replicas, so another replica becomes leader.
    leader = nodes.await_leader(name, 2, 3).leader
    append(nodes.to(leader), name, batch(values("c")))
    for broker_id in (2, 3):
        nodes.await_stored(broker_id, name, "a", "b", "c")


@slow
def test_replicas_are_added_and_removed(nodes: Nodes, unique_name: NameFactory) -> None:
    name = nodes.create(unique_name(), [1])
    append(nodes.to(1), name, batch(values("a")))
    for replicas in ([1, 2, 3], [1, 3], [3, 1]):
        assert reassign_one(nodes.any(), name, replicas) == ErrorCode.none
        await_replicas(nodes, name, *replicas)
        # The leader stays leader if it is among the new replicas, even if it is not the first one.
        assert nodes.known(name).leader == 1
    nodes.await_stored(3, name, "a")


@slow
def test_reassignment_in_progress_is_listed_and_can_be_cancelled(
    nodes: Nodes, unique_name: NameFactory
) -> None:
    name = nodes.create(unique_name(), [1, 2])
    append(nodes.to(1), name, batch([Record(value=b"x" * 1000)]))
    nodes.kill(3)
    # The reassignment cannot complete while the target broker is down.
    assert reassign_one(nodes.to(1), name, [1, 3]) == ErrorCode.none
    expected = {(name, 0): ((1, 3, 2), (3,), (2,))}
    assert list_reassignments(nodes.to(1), name) == expected
    assert list_reassignments(nodes.to(1), None) == expected
    # During the reassignment the partition has both sets of replicas, and the ISR is unchanged.
    eventually(lambda: set(nodes.known(name).replicas) == {1, 2, 3})
    assert nodes.known(name).isr == {1, 2}
    append(nodes.to(1), name, batch(values("meanwhile")))
    assert reassign_one(nodes.to(1), name, None) == ErrorCode.none
    eventually(lambda: nodes.known(name).replicas == (1, 2))
    assert list_reassignments(nodes.to(1), None) == {}
    assert nodes.known(name).isr == {1, 2}


@slow
def test_reassignment_completes_when_its_target_restarts(
    nodes: Nodes, unique_name: NameFactory
) -> None:
    name = nodes.create(unique_name(), [1])
    append(nodes.to(1), name, batch(values("a")))
    nodes.stop(3)
    assert reassign_one(nodes.to(1), name, [3]) == ErrorCode.none
    assert (name, 0) in list_reassignments(nodes.to(1), None)
    append(nodes.to(1), name, batch(values("b")))
    nodes.start(3)
    await_replicas(nodes, name, 3)
    nodes.await_leader(name, 3)
    nodes.await_stored(3, name, "a", "b")


@slow
@pytest.mark.parametrize(("side", "throttled"), [("leader", 1), ("follower", 2)])
def test_throttled_replica_waits_for_its_quota(
    nodes: Nodes, unique_name: NameFactory, side: str, throttled: int
) -> None:
    name, other = nodes.create(unique_name(), [1]), nodes.create(unique_name(), [1])
    for _ in range(6):  # The quota is exceeded after the first fetch response, of at most 1 MiB.
        append(nodes.to(1), name, batch([Record(value=bytes(900_000))]))
    append(nodes.to(1), other, batch(values("a")))
    rate, replicas = f"{side}.replication.throttled.rate", f"{side}.replication.throttled.replicas"
    broker = nodes.to(throttled)
    result = change(broker, str(throttled), (rate, SET, "1"), resource_type=BROKER)
    assert result.error_code == ErrorCode.none
    try:
        change(nodes.any(), name, (replicas, SET, f"0:{throttled}"))
        eventually(lambda: own_settings(broker, name) == {replicas: f"0:{throttled}"})
        for each in (name, other):
            assert reassign_one(nodes.any(), each, [1, 2]) == ErrorCode.none
        await_replicas(nodes, other, 1, 2)
        assert (name, 0) in list_reassignments(nodes.any(), name)
    finally:
        change(broker, str(throttled), (rate, DELETE, None), resource_type=BROKER)
    await_replicas(nodes, name, 1, 2)
