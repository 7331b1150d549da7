"""Tests of broker registrations, heartbeats and sessions."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from broker_ref.controller.broker_heartbeats import (
    TRANSITIONS,
    BrokerControlState,
    Heartbeat,
    Registration,
    RequestedState,
)
from broker_ref.controller.topics import NewTopic
from broker_ref.protocol.errors import ApiError
from broker_ref.protocol.identifiers import Uuid
from tests.broker_ref.controller.clusters import ControllerDriver
from tests.broker_ref.controller.test_controller import refused

SESSION_TIMEOUT_MS = 9_000


def test_transitions_cover_every_state_and_requested_state() -> None:
    states = set(BrokerControlState) - {BrokerControlState.SHUTDOWN_NOW}
    assert TRANSITIONS.keys() == {
        (state, requested) for state in states for requested in RequestedState
    }


def test_broker_is_unfenced_once_it_has_applied_its_registration() -> None:
    driver = ControllerDriver(1)
    epoch = driver.register(2)
    assert epoch == driver.metadata.end_offset - 1
    behind = driver.heartbeat(2, metadata_offset=epoch - 1)
    assert (behind.is_caught_up, behind.is_fenced) == (False, True)
    caught_up = driver.heartbeat(2, metadata_offset=epoch)
    assert (caught_up.is_caught_up, caught_up.is_fenced) == (True, False)
    assert not driver.is_fenced(2)


def test_broker_stays_fenced_while_it_wants_fence() -> None:
    driver = ControllerDriver(1)
    driver.register(2)
    assert driver.heartbeat(2, want_fence=True).is_fenced
    assert not driver.heartbeat(2).is_fenced
    assert driver.heartbeat(2, want_fence=True).is_fenced


def test_registration_of_another_cluster_is_refused() -> None:
    driver = ControllerDriver()
    registration = Registration(
        broker_id=1, cluster_id="other", incarnation_id=Uuid(int=7), host="h", port=1, rack=None
    )
    code = refused(lambda: driver.controller.register_broker(registration, 0))
    assert code is ErrorCode.inconsistent_cluster_id
    assert driver.metadata.brokers == {}


def test_another_incarnation_is_refused_until_the_session_expires() -> None:
    driver = ControllerDriver()
    first = driver.register(1, incarnation=100)
    driver.heartbeat(1)
    again = driver.register(1, incarnation=100)
    assert again == first  # the same incarnation keeps its broker epoch and its state
    assert not driver.is_fenced(1)
    code = refused(lambda: driver.register(1, incarnation=101))
    assert code is ErrorCode.duplicate_broker_registration
    driver.now_ms += SESSION_TIMEOUT_MS
    assert driver.register(1, incarnation=101) > first
    assert driver.is_fenced(1)
    code = refused(lambda: driver.heartbeat(1, broker_epoch=first))
    assert code is ErrorCode.stale_broker_epoch


def test_fenced_broker_may_register_again_at_once() -> None:
    driver = ControllerDriver(1, 2)
    driver.expire(1)
    driver.start(1)
    assert not driver.is_fenced(1)


def test_heartbeat_of_an_unregistered_broker_is_refused() -> None:
    heartbeat = Heartbeat(broker_id=5, broker_epoch=0, current_metadata_offset=0)
    controller = ControllerDriver(1).controller
    assert refused(lambda: controller.heartbeat(heartbeat, 0)) is ErrorCode.stale_broker_epoch


def test_broker_without_heartbeats_is_fenced_when_its_session_expires() -> None:
    driver = ControllerDriver(1, 2)
    driver.advance(3_000)
    driver.heartbeat(2)
    driver.advance(SESSION_TIMEOUT_MS - 3_001)
    assert not driver.is_fenced(1)
    assert driver.controller.next_deadline_ms() == driver.now_ms + 1
    driver.advance(1)
    assert driver.is_fenced(1)
    assert not driver.is_fenced(2)
    assert driver.controller.next_deadline_ms() == driver.now_ms + 3_000


def test_sessions_start_again_when_the_controller_restarts() -> None:
    driver = ControllerDriver(1, 2)
    driver.now_ms += 100 * SESSION_TIMEOUT_MS
    driver.restart()
    driver.advance(SESSION_TIMEOUT_MS - 1)
    assert not driver.is_fenced(1)
    driver.heartbeat(2)
    driver.advance(1)
    assert driver.is_fenced(1)
    assert not driver.is_fenced(2)


def test_controlled_shutdown_moves_leaders_and_waits_for_the_other_brokers() -> None:
    driver = ControllerDriver(1, 2, 3)
    driver.create_topic(NewTopic(name="t", assignments=((0, (1, 2, 3)),)))
    before = driver.metadata.end_offset - 1
    driver.heartbeat(3, metadata_offset=before)
    driver.heartbeat(2, metadata_offset=before)
    leaving = driver.heartbeat(1, want_shut_down=True)
    assert (leaving.should_shut_down, leaving.is_fenced) == (False, False)
    partition = driver.partition()
    assert (partition.leader, partition.isr, partition.leader_epoch) == (2, (2, 3), 1)
    assert driver.metadata.brokers[1].in_controlled_shutdown
    assert not driver.heartbeat(1, want_shut_down=True).should_shut_down
    driver.heartbeat(2)
    assert not driver.heartbeat(1, want_shut_down=True).should_shut_down
    driver.heartbeat(3)
    gone = driver.heartbeat(1, want_shut_down=True)
    assert (gone.should_shut_down, gone.is_fenced) == (True, True)
    assert driver.is_fenced(1)
    driver.start(1)
    assert driver.metadata.is_active(1)


def test_last_in_sync_replica_may_shut_down_and_leads_after_its_restart() -> None:
    driver = ControllerDriver(1, 2)
    driver.create_topic(NewTopic(name="t", assignments=((0, (1,)),)))
    driver.heartbeat(1, want_shut_down=True)
    partition = driver.partition()
    assert (partition.leader, partition.eligible_leader_replicas) == (-1, (1,))
    driver.heartbeat(2)
    assert driver.heartbeat(1, want_shut_down=True).should_shut_down
    driver.start(1)
    assert (driver.partition().leader, driver.partition().leader_epoch) == (1, 2)


def test_broker_in_shutdown_is_unfenced_only_as_a_new_incarnation() -> None:
    driver = ControllerDriver(1)
    driver.create_topic(NewTopic(name="t", assignments=((0, (1,)),)))
    driver.heartbeat(1, want_shut_down=True)
    driver.expire(1)
    assert driver.heartbeat(1).is_fenced
    assert driver.partition().leader == -1
    driver.start(1)
    assert driver.partition().leader == 1


def test_broker_that_leads_nothing_may_shut_down_at_once() -> None:
    driver = ControllerDriver(1, 2)
    assert driver.heartbeat(1, want_shut_down=True).should_shut_down


def test_broker_in_shutdown_gets_no_new_replicas() -> None:
    driver = ControllerDriver(1, 2, 3)
    driver.create_topic(NewTopic(name="t", assignments=((0, (1,)),)))
    driver.heartbeat(1, want_shut_down=True)
    driver.create_topic(NewTopic(name="u", partition_count=4, replication_factor=2))
    used = {r for p in driver.metadata.topics["u"].partitions.values() for r in p.replicas}
    assert used == {2, 3}
    with pytest.raises(ApiError):
        driver.create_topic(NewTopic(name="v", replication_factor=3))


def test_unregistered_broker_is_removed_from_every_isr() -> None:
    driver = ControllerDriver(1, 2)
    driver.create_topic(NewTopic(name="t", assignments=((0, (1, 2)),)))
    driver.controller.unregister_broker(1)
    assert (driver.partition().leader, driver.partition().isr) == (2, (2,))
    assert set(driver.metadata.brokers) == {2}
    code = refused(lambda: driver.controller.unregister_broker(1))
    assert code is ErrorCode.broker_id_not_registered
    assert driver.controller.next_deadline_ms() == driver.now_ms + SESSION_TIMEOUT_MS
