"""Tests of the ISR, which slow replicas leave, and whose members may become leader."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kio.schema.errors import ErrorCode

from tests.conformance.batches import batch, values
from tests.conformance.eventually import eventually
from tests.conformance.nodes import NO_LEADER, Nodes
from tests.conformance.wire import append, produce

pytestmark = pytest.mark.slow

NameFactory = Callable[[], str]


def test_paused_follower_leaves_the_isr_and_rejoins(nodes: Nodes, unique_name: NameFactory) -> None:
    name = nodes.create(unique_name(), [1, 2, 3])
    append(nodes.to(1), name, batch(values("a")))
    nodes.pause(3)
    # The leader acknowledges the record when the paused follower has left the ISR.
    append(nodes.to(1), name, batch(values("b")))
    nodes.await_isr(name, 1, 2)
    append(nodes.to(1), name, batch(values("c")))
    nodes.resume(3)
    nodes.await_isr(name, 1, 2, 3)
    assert nodes.known(name).leader == 1
    nodes.await_stored(3, name, "a", "b", "c")


def test_killed_follower_leaves_the_isr_and_rejoins(nodes: Nodes, unique_name: NameFactory) -> None:
    name = nodes.create(unique_name(), [1, 2, 3])
    append(nodes.to(1), name, batch(values("a")))
    nodes.kill(3)
    append(nodes.to(1), name, batch(values("b")))
    nodes.await_isr(name, 1, 2)
    nodes.start(3)
    nodes.await_isr(name, 1, 2, 3)
    nodes.await_stored(3, name, "a", "b")


def test_only_an_in_sync_replica_may_lead(nodes: Nodes, unique_name: NameFactory) -> None:
    name = nodes.create(unique_name(), [1, 2])
    append(nodes.to(1), name, batch(values("on both")))
    nodes.kill(2)
    nodes.await_isr(name, 1)
    append(nodes.to(1), name, batch(values("on the leader alone")))
    nodes.kill(1)
    nodes.start(2)
    # The running replica lacks acknowledged records, so it must not become leader.
    nodes.await_leader(name, NO_LEADER)
    response = produce(nodes.to(2), name, batch(values("refused")), acks=1)
    assert response.error_code == ErrorCode.not_leader_or_follower
    assert nodes.known(name).leader == NO_LEADER
    nodes.start(1)
    nodes.await_leader(name, 1)
    nodes.await_isr(name, 1, 2)
    for broker_id in (1, 2):
        nodes.await_stored(broker_id, name, "on both", "on the leader alone")


def test_unclean_election_happens_if_configured(nodes: Nodes, unique_name: NameFactory) -> None:
    name = nodes.create(unique_name(), [1, 2], **{"unclean.leader.election.enable": "true"})
    append(nodes.to(1), name, batch(values("on both")))
    nodes.kill(2)
    nodes.await_isr(name, 1)
    append(nodes.to(1), name, batch(values("lost")))
    before = nodes.known(name)
    nodes.kill(1)
    nodes.start(2)
    after = nodes.await_leader(name, 2)
    # The new leader lacks acknowledged records, so it is the only in-sync replica.
    assert after.isr == {2}
    assert after.leader_epoch > before.leader_epoch
    append(nodes.to(2), name, batch(values("kept")))
    nodes.start(1)
    nodes.await_isr(name, 1, 2)
    # The old leader removes the records that no other replica has.
    for broker_id in (1, 2):
        nodes.await_stored(broker_id, name, "on both", "kept")


def test_partition_without_live_replicas_is_leaderless(
    nodes: Nodes, unique_name: NameFactory
) -> None:
    name = nodes.create(unique_name(), [3], [1])
    append(nodes.to(3), name, batch(values("a")))
    nodes.kill(3)
    nodes.await_leader(name, NO_LEADER)
    append(nodes.to(1), name, batch(values("elsewhere")), partition=1)
    nodes.start(3)
    nodes.await_leader(name, 3)
    nodes.await_stored(3, name, "a")
    eventually(lambda: produce(nodes.to(3), name, batch(values("b"))).error_code == ErrorCode.none)
