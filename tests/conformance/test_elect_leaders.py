"""Tests of ElectLeaders: preferred elections, and unclean elections on request (KIP-460)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from integration.raw import RawConnection
from tests.conformance.batches import batch, values
from tests.conformance.nodes import NO_LEADER, Nodes
from tests.conformance.wire import append, only, served

NameFactory = Callable[[], str]
TopicFactory = Callable[..., str]
PREFERRED, UNCLEAN = 0, 1
slow = pytest.mark.slow


def elect(
    raw: RawConnection,
    partitions: Mapping[str, Sequence[int]] | None,
    *,
    election_type: int = PREFERRED,
    version: int = 2,
) -> dict[tuple[str, int], ErrorCode]:
    """Send ElectLeaders and return the error code of every partition in the response.

    `partitions` None requests all partitions.
    """
    requested: Any = None
    if partitions is not None:
        requested = [{"topic": name, "partitions": indexes} for name, indexes in partitions.items()]
    fields = {"topic_partitions": requested, "timeout": 30_000}
    if version >= 1:
        fields["election_type"] = election_type
    response = raw.call("elect_leaders", version, **fields)
    if version >= 1:
        assert response.error_code == ErrorCode.none
    return {
        (topic.topic, partition.partition_id): partition.error_code
        for topic in response.replica_election_results
        for partition in topic.partition_result
    }


def test_no_election_is_needed_if_the_preferred_replica_leads(
    raw: RawConnection, topic: TopicFactory
) -> None:
    name = topic(partitions=2)
    for version in served(raw, "elect_leaders"):
        codes = elect(raw, {name: [0, 1]}, version=version)
        assert codes == dict.fromkeys([(name, 0), (name, 1)], ErrorCode.election_not_needed)
    unclean = elect(raw, {name: [0]}, election_type=UNCLEAN)
    assert unclean == {(name, 0): ErrorCode.election_not_needed}


def test_unknown_topic_or_partition(
    raw: RawConnection, topic: TopicFactory, unique_name: NameFactory
) -> None:
    known, unknown = topic(), unique_name()
    assert elect(raw, {known: [0, 7], unknown: [0]}) == {
        (known, 0): ErrorCode.election_not_needed,
        (known, 7): ErrorCode.unknown_topic_or_partition,
        (unknown, 0): ErrorCode.unknown_topic_or_partition,
    }


def test_unknown_election_type_is_refused(raw: RawConnection, topic: TopicFactory) -> None:
    requested = [{"topic": topic(), "partitions": [0]}]
    response = raw.call("elect_leaders", 2, election_type=9, topic_partitions=requested)
    assert response.error_code == ErrorCode.invalid_request


def test_ten_thousand_partitions_get_a_result_each(raw: RawConnection, topic: TopicFactory) -> None:
    name = topic()
    codes = elect(raw, {name: range(10_000)})
    assert len(codes) == 10_000
    assert codes.pop((name, 0)) == ErrorCode.election_not_needed
    assert set(codes.values()) == {ErrorCode.unknown_topic_or_partition}


@slow
def test_preferred_election_restores_the_preferred_leader(
    nodes: Nodes, unique_name: NameFactory
) -> None:
    name = nodes.create(unique_name(), [1, 2], [2, 1])
    append(nodes.to(1), name, batch(values("a")))
    nodes.await_isr(name, 1, 2)
    nodes.kill(1)
    moved = nodes.await_leader(name, 2)
    # The preferred replica is not running.
    unavailable = {(name, 0): ErrorCode.preferred_leader_not_available}
    assert elect(nodes.to(2), {name: [0]}) == unavailable
    nodes.start(1)
    nodes.await_isr(name, 1, 2)
    nodes.await_isr(name, 1, 2, partition=1)
    assert nodes.known(name).leader == 2, "no election was requested yet"
    codes = elect(nodes.to(3), {name: [0, 1]})
    assert codes == {(name, 0): ErrorCode.none, (name, 1): ErrorCode.election_not_needed}
    back = nodes.await_leader(name, 1)
    assert back.leader_epoch > moved.leader_epoch
    append(nodes.to(1), name, batch(values("b")))
    nodes.await_stored(1, name, "a", "b")


@slow
def test_null_partitions_elect_all(nodes: Nodes, unique_name: NameFactory) -> None:
    # The response omits partitions that need no election, so the test kills one broker.
    name = nodes.create(unique_name(), [1, 2], [2, 1])
    nodes.stop(1)
    nodes.await_leader(name, 2)
    nodes.start(1)
    nodes.await_isr(name, 1, 2)
    codes = elect(nodes.to(2), None)
    assert codes[(name, 0)] == ErrorCode.none
    assert (name, 1) not in codes
    assert ErrorCode.election_not_needed not in codes.values()
    nodes.await_leader(name, 1)


@slow
def test_unclean_election_on_request(nodes: Nodes, unique_name: NameFactory) -> None:
    name = nodes.create(unique_name(), [1, 2])
    append(nodes.to(1), name, batch(values("on both")))
    nodes.kill(2)
    nodes.await_isr(name, 1)
    append(nodes.to(1), name, batch(values("on the leader alone")))
    nodes.kill(1)
    nodes.await_leader(name, NO_LEADER)
    none_runs = {(name, 0): ErrorCode.eligible_leaders_not_available}
    assert elect(nodes.to(3), {name: [0]}, election_type=UNCLEAN) == none_runs
    nodes.start(2)
    preferred = {(name, 0): ErrorCode.preferred_leader_not_available}
    assert elect(nodes.to(3), {name: [0]}) == preferred
    assert elect(nodes.to(3), {name: [0]}, election_type=UNCLEAN) == {(name, 0): ErrorCode.none}
    assert nodes.await_leader(name, 2).isr == {2}
    nodes.await_stored(2, name, "on both")
    result = only(list(elect(nodes.to(3), {name: [0]}, election_type=UNCLEAN).values()))
    assert result == ErrorCode.election_not_needed
