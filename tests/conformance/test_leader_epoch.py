"""Tests of the leader epoch, which increases with each election.

Consumers and replicas detect diverged logs by comparing leader epochs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from integration.raw import RawConnection
from tests.conformance.batches import batch, parse, values
from tests.conformance.eventually import eventually
from tests.conformance.nodes import FETCH_WAIT_MS, NO_LEADER, Nodes
from tests.conformance.wire import LATEST, append, fetch, list_offset, only, produce

pytestmark = pytest.mark.slow

NameFactory = Callable[[], str]
PREFERRED = 0


def end_of_epoch(raw: RawConnection, name: str, epoch: int, *, current: int = -1) -> Any:
    requested = {"partition": 0, "current_leader_epoch": current, "leader_epoch": epoch}
    topics = [{"topic": name, "partitions": [requested]}]
    response = raw.call("offset_for_leader_epoch", 4, replica_id=-1, topics=topics)
    return only(only(response.topics).partitions)


def move_leader(nodes: Nodes, name: str, broker_id: int) -> int:
    """Kill the leader, so that an in-sync replica becomes leader; return the new leader epoch."""
    nodes.await_isr(name, *nodes.known(name).replicas)
    nodes.kill(nodes.known(name).leader)
    return nodes.await_leader(name, broker_id).leader_epoch


def test_leader_epoch_increases_with_each_election_and_is_in_the_batches(
    nodes: Nodes, unique_name: NameFactory
) -> None:
    name = nodes.create(unique_name(), [1, 2])
    append(nodes.to(1), name, batch(values("first")))
    first = nodes.known(name).leader_epoch
    second = move_leader(nodes, name, 2)
    assert second > first
    append(nodes.to(2), name, batch(values("second")))
    nodes.await_stored(2, name, "first", "second")
    stored = parse(fetch(nodes.to(2), name).records)
    assert [found.leader_epoch for found in stored] == [first, second]
    nodes.start(1)
    nodes.await_isr(name, 1, 2)
    # The restarted replica has the same batches as the leader, including their leader epochs.
    eventually(lambda: fetch(nodes.to(1), name).records == fetch(nodes.to(2), name).records)


def test_requests_with_another_leader_epoch_are_refused(
    nodes: Nodes, unique_name: NameFactory
) -> None:
    name = nodes.create(unique_name(), [1, 2])
    append(nodes.to(1), name, batch(values("a")))
    old = nodes.known(name).leader_epoch
    new = move_leader(nodes, name, 2)
    raw = nodes.to(2)
    eventually(lambda: list_offset(raw, name, LATEST).error_code == ErrorCode.none)
    for epoch, code in (
        (-1, ErrorCode.none),
        (old, ErrorCode.fenced_leader_epoch),
        (new, ErrorCode.none),
        (new + 1, ErrorCode.unknown_leader_epoch),
    ):
        assert fetch(raw, name, current_leader_epoch=epoch).error_code == code, epoch
        assert list_offset(raw, name, LATEST, leader_epoch=epoch).error_code == code, epoch
        assert end_of_epoch(raw, name, old, current=epoch).error_code == code, epoch


def test_reader_gets_the_end_offset_of_an_epoch(nodes: Nodes, unique_name: NameFactory) -> None:
    name = nodes.create(unique_name(), [1, 2])
    for value in ("a", "b", "c"):
        append(nodes.to(1), name, batch(values(value)))
    old = nodes.known(name).leader_epoch
    new = move_leader(nodes, name, 2)
    append(nodes.to(2), name, batch(values("d")))
    for requested, found, end in (
        (old, old, 3),
        (new, new, 4),
        (new - 1, old, 3),
        (new + 1, -1, -1),
    ):
        response = end_of_epoch(nodes.to(2), name, requested)
        expected = (ErrorCode.none, found, end)
        assert (response.error_code, response.leader_epoch, response.end_offset) == expected, (
            requested
        )


def test_fetch_returns_a_diverging_epoch(nodes: Nodes, unique_name: NameFactory) -> None:
    name = nodes.create(unique_name(), [1, 2])
    append(nodes.to(1), name, batch(values("a")))
    old = nodes.known(name).leader_epoch
    new = move_leader(nodes, name, 2)
    append(nodes.to(2), name, batch(values("b")))
    nodes.await_stored(2, name, "a", "b")
    # A consumer that read two records of the old leader epoch has read a record that was lost.
    response = fetch(nodes.to(2), name, 2, last_fetched_epoch=old)
    assert (response.diverging_epoch.epoch, response.diverging_epoch.end_offset) == (old, 1)
    assert not response.records
    good = fetch(nodes.to(2), name, 1, last_fetched_epoch=old)
    assert (good.diverging_epoch.epoch, good.diverging_epoch.end_offset) == (-1, -1)
    assert only(only(parse(good.records)).records).value == b"b"
    assert fetch(nodes.to(2), name, 2, last_fetched_epoch=new).diverging_epoch.epoch == -1


def test_restarted_leader_truncates_records_that_only_it_had(
    nodes: Nodes, unique_name: NameFactory
) -> None:
    name = nodes.create(unique_name(), [1, 2])
    append(nodes.to(1), name, batch(values("committed")))
    # The pause is too short for the follower to leave the ISR, but it misses a record. It may
    # receive the first record in the response to its pending fetch, which the leader sends before
    # this produce request times out.
    nodes.pause(2)
    perhaps = produce(nodes.to(1), name, batch(values("perhaps")), timeout_ms=5 * FETCH_WAIT_MS)
    assert perhaps.error_code == ErrorCode.request_timed_out
    never = produce(nodes.to(1), name, batch(values("never")), acks=1)
    assert never.error_code == ErrorCode.none
    nodes.kill(1)
    nodes.resume(2)
    nodes.await_leader(name, 2)
    append(nodes.to(2), name, batch(values("after")))
    nodes.start(1)
    nodes.await_isr(name, 1, 2)
    kept = [(value or b"").decode() for value in nodes.stored(2, name)]
    assert kept in (["committed", "after"], ["committed", "perhaps", "after"])
    nodes.await_stored(1, name, *kept)
    # Broker 1 becomes leader again, with the records of the other broker.
    nodes.kill(2)
    nodes.await_leader(name, 1)
    append(nodes.to(1), name, batch(values("last")))
    nodes.await_stored(1, name, *kept, "last")


def test_leader_epoch_increases_when_the_same_broker_returns(
    nodes: Nodes, unique_name: NameFactory
) -> None:
    name = nodes.create(unique_name(), [3])
    append(nodes.to(3), name, batch(values("a")))
    before = nodes.known(name)
    nodes.kill(3)
    nodes.await_leader(name, NO_LEADER)
    nodes.start(3)
    after = nodes.await_leader(name, 3)
    assert after.leader_epoch > before.leader_epoch
    nodes.await_stored(3, name, "a")
