"""Tests of leaders and followers: only the leader serves producers; followers fetch from it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kio.schema.errors import ErrorCode

from tests.conformance.batches import batch, parse, values
from tests.conformance.eventually import eventually
from tests.conformance.nodes import BROKERS, Nodes
from tests.conformance.wire import (
    LATEST,
    append,
    fetch,
    list_offset,
    only,
    produce,
    produce_request,
)

pytestmark = pytest.mark.slow

NameFactory = Callable[[], str]
LAST_VERSION_FOR_LEADERS_ONLY = 10
"""The last version of Fetch that followers reject (KIP-392)."""


def test_every_broker_returns_the_same_leader_and_replicas(
    nodes: Nodes, unique_name: NameFactory
) -> None:
    name = nodes.create(unique_name(), [2, 3], [3, 1])
    for partition, replicas in enumerate([(2, 3), (3, 1)]):
        for broker_id in BROKERS:
            state = nodes.state(name, partition, seen_by=broker_id)
            assert state is not None
            assert (state.leader, state.replicas) == (replicas[0], replicas)
            assert (state.isr, state.leader_epoch) == (frozenset(replicas), 0)


def test_only_the_leader_accepts_records(nodes: Nodes, unique_name: NameFactory) -> None:
    name = nodes.create(unique_name(), [1, 2])
    for broker_id, code in (
        (1, ErrorCode.none),
        (2, ErrorCode.not_leader_or_follower),
        (3, ErrorCode.not_leader_or_follower),
    ):
        for acks in (1, -1):
            response = produce(nodes.to(broker_id), name, batch(values("a")), acks=acks)
            assert response.error_code == code, (broker_id, acks)
    assert list_offset(nodes.to(1), name, LATEST).offset == 2


def test_refusal_contains_the_current_leader(nodes: Nodes, unique_name: NameFactory) -> None:
    # KIP-951: the response contains the new leader, so the producer needs no metadata request.
    name = nodes.create(unique_name(), [1, 2])
    response = nodes.to(2).send(produce_request(name, batch(values("a")), version=12))
    refused = only(only(response.responses).partition_responses)
    assert refused.error_code == ErrorCode.not_leader_or_follower
    assert (refused.current_leader.leader_id, refused.current_leader.leader_epoch) == (1, 0)
    endpoint = only(response.node_endpoints)
    assert f"{endpoint.host}:{endpoint.port}" == nodes.cluster.address(1)
    assert endpoint.node_id == 1


@pytest.mark.parametrize("broker_id", [2, 3])
def test_only_the_leader_lists_offsets(
    nodes: Nodes, unique_name: NameFactory, broker_id: int
) -> None:
    name = nodes.create(unique_name(), [1, 2])
    response = list_offset(nodes.to(broker_id), name, LATEST)
    assert response.error_code == ErrorCode.not_leader_or_follower


@pytest.mark.parametrize("broker_id", [2, 3])
def test_only_the_leader_serves_old_fetch_versions(
    nodes: Nodes, unique_name: NameFactory, broker_id: int
) -> None:
    name = nodes.create(unique_name(), [1, 2])
    append(nodes.to(1), name, batch(values("a")))
    response = fetch(nodes.to(broker_id), name, version=LAST_VERSION_FOR_LEADERS_ONLY)
    assert response.error_code == ErrorCode.not_leader_or_follower
    assert not response.records


def test_broker_without_a_replica_serves_no_reader(nodes: Nodes, unique_name: NameFactory) -> None:
    name = nodes.create(unique_name(), [1, 2])
    assert fetch(nodes.to(3), name).error_code == ErrorCode.not_leader_or_follower


def test_followers_have_the_records_of_the_leader(nodes: Nodes, unique_name: NameFactory) -> None:
    name = nodes.create(unique_name(), [1, 2, 3])
    for n in range(20):
        append(nodes.to(1), name, batch(values(f"{n}", f"{n}+")))
    leaders = fetch(nodes.to(1), name).records
    assert len(parse(leaders)) == 20
    for follower in (2, 3):
        # KIP-392: a follower returns the records below the high watermark that it knows.
        eventually(lambda f=follower: fetch(nodes.to(f), name).records == leaders)  # type: ignore[misc]


def test_acks_all_means_that_every_follower_has_it(nodes: Nodes, unique_name: NameFactory) -> None:
    name = nodes.create(unique_name(), [1, 2, 3])
    append(nodes.to(1), name, batch(values("everywhere")))
    nodes.kill(1)
    new = nodes.await_leader(name, 2, 3).leader
    nodes.await_stored(new, name, "everywhere")
