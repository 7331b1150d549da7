"""Tests of three brokers and a controller: startup, shutdown and faults."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from kio.schema.errors import ErrorCode

from broker_ref.config import BrokerConfig
from broker_ref.controller.broker_heartbeats import Heartbeat, Registration
from broker_ref.controller.client import CONTROLLER_ID
from broker_ref.controller.metadata import Commit, PartitionMetadata
from broker_ref.controller.metadata_batches import decode_commits
from broker_ref.controller.records import UnreadableRecordError
from broker_ref.faults import Match, Sender
from broker_ref.node import forwarding, metadata_follower
from broker_ref.node.controller import JOURNAL_FILE
from broker_ref.node.forwarding import ENVELOPE_KEY, FORWARDING_TIMEOUT_MS
from broker_ref.node.registration import BrokerState
from broker_ref.protocol.identifiers import uuid_text
from integration.raw import request
from integration.simulation.cluster import CONTROLLER, host_of
from tests.broker_ref.memory_storage import MemoryStorage
from tests.broker_ref.node.clients import Clients, create_topics
from tests.broker_ref.node.requests import batch, fetch, fetched, produce, produced
from tests.broker_ref.virtual import NodeFailedError, VirtualCluster

BROKERS = (1, 2, 3)
SESSION_MS = 3_000
HEARTBEAT_MS = 500
LAG_MS = 2_000
FETCH, PRODUCE, HEARTBEAT, FETCH_SNAPSHOT = 1, 0, 63, 59


def config(broker_id: int, **changed: Any) -> BrokerConfig:
    fields: dict[str, Any] = {
        "node_id": broker_id,
        "broker_session_timeout_ms": SESSION_MS,
        "broker_heartbeat_interval_ms": HEARTBEAT_MS,
        "replica_lag_time_max_ms": LAG_MS,
    }
    return BrokerConfig(**fields | changed)


@pytest.fixture
def cluster() -> VirtualCluster:
    made = VirtualCluster(*(config(each) for each in BROKERS))
    made.start_all()
    return made


@pytest.fixture
def clients(cluster: VirtualCluster) -> Clients:
    return Clients(cluster)


def state(cluster: VirtualCluster, topic: str = "t") -> PartitionMetadata:
    found = cluster.controller.side.metadata.partition(topic, 0)
    assert found is not None
    return found


def is_fenced(cluster: VirtualCluster, broker_id: int) -> bool:
    return cluster.controller.side.metadata.brokers[broker_id].is_fenced


def end_offset(cluster: VirtualCluster, broker_id: int, topic: str = "t") -> int:
    broker = cluster.broker(broker_id).broker
    assert broker is not None
    return broker.replicas.partition(topic, 0).log.log_end_offset


def await_in_sync(cluster: VirtualCluster, *brokers: int) -> None:
    cluster.run_until(lambda: set(state(cluster).isr) == set(brokers))


def lead(cluster: VirtualCluster, broker_id: int) -> None:
    """Advance the time until the broker leads and serves the partition."""

    def leads() -> bool:
        broker = cluster.broker(broker_id).broker
        return broker is not None and broker.replicas.partition("t", 0).is_leader

    cluster.run_until(leads)


# Startup


def test_metadata_of_every_broker_lists_all_brokers(
    cluster: VirtualCluster, clients: Clients
) -> None:
    for broker_id in BROKERS:
        response = clients.call(broker_id, request("metadata", 12, topics=[]))
        assert response.cluster_id == cluster.controller.cluster_id
        assert {broker.node_id: broker.host for broker in response.brokers} == {
            each: host_of(each) for each in BROKERS
        }


@pytest.mark.parametrize("how", ["by its directory", "by its configuration"])
def test_a_broker_of_another_cluster_is_rejected(how: str) -> None:
    storage = MemoryStorage()
    if how == "by its directory":
        other = VirtualCluster(config(1), config(2), disks={host_of(2): storage}, seed=50)
        other.start_all()
        other.stop_broker(2)
        named = other.controller.cluster_id
    else:
        named = "of-another-cluster"
    configured = None if how == "by its directory" else named
    cluster = VirtualCluster(
        config(1), config(2, cluster_id=configured), disks={host_of(2): storage}, seed=60
    )
    before = storage.list("")
    with pytest.raises(NodeFailedError, match=named):
        cluster.start_all()
    assert storage.list("") == before
    cluster.run_until(lambda: cluster.is_serving(1))


def reporters(caplog: pytest.LogCaptureFixture) -> list[Any]:
    """Return the ids of the brokers that logged a problem with their registration."""
    return [
        record.args[0]
        for record in caplog.records
        if record.name == "broker_ref.node.registration" and isinstance(record.args, tuple)
    ]


def test_a_duplicate_broker_id_waits_until_the_first_session_expires(
    cluster: VirtualCluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.kill(host_of(2))
    before_ms = cluster.now_ms
    with caplog.at_level(logging.WARNING):
        cluster.start_broker(2)
        cluster.run_until(lambda: cluster.is_serving(2))
    waited_ms = cluster.now_ms - before_ms
    assert SESSION_MS - HEARTBEAT_MS <= waited_ms <= SESSION_MS + HEARTBEAT_MS
    assert reporters(caplog) == [2]


def test_a_broker_rejoins_immediately_after_a_clean_shutdown(cluster: VirtualCluster) -> None:
    cluster.stop_broker(2)
    before_ms = cluster.now_ms
    cluster.start_broker(2)
    cluster.run_until(lambda: cluster.is_serving(2))
    assert cluster.now_ms - before_ms < HEARTBEAT_MS


def test_brokers_wait_for_the_controller(caplog: pytest.LogCaptureFixture) -> None:
    cluster = VirtualCluster(*(config(each) for each in BROKERS))
    for broker_id in BROKERS:
        cluster.start_broker(broker_id)
    with caplog.at_level(logging.WARNING):
        cluster.advance(10_000)
    assert {cluster.broker(each).state for each in BROKERS} == {BrokerState.STARTING}
    assert sorted(reporters(caplog)) == [*BROKERS]
    cluster.start_controller()
    cluster.run_until(lambda: all(cluster.is_serving(each) for each in BROKERS))


def test_a_broker_is_not_unfenced_with_another_process_of_the_same_id() -> None:
    cluster = VirtualCluster(config(1))
    with cluster.faults.hold(Match(api_keys=frozenset({63}))):
        cluster.start_controller()
        cluster.start_broker(1)
        broker = cluster.broker(1)
        cluster.run_until(lambda: broker.state is BrokerState.UNFENCING)
        controller, now_ms = cluster.controller.controller, cluster.now_ms
        registered = controller.metadata.brokers[1]
        other = Registration(
            broker_id=1,
            cluster_id=cluster.controller.cluster_id,
            incarnation_id=uuid4(),
            host="other",
            port=9092,
            rack=None,
        )
        epoch = controller.register_broker(other, now_ms)
        assert epoch > registered.broker_epoch
        offset = controller.metadata.end_offset - 1
        heartbeat = Heartbeat(broker_id=1, broker_epoch=epoch, current_metadata_offset=offset)
        assert not controller.heartbeat(heartbeat, now_ms).is_fenced
        cluster.run_until(lambda: not broker.metadata.brokers[1].is_fenced)
        assert broker.state is BrokerState.UNFENCING


def test_a_registration_is_retried_after_a_temporary_error() -> None:
    cluster = VirtualCluster(*(config(each) for each in BROKERS))
    rule = cluster.faults.refuse(
        ErrorCode.kafka_storage_error, Match(api_keys=frozenset({62})), times=1
    )
    cluster.start_all()
    assert rule.hits == 1


# Shutdown


def test_a_silent_broker_is_fenced_and_its_leaderships_move(
    cluster: VirtualCluster, clients: Clients
) -> None:
    clients.create_topic("t", 1, 2, 3)
    before = state(cluster)
    cluster.kill(host_of(1))
    silent_since_ms = cluster.now_ms
    assert state(cluster).leader == 1
    cluster.run_until(lambda: is_fenced(cluster, 1))
    assert SESSION_MS - HEARTBEAT_MS <= cluster.now_ms - silent_since_ms <= SESSION_MS
    assert state(cluster).leader == 2
    assert state(cluster).leader_epoch == before.leader_epoch + 1
    lead(cluster, 2)
    assert clients.write(2, "a") is ErrorCode.none
    response = clients.call(3, request("metadata", 12, topics=[]))
    assert {broker.node_id for broker in response.brokers} == {2, 3}


def test_leaderships_move_before_a_broker_stops(cluster: VirtualCluster, clients: Clients) -> None:
    clients.create_topic("t", 1, 2, 3)
    leaving = cluster.broker(1)
    with cluster.faults.hold(Match(api_keys=frozenset({HEARTBEAT}), sender_id=1)):
        leaving.begin_shutdown()
        cluster.advance(HEARTBEAT_MS)
        assert leaving.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN
        assert (
            clients.write(1, "a") is ErrorCode.none
        )  # The broker serves until its controlled shutdown is granted.
    cluster.run_until(lambda: leaving.state is BrokerState.SHUTTING_DOWN)
    assert state(cluster).leader == 2
    assert set(state(cluster).isr) == {2, 3}
    assert clients.write(1, "b") is ErrorCode.not_leader_or_follower
    assert clients.write(2, "b") is ErrorCode.none


def test_controlled_shutdown_waits_until_the_others_know_the_new_leader(
    cluster: VirtualCluster, clients: Clients
) -> None:
    clients.create_topic("t", 1, 2, 3)
    leaving = cluster.broker(1)
    with cluster.faults.hold(Match(api_keys=frozenset({HEARTBEAT}), sender_id=3)):
        leaving.begin_shutdown()
        cluster.advance(SESSION_MS // 2)
        assert state(cluster).leader == 2
        assert leaving.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN
    cluster.run_until(lambda: leaving.state is BrokerState.SHUTTING_DOWN)


def test_controlled_shutdown_does_not_wait_for_a_sole_replica(
    cluster: VirtualCluster, clients: Clients
) -> None:
    clients.create_topic("t", 1)
    cluster.stop_broker(1)
    assert state(cluster).leader == -1
    assert state(cluster).eligible_leader_replicas == (1,)
    cluster.start_broker(1)
    lead(cluster, 1)


# Requests that only the controller can answer


@pytest.mark.parametrize("through", BROKERS)
def test_any_broker_forwards_to_the_controller(
    clients: Clients, cluster: VirtualCluster, through: int
) -> None:
    clients.create_topic("t", 3, 1, through=through)
    assert (state(cluster).leader, state(cluster).replicas) == (3, (3, 1))
    (again,) = clients.call(through, create_topics("t")).topics
    assert again.error_code is ErrorCode.topic_already_exists
    assert again.error_message == "Topic 't' already exists."


def test_forwarded_requests_wait_for_the_controller(
    cluster: VirtualCluster, clients: Clients
) -> None:
    cluster.kill(CONTROLLER)
    sent = clients.send(2, create_topics("t", replicas=(2, 3)))
    cluster.advance(FORWARDING_TIMEOUT_MS - 1_000)
    assert sent.is_open()
    cluster.start_controller()
    assert clients.outcome(sent).topics[0].error_code is ErrorCode.none
    assert state(cluster).replicas == (2, 3)


def test_forwarding_times_out_without_a_controller(
    cluster: VirtualCluster, clients: Clients
) -> None:
    cluster.kill(CONTROLLER)
    sent = clients.send(2, create_topics("t"))
    before_ms = cluster.now_ms
    (refused,) = clients.outcome(sent).topics
    assert refused.error_code is ErrorCode.request_timed_out
    assert cluster.now_ms - before_ms <= FORWARDING_TIMEOUT_MS


def test_requests_that_wait_for_the_controller_are_limited_in_size(
    cluster: VirtualCluster, clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarding, "FORWARDED_BYTES_MAX", 1)
    cluster.kill(CONTROLLER)
    first = clients.send(2, create_topics("t", replicas=(2, 3)))
    second = clients.send(2, create_topics("u", replicas=(2, 3)))
    assert first.is_open()
    assert second.is_closed
    cluster.start_controller()
    assert clients.outcome(first).topics[0].error_code is ErrorCode.none
    assert clients.call(2, create_topics("u", replicas=(2, 3))).topics[0].error_code is (
        ErrorCode.none
    )


def draw_producer_ids(clients: Clients, broker_id: int, count: int) -> list[int]:
    sent = request(
        "init_producer_id",
        4,
        transactional_id=None,
        transaction_timeout=0,
        producer_id=-1,
        producer_epoch=-1,
    )
    responses = [clients.call(broker_id, sent) for _ in range(count)]
    assert {response.error_code for response in responses} == {ErrorCode.none}
    return [response.producer_id for response in responses]


def test_producer_ids_are_unique_across_brokers(cluster: VirtualCluster, clients: Clients) -> None:
    def draw(broker_id: int, count: int) -> list[int]:
        return draw_producer_ids(clients, broker_id, count)

    ids = (
        draw(1, 5) + draw(2, 1_005) + draw(1, 5)
    )  # Broker 2 uses up a block, and broker 1 continues its first block.
    cluster.kill(host_of(1))
    cluster.kill(CONTROLLER)
    cluster.start_controller()
    cluster.start_broker(1)
    cluster.run_until(lambda: cluster.is_serving(1))
    ids += draw(1, 5) + draw(2, 5)
    assert len(set(ids)) == len(ids)


# Metadata


@pytest.mark.parametrize(
    ("forgets", "piece_bytes", "pieces"),
    [(False, 8 << 20, range(1)), (True, 8 << 20, range(1, 2)), (True, 100, range(5, 100))],
    ids=["by records", "by a snapshot", "by a snapshot in pieces"],
)
def test_a_broker_catches_up_with_the_metadata(
    cluster: VirtualCluster,
    clients: Clients,
    monkeypatch: pytest.MonkeyPatch,
    *,
    forgets: bool,
    piece_bytes: int,
    pieces: range,
) -> None:
    monkeypatch.setattr(metadata_follower, "FETCH_BYTES_MAX", piece_bytes)
    clients.create_topic("before", 1, 2, 3)
    draw_producer_ids(clients, 1, 1)
    cluster.kill(host_of(3))
    clients.create_topic("meanwhile", 1, 2)
    if forgets:  # A restarted controller has a snapshot, but not the earlier records.
        cluster.kill(CONTROLLER)
        cluster.start_controller()
    with cluster.faults.recording():
        cluster.start_broker(3)
        cluster.run_until(lambda: cluster.is_serving(3))
    snapshots = cluster.faults.requests_seen(Match(api_keys=frozenset({FETCH_SNAPSHOT})))
    assert len(snapshots) in pieces
    assert cluster.broker(3).metadata.topics.keys() == {"before", "meanwhile"}
    assert cluster.broker(3).metadata.records() == cluster.controller.side.metadata.records()
    clients.create_topic("after", 3)
    assert clients.write(3, "a", topic="after") is ErrorCode.none


def test_running_brokers_follow_a_restarted_controller(
    cluster: VirtualCluster, clients: Clients
) -> None:
    clients.create_topic("t", 1, 2, 3)
    known = state(cluster)
    cluster.kill(CONTROLLER)
    assert clients.write(1, "a") is ErrorCode.none
    (found,) = fetched(clients.call(1, fetch((0, 0))))
    assert found.high_watermark == 1
    cluster.start_controller()
    assert state(cluster) == known
    cluster.advance(2 * SESSION_MS)
    assert state(cluster) == known
    assert not any(is_fenced(cluster, each) for each in BROKERS)
    clients.create_topic("u", 2, 3)
    assert clients.write(2, "a", topic="u") is ErrorCode.none


def test_a_controller_that_was_down_for_long_fences_no_live_broker(
    cluster: VirtualCluster, clients: Clients
) -> None:
    clients.create_topic("t", 1, 2, 3)
    known = state(cluster)
    cluster.kill(CONTROLLER)
    cluster.advance(10 * SESSION_MS)
    assert clients.write(1, "a") is ErrorCode.none
    cluster.start_controller()
    cluster.advance(2 * SESSION_MS)
    assert state(cluster) == known


# Faults


def test_a_leader_cut_from_the_controller_acknowledges_nothing_alone(
    cluster: VirtualCluster, clients: Clients
) -> None:
    clients.create_topic("t", 1, 2, 3)
    assert clients.write(1, "a") is ErrorCode.none
    cluster.faults.cut(1, CONTROLLER_ID)
    lead(cluster, 2)
    await_in_sync(cluster, 2, 3)
    response = clients.call(1, produce(batch("lost"), timeout=500))
    assert produced(response).error_code is ErrorCode.request_timed_out
    assert clients.write(2, "b") is ErrorCode.none
    cluster.faults.heal_all()
    await_in_sync(cluster, *BROKERS)
    assert [end_offset(cluster, each) for each in BROKERS] == [2, 2, 2]
    assert clients.write(1, "c") is ErrorCode.not_leader_or_follower


def test_a_follower_that_is_cut_from_the_leader_leaves_the_isr_and_returns(
    cluster: VirtualCluster, clients: Clients
) -> None:
    clients.create_topic("t", 1, 2, 3)
    cluster.faults.cut(3, 1)
    sent = clients.send(1, produce(batch("a"), timeout=30_000))
    assert sent.is_open()  # All in-sync replicas must have the record.
    assert produced(clients.outcome(sent)).error_code is ErrorCode.none
    assert set(state(cluster).isr) == {1, 2}
    assert not is_fenced(cluster, 3)
    cluster.faults.heal(3, 1)
    await_in_sync(cluster, *BROKERS)
    assert end_offset(cluster, 3) == 1


@pytest.mark.parametrize("source", [3, 1])
def test_a_link_that_is_cut_one_way_brings_no_records(
    cluster: VirtualCluster, clients: Clients, source: int
) -> None:
    """Either the follower's fetches or the leader's responses are lost."""
    clients.create_topic("t", 1, 2, 3)
    cluster.faults.cut(source, 4 - source, both_ways=False)
    assert clients.write(1, "a") is ErrorCode.none
    assert set(state(cluster).isr) == {1, 2}
    assert end_offset(cluster, 3) == 0


CLIENTS_PRODUCE = Match(api_keys=frozenset({PRODUCE}), sender=Sender.CLIENT, node_id=1)


def test_delayed_requests(cluster: VirtualCluster, clients: Clients) -> None:
    clients.create_topic("t", 1, 2, 3)
    rule = cluster.faults.delay(500, CLIENTS_PRODUCE, times=1)
    sent = clients.send(1, produce(batch("a")))
    cluster.advance(499)
    assert sent.is_open()
    assert end_offset(cluster, 1) == 0
    cluster.advance(1)
    assert not sent.is_open()
    assert produced(sent.response).error_code is ErrorCode.none
    assert rule.hits == 1
    assert not clients.send(1, produce(batch("b"))).is_open()


def test_held_requests(cluster: VirtualCluster, clients: Clients) -> None:
    clients.create_topic("t", 1, 2, 3)
    with cluster.faults.hold(CLIENTS_PRODUCE):
        held = [clients.send(1, produce(batch(value))) for value in ("a", "b")]
        cluster.advance(60_000)
        assert all(sent.is_open() for sent in held)
        assert end_offset(cluster, 1) == 0
    assert not any(sent.is_open() for sent in held)
    assert [produced(sent.response).base_offset for sent in held] == [0, 1]


def test_refused_requests(cluster: VirtualCluster, clients: Clients) -> None:
    clients.create_topic("t", 1, 2, 3)
    cluster.faults.refuse(ErrorCode.not_enough_replicas, CLIENTS_PRODUCE, times=1)
    assert clients.write(1, "a") is ErrorCode.not_enough_replicas
    assert end_offset(cluster, 1) == 0
    assert clients.write(1, "a") is ErrorCode.none


@pytest.mark.parametrize("is_served", [True, False])
def test_requests_whose_response_is_lost(
    cluster: VirtualCluster, clients: Clients, is_served: bool
) -> None:
    clients.create_topic("t", 1, 2, 3)
    fault = cluster.faults.drop_response if is_served else cluster.faults.drop
    with fault(CLIENTS_PRODUCE):
        sent = clients.send(1, produce(batch("a")))
        assert clients.outcome(sent) is None
        assert sent.is_closed
    assert end_offset(cluster, 1) == is_served


def test_forwarded_requests_match_rules_at_the_controller(
    cluster: VirtualCluster, clients: Clients
) -> None:
    at_the_controller = Match(api_keys=frozenset({19}), node_id=CONTROLLER_ID)
    cluster.faults.refuse(ErrorCode.policy_violation, at_the_controller, times=1)
    (refused,) = clients.call(2, create_topics("t")).topics
    assert refused.error_code is ErrorCode.policy_violation
    clients.create_topic("t", 1)


def test_the_response_in_an_envelope_can_be_lost(cluster: VirtualCluster, clients: Clients) -> None:
    envelope = Match(api_keys=frozenset({ENVELOPE_KEY}))
    with cluster.faults.drop_response(envelope, times=1) as rule:
        (made,) = clients.call(2, create_topics("t")).topics
    assert rule.hits == 1
    # The first request created the topic, but its response was lost and the request was retried.
    assert made.error_code is ErrorCode.topic_already_exists


def trigger_node_steps(cluster: VirtualCluster) -> None:
    with cluster.faults.hold(CLIENTS_PRODUCE):
        pass


def test_sessions_do_not_expire_while_the_controllers_clock_is_stopped(
    cluster: VirtualCluster,
) -> None:
    cluster.faults.hold_time(CONTROLLER_ID)
    cluster.kill(host_of(1))
    cluster.advance(10 * SESSION_MS)
    trigger_node_steps(cluster)
    assert not is_fenced(cluster, 1)
    cluster.faults.release_time(CONTROLLER_ID)
    cluster.run_until(lambda: is_fenced(cluster, 1))


def test_a_fetch_does_not_time_out_while_the_brokers_clock_is_stopped(
    cluster: VirtualCluster, clients: Clients
) -> None:
    clients.create_topic("t", 1)
    cluster.faults.hold_time(1)
    sent = clients.send(1, fetch((0, 0), max_wait=500))
    cluster.advance(2_000)
    trigger_node_steps(cluster)
    assert sent.is_open()
    cluster.faults.release_time(1)
    assert fetched(clients.outcome(sent))[0].error_code is ErrorCode.none


def test_a_resumed_broker_handles_requests_from_the_pause(
    cluster: VirtualCluster, clients: Clients
) -> None:
    clients.create_topic("t", 1, 2, 3)
    cluster.faults.pause(1)
    sent = clients.send(1, produce(batch("late"), timeout=1_000))
    lead(cluster, 2)
    assert clients.write(2, "a") is ErrorCode.none
    cluster.faults.resume(1)
    # The isolated broker still considers itself the leader, but no replica fetches from it.
    response = clients.outcome(sent)
    assert produced(response).error_code is not ErrorCode.none
    await_in_sync(cluster, *BROKERS)
    assert [end_offset(cluster, each) for each in BROKERS] == [1, 1, 1]


# Storage failures


def test_a_broker_stops_if_its_storage_fails(cluster: VirtualCluster, clients: Clients) -> None:
    clients.create_topic("t", 1, 2, 3)
    clients.create_topic("u", 1, 2, 3)
    cluster.disk(host_of(1)).fail_on("append")
    assert clients.write(1, "a") is ErrorCode.kafka_storage_error
    assert "t-0" in cluster.failures[host_of(1)]
    assert cluster.running == [2, 3]
    lead(cluster, 2)
    for topic in ("t", "u"):
        assert clients.write(2, "a", topic=topic) is ErrorCode.none
    cluster.disk(host_of(1)).fail_on(None)
    cluster.start_broker(1)
    await_in_sync(cluster, *BROKERS)


def test_logs_are_retained_if_the_controller_starts_with_an_older_journal(
    cluster: VirtualCluster, clients: Clients
) -> None:
    journal, disk = cluster.disk(CONTROLLER), cluster.disk(host_of(1))
    clients.create_topic("moved", 2)
    before = journal.read(JOURNAL_FILE)
    cluster.controller.controller.alter_reassignments({("moved", 0): (1,)})
    cluster.run_until(lambda: state(cluster, "moved").replicas == (1,))
    clients.create_topic("new", 1)
    topics = cluster.broker(1).metadata.topics
    log_file = "00000000000000000000.log"
    records = {}
    for topic in ("moved", "new"):
        assert clients.write(1, "a", topic=topic, acks=1) is ErrorCode.none
        stray = f"{uuid_text(topics[topic].topic_id)}-0.0-stray/{log_file}"
        records[stray] = disk.read(f"{topic}-0/{log_file}")
    cluster.kill(CONTROLLER)
    journal.write_atomically(JOURNAL_FILE, before)
    cluster.start_controller()
    cluster.run_until(lambda: "new" not in topics and not disk.exists("moved-0"))
    assert {stray: disk.read(stray) for stray in records} == records


def test_a_follower_stops_if_its_storage_fails(cluster: VirtualCluster, clients: Clients) -> None:
    clients.create_topic("t", 1, 2, 3)
    cluster.disk(host_of(3)).fail_below("t-0/", "append")
    assert clients.write(1, "a") is ErrorCode.none
    assert cluster.running == [1, 2]
    assert set(state(cluster).isr) == {1, 2}


def test_the_controller_stops_if_it_cannot_persist_its_own_decision(
    cluster: VirtualCluster, clients: Clients
) -> None:
    clients.create_topic("t", 1, 2, 3)
    journal = cluster.disk(CONTROLLER)
    journal.fail_on("append")
    cluster.kill(host_of(3))
    cluster.run_until(lambda: CONTROLLER in cluster.failures)
    assert "No space left on device" in cluster.failures[CONTROLLER]
    assert clients.write(1, "a", acks=1) is ErrorCode.none
    journal.fail_on(None)
    cluster.start_controller()
    await_in_sync(cluster, 1, 2)
    assert clients.write(1, "b") is ErrorCode.none


def test_the_controller_stops_if_it_cannot_persist_a_clients_change(
    cluster: VirtualCluster, clients: Clients
) -> None:
    journal = cluster.disk(CONTROLLER)
    journal.fail_on("append")
    sent = clients.send(1, create_topics("t"))
    cluster.run_until(lambda: CONTROLLER in cluster.failures)
    journal.fail_on(None)
    cluster.start_controller()
    clients.outcome(sent)
    clients.create_topic("u", 1)


def test_a_broker_keeps_following_after_an_exception_on_metadata(
    cluster: VirtualCluster, clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = cluster.broker(1).broker
    assert broker is not None

    def fail(delta: object, now_ms: int) -> None:
        raise RuntimeError(f"a bug met at {now_ms}")

    with monkeypatch.context() as patched:
        patched.setattr(broker.replicas, "apply_delta", fail)
        with pytest.raises(RuntimeError, match="a bug"):
            clients.create_topic("t", 1, 2, through=2)
    cluster.advance(1_000)
    clients.create_topic("u", 1, 2, through=2)
    assert clients.write(1, "a", topic="t") is ErrorCode.none


def test_commits_before_an_unreadable_record_take_effect(
    cluster: VirtualCluster, clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_unreadable_end(data: bytes) -> Iterator[Commit]:
        yield from decode_commits(data)
        if data:
            raise UnreadableRecordError

    monkeypatch.setattr(metadata_follower, "decode_commits", with_unreadable_end)
    clients.create_topic("t", 1)
    assert clients.write(1, "a", topic="t") is ErrorCode.none
