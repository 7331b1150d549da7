"""Tests of paused brokers, which do not respond and lose no request."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import broker_ref
from broker_ref.controller.client import CONTROLLER_ID
from broker_ref.events import ConnectionClosed, FrameReceived, TimePassed
from broker_ref.faults import Faults
from broker_ref.node.pause_gate import PauseGate
from integration.raw import RawConnection, request
from tests.conformance.eventually import eventually

pytestmark = pytest.mark.slow

FRAMES = [FrameReceived(connection_id=1, frame=frame) for frame in (b"a", b"b", b"c")]
CONFIGS = {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "100"}


@pytest.fixture
def cluster() -> Iterator[broker_ref.Cluster]:
    with broker_ref.Cluster(brokers=2, configs=CONFIGS) as started:
        yield started


def known_to(connection: RawConnection) -> set[int]:
    return {broker.node_id for broker in connection.call("metadata", 9, topics=[]).brokers}


def test_events_during_a_pause_are_handled_in_order_afterwards() -> None:
    faults = Faults()
    pause_gate = PauseGate(faults, node_id=1)
    assert pause_gate.due(FRAMES[0]) == (FRAMES[0],)
    faults.pause(1)
    gone = ConnectionClosed(connection_id=2)
    assert [pause_gate.due(event) for event in (FRAMES[1], TimePassed(), gone)] == [(), (), ()]
    assert pause_gate.is_on
    faults.resume(1)
    assert pause_gate.due(TimePassed()) == (FRAMES[1], gone, TimePassed())
    assert pause_gate.due(FRAMES[2]) == (FRAMES[2],)


def test_other_nodes_are_not_paused() -> None:
    faults = Faults()
    faults.pause(2)
    pause_gate = PauseGate(faults, node_id=1)
    assert not pause_gate.is_on
    assert pause_gate.due(FRAMES[0]) == (FRAMES[0],)


def test_a_paused_broker_keeps_connections_and_loses_its_session(
    cluster: broker_ref.Cluster,
) -> None:
    requested = request("metadata", 9, topics=[])
    with (
        RawConnection(cluster.address(1)) as running,
        RawConnection(cluster.address(2)) as paused,
    ):
        assert known_to(paused) == {1, 2}
        cluster.pause_broker(2)
        paused.send_only(requested)
        eventually(lambda: known_to(running) == {1})
        paused.set_timeout(0.1)
        with pytest.raises(TimeoutError):
            paused.receive(requested)
        cluster.create_topic("of-the-one-that-runs")
        cluster.resume_broker(2)
        paused.set_timeout(30)
        assert paused.receive(requested).brokers
        eventually(lambda: known_to(running) == {1, 2})


def test_the_controller_can_be_paused_too(cluster: broker_ref.Cluster) -> None:
    with RawConnection(cluster.address(1)) as connection:
        cluster.faults.pause(CONTROLLER_ID)
        requested = request(
            "create_topics",
            5,
            topics=[{"name": "t", "num_partitions": 1, "replication_factor": 1}],
            timeout=20_000,
            validate_only=False,
        )
        connection.send_only(requested)
        connection.set_timeout(0.1)
        with pytest.raises(TimeoutError):
            connection.receive(requested)
        cluster.faults.resume(CONTROLLER_ID)
        connection.set_timeout(30)
        assert [topic.error_code for topic in connection.receive(requested).topics] == [0]


def test_a_paused_broker_can_be_stopped_killed_and_closed(cluster: broker_ref.Cluster) -> None:
    cluster.pause_broker(2)
    cluster.stop_broker(2)
    cluster.start_broker(2)
    cluster.pause_broker(2)
    cluster.kill_broker(2)
    cluster.start_broker(2)
    with RawConnection(cluster.address(2)) as connection:
        assert known_to(connection) == {1, 2}
    cluster.pause_broker(1)
