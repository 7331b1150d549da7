"""Tests of the preferred read replica, from which consumers in the same rack read (KIP-392)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.conformance.batches import batch, values
from tests.conformance.eventually import eventually
from tests.conformance.nodes import RACKS, Nodes
from tests.conformance.wire import append, fetch, fetch_request, only

pytestmark = pytest.mark.slow

NameFactory = Callable[[], str]


def fetch_from_rack(nodes: Nodes, broker_id: int, name: str, rack: str, offset: int = 0) -> Any:
    requested = fetch_request({name: [{"fetch_offset": offset}]}, rack_id=rack)
    return only(only(nodes.to(broker_id).send(requested).responses).partitions)


@pytest.fixture
def name(nodes: Nodes, unique_name: NameFactory) -> str:
    """Return a topic led by broker 1 with a follower on broker 2; both have its only record."""
    created = nodes.create(unique_name(), [1, 2])
    append(nodes.to(1), created, batch(values("a")))
    nodes.await_stored(2, created, "a")
    return created


def test_metadata_contains_racks(nodes: Nodes) -> None:
    brokers = nodes.any().call("metadata", 9, topics=[]).brokers
    assert {broker.node_id: broker.rack for broker in brokers} == RACKS


def test_reader_is_redirected_to_the_follower_in_its_rack(nodes: Nodes, name: str) -> None:
    def sent() -> bool:
        response = fetch_from_rack(nodes, 1, name, RACKS[2])
        assert response.error_code == ErrorCode.none
        return bool(response.preferred_read_replica == 2 and not response.records)

    # The leader redirects when it knows that the follower's high watermark covers the record.
    eventually(sent)
    nodes.await_stored(2, name, "a")


@pytest.mark.parametrize("rack", [RACKS[1], RACKS[3], "elsewhere", ""])
def test_leader_serves_readers_without_a_follower_in_their_rack(
    nodes: Nodes, name: str, rack: str
) -> None:
    response = fetch_from_rack(nodes, 1, name, rack)
    assert (response.error_code, response.preferred_read_replica) == (ErrorCode.none, -1)
    assert response.records


def test_follower_that_is_not_in_sync_is_not_preferred(nodes: Nodes, name: str) -> None:
    nodes.pause(2)
    append(nodes.to(1), name, batch(values("b")))
    nodes.await_isr(name, 1)
    response = fetch_from_rack(nodes, 1, name, RACKS[2])
    assert (response.error_code, response.preferred_read_replica) == (ErrorCode.none, -1)
    assert response.records


def test_follower_returns_its_high_watermark(nodes: Nodes, name: str) -> None:
    assert fetch(nodes.to(2), name, 1).error_code == ErrorCode.none
    assert not fetch(nodes.to(2), name, 1).records
    assert fetch(nodes.to(2), name, 50).error_code in (
        ErrorCode.offset_out_of_range,
        ErrorCode.offset_not_available,
    )
