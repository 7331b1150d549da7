"""Three brokers and a controller: startup, shutdown and faults."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from broker_ref.config import BrokerConfig
from broker_ref.controller.client import CONTROLLER_ID
from broker_ref.controller.metadata import PartitionMetadata
from broker_ref.faults import Match, Sender
from broker_ref.node import metadata_follower
from broker_ref.node.forwarding import ENVELOPE_KEY, FORWARDING_TIMEOUT_MS
from broker_ref.node.registration import BrokerState
from integration.raw import request
from tests.broker_ref.memory_storage import MemoryStorage
from tests.broker_ref.node.clients import Clients, create_topics
from tests.broker_ref.node.requests import batch, fetch, fetched, produce, produced
from tests.broker_ref.virtual import CONTROLLER, NodeFailedError, VirtualCluster, address_of

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
    made.start()
    return made


@pytest.fixture
def clients(cluster: VirtualCluster) -> Clients:
    return Clients(cluster)


def state(cluster: VirtualCluster, topic: str = "t") -> PartitionMetadata:
    """Return partition 0 of a topic in the controller's metadata."""
    found = cluster.controller.side.metadata.partition(topic, 0)
    assert found is not None
    return found


def is_fenced(cluster: VirtualCluster, broker_id: int) -> bool:
    return cluster.controller.side.metadata.brokers[broker_id].is_fenced


def is_running(cluster: VirtualCluster, broker_id: int) -> bool:
    return cluster.broker(broker_id).state is BrokerState.RUNNING


def end_offset(cluster: VirtualCluster, broker_id: int, topic: str = "t") -> int:
    broker = cluster.broker(broker_id).broker
    assert broker is not None
    return broker.replicas.partition(topic, 0).log.log_end_offset


def until_in_sync(cluster: VirtualCluster, *brokers: int) -> None:
    cluster.run_until(lambda: set(state(cluster).isr) == set(brokers))


def lead(cluster: VirtualCluster, broker_id: int) -> None:
    """Run until a broker leads and knows it."""

    def leads() -> bool:
        broker = cluster.broker(broker_id).broker
        return broker is not None and broker.replicas.partition("t", 0).is_leader

    cluster.run_until(leads)


# Startup


def test_metadata_of_every_broker_lists_all_brokers(
    cluster: VirtualCluster, clients: Clients
) -> None:
    for broker_id in BROKERS:
        answer = clients.call(broker_id, request("metadata", 12, topics=[]))
        assert answer.cluster_id == cluster.controller.cluster_id
        assert {broker.node_id: broker.host for broker in answer.brokers} == {
            each: address_of(each)[0] for each in BROKERS
        }


@pytest.mark.parametrize("how", ["by its directory", "by its configuration"])
def test_a_broker_of_another_cluster_is_rejected(how: str) -> None:
    storage = MemoryStorage()
    if how == "by its directory":
        other = VirtualCluster(config(1), config(2), storages={2: storage}, seed=50)
        other.start()
        other.stop_broker(2)
        named = other.controller.cluster_id
    else:
        named = "of-another-cluster"
    configured = None if how == "by its directory" else named
    cluster = VirtualCluster(
        config(1), config(2, cluster_id=configured), storages={2: storage}, seed=60
    )
    before = storage.list("")
    with pytest.raises(NodeFailedError, match=named):
        cluster.start()
    assert storage.list("") == before
    cluster.run_until(lambda: is_running(cluster, 1))


def test_a_duplicate_broker_id_waits_until_the_first_session_expires(
    cluster: VirtualCluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.crash(address_of(2))
    before_ms = cluster.now_ms
    with caplog.at_level(logging.WARNING):
        cluster.start_broker(2)
        cluster.run_until(lambda: is_running(cluster, 2))
    waited_ms = cluster.now_ms - before_ms
    assert SESSION_MS - HEARTBEAT_MS <= waited_ms <= SESSION_MS + HEARTBEAT_MS
    assert caplog.text.count("another broker with this id is running") == 1


def test_a_broker_rejoins_immediately_after_a_clean_shutdown(cluster: VirtualCluster) -> None:
    cluster.stop_broker(2)
    before_ms = cluster.now_ms
    cluster.start_broker(2)
    cluster.run_until(lambda: is_running(cluster, 2))
    assert cluster.now_ms - before_ms < HEARTBEAT_MS


def test_brokers_wait_for_the_controller(caplog: pytest.LogCaptureFixture) -> None:
    cluster = VirtualCluster(*(config(each) for each in BROKERS))
    for broker_id in BROKERS:
        cluster.start_broker(broker_id)
    with caplog.at_level(logging.WARNING):
        cluster.advance(10_000)
    assert {cluster.broker(each).state for each in BROKERS} == {BrokerState.STARTING}
    assert caplog.text.count("Broker 1: the controller at") <= 1
    cluster.start_controller()
    cluster.run_until(lambda: all(is_running(cluster, each) for each in BROKERS))


# Shutdown


def test_a_silent_broker_is_fenced_and_its_leaderships_move(
    cluster: VirtualCluster, clients: Clients
) -> None:
    clients.create_topic("t", 1, 2, 3)
    before = state(cluster)
    cluster.crash(address_of(1))
    silent_since_ms = cluster.now_ms
    assert state(cluster).leader == 1
    cluster.run_until(lambda: is_fenced(cluster, 1))
    assert SESSION_MS - HEARTBEAT_MS <= cluster.now_ms - silent_since_ms <= SESSION_MS
    assert state(cluster).leader == 2
    assert state(cluster).leader_epoch == before.leader_epoch + 1
    lead(cluster, 2)
    assert clients.write(2, "a") is ErrorCode.none
    answer = clients.call(3, request("metadata", 12, topics=[]))
    assert {broker.node_id for broker in answer.brokers} == {2, 3}


def test_leaderships_move_before_a_broker_stops(cluster: VirtualCluster, clients: Clients) -> None:
    clients.create_topic("t", 1, 2, 3)
    leaving = cluster.broker(1)
    with cluster.faults.hold(Match(api_keys=frozenset({HEARTBEAT}), sender_id=1)):
        leaving.begin_shutdown()
        cluster.advance(HEARTBEAT_MS)
        assert leaving.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN
        assert (
            clients.write(1, "a") is ErrorCode.none
        )  # It serves until its controlled shutdown is granted.
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
    assert state(cluster).isr == (1,)
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
    cluster.crash(CONTROLLER)
    asked = clients.ask(2, create_topics("t", replicas=(2, 3)))
    cluster.advance(FORWARDING_TIMEOUT_MS - 1_000)
    assert clients.is_open(asked)
    cluster.start_controller()
    assert clients.outcome(asked).topics[0].error_code is ErrorCode.none
    assert state(cluster).replicas == (2, 3)


def test_forwarding_times_out_without_a_controller(
    cluster: VirtualCluster, clients: Clients
) -> None:
    cluster.crash(CONTROLLER)
    asked = clients.ask(2, create_topics("t"))
    before_ms = cluster.now_ms
    (refused,) = clients.outcome(asked).topics
    assert refused.error_code is ErrorCode.request_timed_out
    assert cluster.now_ms - before_ms <= FORWARDING_TIMEOUT_MS


def draw_producer_ids(clients: Clients, broker_id: int, count: int) -> list[int]:
    asked = request(
        "init_producer_id",
        4,
        transactional_id=None,
        transaction_timeout=0,
        producer_id=-1,
        producer_epoch=-1,
    )
    answers = [clients.call(broker_id, asked) for _ in range(count)]
    assert {answer.error_code for answer in answers} == {ErrorCode.none}
    return [answer.producer_id for answer in answers]


def test_producer_ids_are_unique_across_brokers(cluster: VirtualCluster, clients: Clients) -> None:
    def draw(broker_id: int, count: int) -> list[int]:
        return draw_producer_ids(clients, broker_id, count)

    ids = (
        draw(1, 5) + draw(2, 1_005) + draw(1, 5)
    )  # The ids exceed a block, and return to the first one.
    cluster.crash(address_of(1))
    cluster.crash(CONTROLLER)
    cluster.start_controller()
    cluster.start_broker(1)
    cluster.run_until(lambda: is_running(cluster, 1))
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
    cluster.crash(address_of(3))
    clients.create_topic("meanwhile", 1, 2)
    if forgets:  # A controller that has just started has a snapshot but no history.
        cluster.crash(CONTROLLER)
        cluster.start_controller()
    with cluster.faults.recording():
        cluster.start_broker(3)
        cluster.run_until(lambda: is_running(cluster, 3))
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
    cluster.crash(CONTROLLER)
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
    cluster.crash(CONTROLLER)
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
    until_in_sync(cluster, 2, 3)
    answer = clients.call(1, produce(batch("lost"), timeout=500))
    assert produced(answer).error_code is ErrorCode.request_timed_out
    assert clients.write(2, "b") is ErrorCode.none
    cluster.faults.heal_all()
    until_in_sync(cluster, *BROKERS)
    assert [end_offset(cluster, each) for each in BROKERS] == [2, 2, 2]
    assert clients.write(1, "c") is ErrorCode.not_leader_or_follower


def test_a_follower_that_is_cut_from_the_leader_leaves_the_isr_and_returns(
    cluster: VirtualCluster, clients: Clients
) -> None:
    clients.create_topic("t", 1, 2, 3)
    cluster.faults.cut(3, 1)
    asked = clients.ask(1, produce(batch("a"), timeout=30_000))
    assert clients.is_open(asked)  # All in-sync replicas must have the record.
    assert produced(clients.outcome(asked)).error_code is ErrorCode.none
    assert set(state(cluster).isr) == {1, 2}
    assert not is_fenced(cluster, 3)
    cluster.faults.heal(3, 1)
    until_in_sync(cluster, *BROKERS)
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
    asked = clients.ask(1, produce(batch("a")))
    cluster.advance(499)
    assert clients.is_open(asked)
    assert end_offset(cluster, 1) == 0
    cluster.advance(1)
    assert not clients.is_open(asked)
    assert produced(asked.answer).error_code is ErrorCode.none
    assert rule.hits == 1
    assert not clients.is_open(clients.ask(1, produce(batch("b"))))


def test_held_requests(cluster: VirtualCluster, clients: Clients) -> None:
    clients.create_topic("t", 1, 2, 3)
    with cluster.faults.hold(CLIENTS_PRODUCE):
        held = [clients.ask(1, produce(batch(value))) for value in ("a", "b")]
        cluster.advance(60_000)
        assert all(clients.is_open(asked) for asked in held)
        assert end_offset(cluster, 1) == 0
    assert not any(clients.is_open(asked) for asked in held)
    assert [produced(asked.answer).base_offset for asked in held] == [0, 1]


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
    fault = cluster.faults.lose_answer if is_served else cluster.faults.drop
    with fault(CLIENTS_PRODUCE):
        asked = clients.ask(1, produce(batch("a")))
        assert clients.outcome(asked) is None
        assert asked.is_closed
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
    with cluster.faults.lose_answer(envelope, times=1) as rule:
        (made,) = clients.call(2, create_topics("t")).topics
    assert rule.hits == 1
    # The topic was created by the first request, which was retried without a response.
    assert made.error_code is ErrorCode.topic_already_exists


def nudge(cluster: VirtualCluster) -> None:
    """Let every node handle what is due."""
    with cluster.faults.hold(CLIENTS_PRODUCE):
        pass


def test_sessions_do_not_expire_while_the_controllers_clock_is_stopped(
    cluster: VirtualCluster,
) -> None:
    cluster.faults.hold_time(CONTROLLER_ID)
    cluster.crash(address_of(1))
    cluster.advance(10 * SESSION_MS)
    nudge(cluster)
    assert not is_fenced(cluster, 1)
    cluster.faults.release_time(CONTROLLER_ID)
    cluster.run_until(lambda: is_fenced(cluster, 1))


def test_a_fetch_does_not_time_out_while_the_brokers_clock_is_stopped(
    cluster: VirtualCluster, clients: Clients
) -> None:
    clients.create_topic("t", 1)
    cluster.faults.hold_time(1)
    asked = clients.ask(1, fetch((0, 0), max_wait=500))
    cluster.advance(2_000)
    nudge(cluster)
    assert clients.is_open(asked)
    cluster.faults.release_time(1)
    assert fetched(clients.outcome(asked))[0].error_code is ErrorCode.none


def test_a_resumed_broker_handles_requests_from_the_pause(
    cluster: VirtualCluster, clients: Clients
) -> None:
    clients.create_topic("t", 1, 2, 3)
    cluster.faults.pause(1)
    asked = clients.ask(1, produce(batch("late"), timeout=1_000))
    lead(cluster, 2)
    assert clients.write(2, "a") is ErrorCode.none
    cluster.faults.resume(1)
    # The isolated broker still believes to be the leader, but nobody replicates from it.
    answer = clients.outcome(asked)
    assert produced(answer).error_code is not ErrorCode.none
    until_in_sync(cluster, *BROKERS)
    assert [end_offset(cluster, each) for each in BROKERS] == [1, 1, 1]


# Storage failures


def disk(cluster: VirtualCluster, broker_id: int) -> MemoryStorage:
    storage = cluster.storages[broker_id]
    assert isinstance(storage, MemoryStorage)
    return storage


def test_a_broker_stops_if_its_storage_fails(cluster: VirtualCluster, clients: Clients) -> None:
    clients.create_topic("t", 1, 2, 3)
    clients.create_topic("u", 1, 2, 3)
    disk(cluster, 1).fail_on("append")
    assert clients.write(1, "a") is ErrorCode.kafka_storage_error
    assert "t-0 rejects writes" in cluster.failures[address_of(1)]
    assert cluster.running == [2, 3]
    lead(cluster, 2)
    for topic in ("t", "u"):
        assert clients.write(2, "a", topic=topic) is ErrorCode.none
    disk(cluster, 1).fail_on(None)
    cluster.start_broker(1)
    until_in_sync(cluster, *BROKERS)


def test_a_follower_stops_if_its_storage_fails(cluster: VirtualCluster, clients: Clients) -> None:
    """A follower cannot append what it fetches."""
    clients.create_topic("t", 1, 2, 3)
    disk(cluster, 3).fail_below("t-0/", "append")
    assert clients.write(1, "a") is ErrorCode.none
    assert cluster.running == [1, 2]
    assert set(state(cluster).isr) == {1, 2}


def test_the_controller_stops_if_it_cannot_persist_its_own_decision(
    cluster: VirtualCluster, clients: Clients
) -> None:
    clients.create_topic("t", 1, 2, 3)
    journal = cluster.controller_storage
    assert isinstance(journal, MemoryStorage)
    journal.fail_on("append")
    cluster.crash(address_of(3))
    cluster.run_until(lambda: CONTROLLER in cluster.failures)
    assert "No space left on device" in cluster.failures[CONTROLLER]
    assert clients.write(1, "a", acks=1) is ErrorCode.none
    journal.fail_on(None)
    cluster.start_controller()
    until_in_sync(cluster, 1, 2)
    assert clients.write(1, "b") is ErrorCode.none


def test_the_controller_stops_if_it_cannot_persist_a_clients_change(
    cluster: VirtualCluster, clients: Clients
) -> None:
    journal = cluster.controller_storage
    assert isinstance(journal, MemoryStorage)
    journal.fail_on("append")
    asked = clients.ask(1, create_topics("t"))
    cluster.run_until(lambda: CONTROLLER in cluster.failures)
    journal.fail_on(None)
    cluster.start_controller()
    clients.outcome(asked)
    clients.create_topic("u", 1)


def test_a_broker_keeps_following_after_an_exception_on_metadata(
    cluster: VirtualCluster, clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = cluster.broker(1).broker
    assert broker is not None

    def fail(now_ms: int) -> None:
        raise RuntimeError(f"a bug met at {now_ms}")

    with monkeypatch.context() as patched:
        patched.setattr(broker.replicas, "apply_metadata", fail)
        with pytest.raises(RuntimeError, match="a bug"):
            clients.create_topic("t", 1, 2, through=2)
    cluster.advance(1_000)
    clients.collect()
    clients.create_topic("u", 1, 2, through=2)
    assert clients.write(1, "a", topic="t") is ErrorCode.none
