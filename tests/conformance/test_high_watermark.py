"""Tests of the high watermark, below which all in-sync replicas have the records.

Consumers read only below the high watermark.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kio.schema.errors import ErrorCode

from integration.raw import RawConnection
from tests.conformance.batches import batch, parse, values
from tests.conformance.eventually import eventually
from tests.conformance.nodes import Nodes
from tests.conformance.wire import (
    LATEST,
    MAX_TIMESTAMP,
    append,
    fetch,
    fetch_request,
    list_offset,
    only,
    produce,
)

pytestmark = pytest.mark.slow

NameFactory = Callable[[], str]


@pytest.fixture
def name(nodes: Nodes, unique_name: NameFactory) -> str:
    created = nodes.create(unique_name(), [1, 2])
    append(nodes.to(1), created, batch(values("committed")))
    return created


def append_uncommitted(nodes: Nodes, name: str) -> None:
    """Append a record that only the leader has, because the follower is paused."""
    nodes.pause(2)
    response = produce(nodes.to(1), name, batch(values("not committed")), acks=1)
    assert (response.error_code, response.base_offset) == (ErrorCode.none, 1)


def test_readers_see_nothing_above_the_high_watermark(nodes: Nodes, name: str) -> None:
    append_uncommitted(nodes, name)
    response = fetch(nodes.to(1), name)
    assert (response.high_watermark, response.last_stable_offset) == (1, 1)
    assert [b.base_offset for b in parse(response.records)] == [0]
    assert list_offset(nodes.to(1), name, LATEST).offset == 1
    assert list_offset(nodes.to(1), name, MAX_TIMESTAMP).offset == 0


def test_fetch_above_the_high_watermark_is_empty_without_error(nodes: Nodes, name: str) -> None:
    append_uncommitted(nodes, name)
    for offset in (1, 2):
        response = fetch(nodes.to(1), name, offset)
        assert (response.error_code, response.high_watermark) == (ErrorCode.none, 1)
        assert not response.records
    assert fetch(nodes.to(1), name, 3).error_code == ErrorCode.offset_out_of_range


def test_increase_wakes_a_waiting_fetch(nodes: Nodes, name: str) -> None:
    append_uncommitted(nodes, name)
    with RawConnection(nodes.cluster.address(1)) as waiting:
        request = fetch_request({name: [{"fetch_offset": 1}]}, min_bytes=1, max_wait_ms=25_000)
        waiting.send_only(request)
        nodes.resume(2)
        response = only(only(waiting.receive(request).responses).partitions)
    assert only(only(parse(response.records)).records).value == b"not committed"
    assert response.high_watermark == 2


def test_increases_when_a_paused_follower_leaves_the_isr(nodes: Nodes, name: str) -> None:
    append_uncommitted(nodes, name)
    nodes.await_isr(name, 1)
    nodes.await_stored(1, name, "committed", "not committed")


def test_acks_all_waits_for_the_high_watermark(nodes: Nodes, name: str) -> None:
    nodes.pause(2)
    append(nodes.to(1), name, batch(values("b")))
    # An acknowledged record is committed, so consumers can read it immediately.
    assert fetch(nodes.to(1), name).high_watermark == 2
    nodes.await_isr(name, 1)


def test_acks_all_times_out_after_the_timeout_of_the_producer(
    nodes: Nodes, unique_name: NameFactory
) -> None:
    name = nodes.create(unique_name(), [1, 2])
    nodes.pause(2)
    response = produce(nodes.to(1), name, batch(values("a")), timeout_ms=100)
    assert response.error_code == ErrorCode.request_timed_out
    nodes.resume(2)
    # The leader has appended the record, so a retry may duplicate it.
    nodes.await_stored(1, name, "a")


def test_follower_learns_the_high_watermark_with_its_next_fetch(nodes: Nodes, name: str) -> None:
    for n in range(1, 6):
        append(nodes.to(1), name, batch(values(f"{n}")))
        seen = fetch(nodes.to(2), name).high_watermark
        assert n <= seen <= n + 1, "all records before the last one are known to be committed"
    eventually(lambda: fetch(nodes.to(2), name).high_watermark == 6)
