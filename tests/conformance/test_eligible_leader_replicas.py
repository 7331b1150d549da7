"""Tests of eligible leader replicas, which may lead after they have left the ISR (KIP-966).

A replica that leaves an ISR below `min.insync.replicas` has all committed records, because the high
watermark does not increase below this size. It loses its eligibility if its broker restarts without
a clean shutdown, because its disk may have lost records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from kio.schema.errors import ErrorCode

from integration.clusters.features import finalize, finalized
from integration.raw import RawConnection
from tests.conformance.batches import batch, values
from tests.conformance.eventually import eventually
from tests.conformance.nodes import BROKERS, NO_LEADER, Nodes
from tests.conformance.test_describe_topic_partitions import describe
from tests.conformance.test_elect_leaders import UNCLEAN, elect
from tests.conformance.topic_settings import BROKER, SET, change
from tests.conformance.wire import append, only, produce

NameFactory = Callable[[], str]

FEATURE = "eligible.leader.replicas.version"
TWO = {"min.insync.replicas": "2"}

slow = pytest.mark.slow


class State(NamedTuple):
    """The state of a partition in a DescribeTopicPartitions response."""

    leader: int
    isr: set[int]
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()


def described(nodes: Nodes, name: str) -> Any:
    """Return the description of partition 0."""
    return only(only(describe(nodes.any(), name).topics).partitions)


def state(nodes: Nodes, name: str) -> State:
    found = described(nodes, name)
    return State(
        leader=found.leader_id,
        isr=set(found.isr_nodes),
        elr=tuple(sorted(found.eligible_leader_replicas)),
        last_known_elr=tuple(found.last_known_elr),
    )


def await_state(nodes: Nodes, name: str, expected: State) -> None:
    last: list[State] = []

    def is_reached() -> bool:
        last[:] = [state(nodes, name)]
        return last[0] == expected

    try:
        eventually(is_reached, timeout_s=60.0)
    except AssertionError as error:
        raise AssertionError(f"{name}-0 has {last[0]} instead of {expected}") from error


def test_new_cluster_finalizes_version_1(raw: RawConnection) -> None:
    assert finalized(raw.address)[FEATURE] == 1
    response = raw.call(
        "api_versions", 4, client_software_name="conformance", client_software_version="1"
    )
    supported = {
        feature.name: (feature.min_version, feature.max_version)
        for feature in response.supported_features
    }
    assert supported[FEATURE] == (0, 1)


@slow
def test_eligible_replica_leads_instead_of_a_last_leader_that_crashed(
    nodes: Nodes, unique_name: NameFactory
) -> None:
    name = nodes.create(unique_name(), [1, 2, 3], **TWO)
    append(nodes.to(1), name, batch(values("on all")))
    nodes.stop(3)
    # The ISR is not below min.insync.replicas, so the replica that has left it is not eligible.
    await_state(nodes, name, State(1, {1, 2}))
    append(nodes.to(1), name, batch(values("on two")))
    nodes.stop(2)
    await_state(nodes, name, State(1, {1}, (2,)))
    written = produce(nodes.to(1), name, batch(values("on the leader")), acks=1)
    assert written.error_code == ErrorCode.none
    nodes.start(3)
    await_state(nodes, name, State(1, {1, 3}))  # The ISR is large enough again.
    nodes.stop(3)
    await_state(nodes, name, State(1, {1}, (3,)))
    nodes.kill(1)
    nodes.start(2)
    await_state(nodes, name, State(NO_LEADER, set(), (1, 3), (1,)))
    nodes.start(3)
    await_state(nodes, name, State(3, {2, 3}))
    nodes.await_stored(3, name, "on all", "on two", "on the leader")
    nodes.start(1)
    await_state(nodes, name, State(3, {1, 2, 3}))


@slow
def test_crashed_replica_is_not_eligible_and_the_last_leader_is_elected(
    nodes: Nodes, unique_name: NameFactory
) -> None:
    name = nodes.create(unique_name(), [2, 1], **TWO)
    append(nodes.to(2), name, batch(values("a")))
    nodes.kill(1)
    await_state(nodes, name, State(2, {2}, (1,)))
    before = nodes.known(name)
    nodes.kill(2)
    await_state(nodes, name, State(NO_LEADER, set(), (1, 2), (2,)))
    nodes.start(1)
    await_state(nodes, name, State(NO_LEADER, set(), (2,), (2,)))
    # No replica is eligible after the second crash, so the last known leader is elected.
    nodes.start(2)
    await_state(nodes, name, State(2, {1, 2}))
    assert nodes.known(name).leader_epoch > before.leader_epoch + 1
    nodes.await_stored(2, name, "a")
    append(nodes.to(2), name, batch(values("b")))
    for broker_id in (1, 2):
        nodes.await_stored(broker_id, name, "a", "b")


@slow
def test_cleanly_stopped_leader_stays_eligible(nodes: Nodes, unique_name: NameFactory) -> None:
    name = nodes.create(unique_name(), [1, 2], **TWO)
    append(nodes.to(1), name, batch(values("a")))
    nodes.stop(1)
    await_state(nodes, name, State(2, {2}, (1,)))
    nodes.stop(2)
    await_state(nodes, name, State(NO_LEADER, set(), (1, 2), (2,)))
    nodes.start(1)
    await_state(nodes, name, State(1, {1}, (2,)))
    refused = produce(nodes.to(1), name, batch(values("b")))
    assert refused.error_code == ErrorCode.not_enough_replicas
    nodes.start(2)
    await_state(nodes, name, State(1, {1, 2}))


@slow
def test_unclean_election_clears_the_eligible_replicas(
    nodes: Nodes, unique_name: NameFactory
) -> None:
    name = nodes.create(unique_name(), [1, 2, 3], **TWO)
    nodes.stop(3)
    await_state(nodes, name, State(1, {1, 2}))
    nodes.stop(2)
    nodes.kill(1)
    nodes.start(3)
    await_state(nodes, name, State(NO_LEADER, set(), (1, 2), (1,)))
    codes = elect(nodes.to(3), {name: [0]}, election_type=UNCLEAN)
    assert codes == {(name, 0): ErrorCode.none}
    await_state(nodes, name, State(3, {3}))


@slow
def test_change_of_min_isr_clears_the_eligible_replicas(
    nodes: Nodes, unique_name: NameFactory
) -> None:
    name = nodes.create(unique_name(), [1, 2], **TWO)
    other = nodes.create(unique_name(), [1, 2], **TWO)
    nodes.stop(2)
    for each in (name, other):
        await_state(nodes, each, State(1, {1}, (2,)))
    assert described(nodes, name).offline_replicas == (2,)
    oldest = only(only(nodes.to(1).call("metadata", 0, topics=[{"name": name}]).topics).partitions)
    found = (oldest.error_code, oldest.leader_id, oldest.replica_nodes)
    assert found == (ErrorCode.replica_not_available, 1, (1,)), "it has no offline replicas"
    listed = nodes.to(1).call("list_config_resources", 1, resource_types=[BROKER])
    assert "2" in {one.resource_name for one in listed.config_resources}, "it is registered"
    change(nodes.to(1), name, ("min.insync.replicas", SET, "1"))
    await_state(nodes, name, State(1, {1}))
    assert state(nodes, other) == State(1, {1}, (2,))


@pytest.fixture
def nodes_without_elr(nodes: Nodes) -> Iterator[Nodes]:
    """Return the brokers with version 0 of the feature, which is restored after the test."""
    addresses = [nodes.cluster.address(broker_id) for broker_id in BROKERS]
    finalize(addresses, {FEATURE: 0})
    try:
        yield nodes
    finally:
        nodes.restore()
        finalize(addresses, {FEATURE: 1})


@slow
def test_version_0_keeps_the_last_replica_in_the_isr(
    nodes_without_elr: Nodes, unique_name: NameFactory
) -> None:
    nodes = nodes_without_elr
    name = nodes.create(unique_name(), [1, 2], **TWO)
    append(nodes.to(1), name, batch(values("a")))
    nodes.stop(2)
    await_state(nodes, name, State(1, {1}))
    nodes.kill(1)
    nodes.start(2)
    await_state(nodes, name, State(NO_LEADER, {1}))
    nodes.start(1)
    await_state(nodes, name, State(1, {1, 2}))
    nodes.await_stored(2, name, "a")
