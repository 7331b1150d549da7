"""Tests of coordinators and leaders that are killed or lag between the steps of a transaction."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from broker_ref.controller.client import CONTROLLER_ID
from broker_ref.controller.metadata import TRANSACTION_STATE_TOPIC
from broker_ref.faults import Match
from broker_ref.log.control import Marker
from broker_ref.protocol.errors import ApiError
from broker_ref.replication.partition import Partition
from broker_ref.transaction import marker_channel_manager
from tests.broker_ref.transaction.producers import (
    DATA,
    NAME,
    WRITE_TXN_MARKERS,
    Producer,
    Producers,
)

NONE = ErrorCode.none
COMMIT, ABORT = Marker.COMMIT, Marker.ABORT
MARKERS = Match(api_keys=frozenset({WRITE_TXN_MARKERS}))


def begun(made: Producers, **fields: Any) -> Producer:
    producer = made.started(**fields)
    assert made.add(producer, ("t", 0), ("u", 0)) is NONE
    assert made.produce(producer, topic="t") is NONE
    assert made.produce(producer, topic="u") is NONE
    return producer


def kill_the_coordinator(made: Producers) -> None:
    gone = made.find()
    made.kill(gone)
    assert made.find() != gone


def ends(made: Producers) -> dict[str, set[Marker]]:
    return {topic: {marker for marker, _, _ in made.markers(topic)} for topic in ("t", "u")}


def both(marker: Marker) -> dict[str, set[Marker]]:
    return {"t": {marker}, "u": {marker}}


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("version", [4, 5])
def test_coordinator_is_killed_between_prepare_and_markers(version: int, commit: bool) -> None:
    made = Producers(3)
    producer = begun(made)
    with made.cluster.faults.hold(MARKERS):
        assert made.end(producer, commit=commit, version=version).error_code is NONE
        gone = made.find()
        made.kill(gone)
    made.find()
    made.wait_for("CompleteCommit" if commit else "CompleteAbort")
    assert ends(made) == both(COMMIT if commit else ABORT)
    # The producer continues with the next coordinator.
    epoch = producer[1] + (1 if version == 5 else 0)
    assert made.add((producer[0], epoch)) is NONE


@pytest.mark.parametrize("version", [4, 5])
def test_coordinator_is_killed_between_markers_and_complete(version: int) -> None:
    made = Producers(3)
    producer = begun(made)
    with made.cluster.faults.drop_response(MARKERS) as losing:
        assert made.end(producer, version=version).error_code is NONE
        made.cluster.run_until(lambda: losing.hits >= 3)
        assert made.state == "PrepareCommit"
        made.kill(made.find())
    made.find()
    made.wait_for("CompleteCommit")
    assert ends(made) == both(COMMIT)
    assert len(made.markers()) >= 2  # The next coordinator sends the markers again.


def test_coordinator_is_killed_before_prepare_is_replicated() -> None:
    made = Producers(3)
    producer = begun(made, transaction_timeout=30_000)
    coordinator = made.find()
    others = {1, 2, 3} - {coordinator}
    for other in others:
        made.cluster.faults.cut(coordinator, other)
    sent = made.send_end(producer, commit=True, version=5)
    made.cluster.advance(100)
    assert sent.is_open()
    made.kill(coordinator)
    made.cluster.faults.heal_all()
    made.find()
    assert made.state == "Ongoing"  # The client got no response.
    made.wait_for("CompleteAbort")
    survivors = [topic for topic in ("t", "u") if made.markers(topic)]
    assert survivors
    assert all(ends(made)[topic] == {ABORT} for topic in survivors)


@pytest.mark.parametrize("step", ["init", "add"])
def test_coordinator_is_killed_before_a_write_is_replicated(step: str) -> None:
    made = Producers(3)
    producer = made.started()
    coordinator = made.find()
    for other in {1, 2, 3} - {coordinator}:
        made.cluster.faults.cut(coordinator, other)
    if step == "init":
        sent = made.send(
            "init_producer_id",
            5,
            transactional_id="tx",
            transaction_timeout=60_000,
            producer_id=-1,
            producer_epoch=-1,
        )
    else:
        sent = made.send_add_partitions(producer)
    made.cluster.advance(100)
    assert sent.is_open()
    made.kill(coordinator)
    made.cluster.faults.heal_all()
    made.find()
    assert made.state == "Empty"
    assert made.add(producer) is NONE  # The producer is not fenced.


def test_partition_leader_is_killed_before_the_marker() -> None:
    made = Producers(3)
    producer = begun(made)
    leader = made.partition("u").metadata.leader
    with made.cluster.faults.hold(Match(api_keys=MARKERS.api_keys, node_id=leader)):
        assert made.end(producer).error_code is NONE
        made.cluster.advance(100)
        assert made.state == "PrepareCommit"
        made.kill(leader)
    made.find()
    made.wait_for("CompleteCommit")
    assert made.partition("u").metadata.leader != leader
    assert ends(made) == both(COMMIT)


def test_partition_without_leader_gets_its_marker_later(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Producers(3)
    producer = made.started()
    made.clients.create_topic("alone", 3, through=made.find())
    assert made.add(producer, ("alone", 0)) is NONE
    coordinator = made.find()
    if coordinator == 3:
        made.cluster.stop_broker(3)
        made.cluster.start_broker(3)
        coordinator = made.find()
    made.kill(3)
    made.cluster.run_until(
        lambda: made.cluster.broker(coordinator).metadata.topics["alone"].partitions[0].leader == -1
    )
    assert made.end(producer).error_code is NONE
    with monkeypatch.context() as patched:
        # Only a metadata update can help.
        patched.setattr(marker_channel_manager, "in_order", lambda _: pytest.fail("was retried"))
        made.cluster.advance(5_000)
    assert made.state == "PrepareCommit"
    made.cluster.start_broker(3)
    made.wait_for("CompleteCommit")
    assert [marker for marker, _, _ in made.markers("alone")] == [COMMIT]


def test_old_coordinator_cannot_end_a_transaction_again() -> None:
    made = Producers(3)
    producer = begun(made)
    old = made.find()
    with made.cluster.faults.hold(
        Match(api_keys=MARKERS.api_keys, client_id=f"broker-{old}-transaction-markers")
    ):
        assert made.end(producer).error_code is NONE
        made.cluster.advance(50)
        assert made.state == "PrepareCommit"
        others = [each for each in made.cluster.running if each != old]
        made.cluster.faults.isolate(old, [CONTROLLER_ID, *others])
        made.cluster.run_until(lambda: any(made.coordinator(each).is_ready() for each in others))
        made.cluster.faults.heal_all()
    made.find()
    made.wait_for("CompleteCommit")
    assert ends(made) == both(COMMIT)
    made.cluster.run_until(lambda: not made.coordinator(old).is_ready())


@pytest.mark.parametrize(
    "error_code", [ErrorCode.transaction_coordinator_fenced, ErrorCode.invalid_producer_epoch]
)
def test_fenced_coordinator_stops_sending_markers(error_code: ErrorCode) -> None:
    made = Producers()
    producer = begun(made)
    with made.cluster.faults.refuse(error_code, MARKERS, times=1):
        assert made.end(producer).error_code is NONE
        made.cluster.advance(30_000)
    assert made.state == "PrepareCommit"
    made.restart_all()  # The next coordinator has another coordinator epoch.
    made.wait_for("CompleteCommit")


class Lag:
    """An upper limit of the high watermark of the state topic."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, high_watermark: int) -> None:
        plain: Any = Partition.high_watermark

        def lagging(partition: Partition) -> int:
            if partition.key.topic == TRANSACTION_STATE_TOPIC:
                return high_watermark
            offset: int = plain.fget(partition)
            return offset

        monkeypatch.setattr(Partition, "high_watermark", property(lagging))


def test_responses_wait_for_replication(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Producers()
    producer = made.started(transaction_timeout=20_000)
    with monkeypatch.context() as patched:
        Lag(patched, made.partition(TRANSACTION_STATE_TOPIC).high_watermark)
        sent = made.send_add_partitions(producer)
        made.cluster.advance(19_000)
        assert sent.is_open()
        assert made.state == "Empty"
        assert made.start().error_code is ErrorCode.concurrent_transactions
        made.cluster.advance(1_000)
        assert not sent.is_open()
        ((result,),) = (
            topic.results_by_partition for topic in sent.response.results_by_topic_v3_and_below
        )
        assert result.partition_error_code is ErrorCode.coordinator_not_available
        # The change is in the log, so other changes are rejected until it is replicated.
        assert made.add(producer) is ErrorCode.concurrent_transactions
    made.check_replication()
    assert made.state == "Ongoing"


def test_prepare_that_replicates_after_the_timeout_is_completed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = Producers()
    producer = made.started(transaction_timeout=20_000)
    assert made.add(producer) is NONE
    with monkeypatch.context() as patched:
        Lag(patched, made.partition(TRANSACTION_STATE_TOPIC).high_watermark)
        ended = made.end(producer, version=5)
        assert ended.error_code is ErrorCode.coordinator_not_available
        assert made.markers() == []
    made.check_replication()
    made.wait_for("CompleteCommit")
    assert [marker for marker, _, _ in made.markers()] == [COMMIT]
    assert made.end(producer, version=5).error_code is NONE


def next_leader_epoch(made: Producers) -> None:
    """Elect the same broker in a new leader epoch."""
    partition = made.partition(TRANSACTION_STATE_TOPIC)
    partition.metadata = dataclasses.replace(
        partition.metadata, leader_epoch=partition.leader_epoch + 1
    )
    broker = made.cluster.broker(made.cluster.running[0]).broker
    assert broker is not None
    broker.transactions.partitions_changed([partition.key], made.cluster.now_ms)


def test_waiting_requests_fail_when_the_coordinator_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = Producers()
    producer = made.started()
    with monkeypatch.context() as patched:
        Lag(patched, made.partition(TRANSACTION_STATE_TOPIC).high_watermark)
        sent = made.send_add_partitions(producer)
        assert sent.is_open()
        next_leader_epoch(made)
        response = made.clients.outcome(sent)
    ((result,),) = (topic.results_by_partition for topic in response.results_by_topic_v3_and_below)
    assert result.partition_error_code is ErrorCode.not_coordinator
    made.check_replication()
    assert made.state == "Ongoing"  # The state in the log.
    assert made.end(producer).error_code is NONE
    made.wait_for("CompleteCommit")
    assert made.markers() == [(COMMIT, producer[1], 1)]


def test_expiration_during_the_search_for_timed_out_transactions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = Producers(transactional_id_expiration_ms=1_000)
    made.started(transactional_id="idle")
    made.cluster.advance(2_000)
    assert made.add(made.started(transaction_timeout=1)) is NONE
    broker = made.cluster.broker(1).broker
    assert broker is not None
    with monkeypatch.context() as patched:
        Lag(patched, made.partition(TRANSACTION_STATE_TOPIC).high_watermark)
        broker.transactions.remove_expired_transactional_ids(made.cluster.now_ms)
    # The tombstone is replicated, which the coordinator detects when it writes the abort.
    broker.transactions.abort_timed_out_transactions(made.cluster.now_ms + 2)
    made.wait_for("CompleteAbort")
    names = {state.transactional_id for state in made.listed().transaction_states}
    assert names == {NAME}


def test_failed_write_of_the_completed_state_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Producers()
    producer = begun(made)
    plain = Partition.append
    failures = itertools.count()

    def failing(partition: Partition, *args: Any, **kwargs: Any) -> Any:
        if partition.key.topic == TRANSACTION_STATE_TOPIC and next(failures) < 3:
            raise ApiError(ErrorCode.not_enough_replicas, "not now")
        return plain(partition, *args, **kwargs)

    with made.cluster.faults.hold(MARKERS):
        assert made.end(producer).error_code is NONE
        monkeypatch.setattr(Partition, "append", failing)
    made.wait_for("CompleteCommit")
    assert next(failures) > 3
    refused = ErrorCode.coordinator_not_available
    failures = itertools.count()
    assert made.add(producer) is refused
    assert made.state == "CompleteCommit"


def test_queued_markers_are_sent_with_the_next_request() -> None:
    made = Producers()
    others = [f"other-{index}" for index in range(3)]
    identities = {}
    for name in others:
        response = made.start(transactional_id=name)
        identities[name] = (response.producer_id, response.producer_epoch)
        made.call(
            "add_partitions_to_txn",
            3,
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=response.producer_id,
            v3_and_below_producer_epoch=response.producer_epoch,
            v3_and_below_topics=[{"name": "t", "partitions": [0]}],
        )
    with made.cluster.faults.hold(MARKERS) as held:
        for name, (producer_id, epoch) in identities.items():
            ended = made.call(
                "end_txn",
                4,
                transactional_id=name,
                producer_id=producer_id,
                producer_epoch=epoch,
                committed=True,
            )
            assert ended.error_code is NONE
        made.cluster.advance(1_000)
        assert held.hits == 1
    made.cluster.run_until(
        lambda: all(
            state.transaction_state == "CompleteCommit"
            for state in made.listed().transaction_states
        )
    )
    assert len(made.markers()) == 3


def is_led(made: Producers) -> bool:
    try:
        made.partition(TRANSACTION_STATE_TOPIC)
    except AssertionError:
        return False
    return True


def test_a_new_coordinator_does_not_use_records_that_are_not_replicated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If it replied that a partition is part of the transaction, and another leader removed this
    record, then the partition would get no marker."""
    made = Producers(3)
    producer = begun(made)
    with made.cluster.faults.hold(MARKERS):
        assert made.end(producer).error_code is NONE
        made.kill(made.find())
        with monkeypatch.context() as patched:
            Lag(patched, 0)
            made.cluster.run_until(lambda: is_led(made))
            made.cluster.faults.clear()
            made.cluster.advance(2_000)
            leader = made.partition(TRANSACTION_STATE_TOPIC).metadata.leader
            assert not made.coordinator(leader).is_ready()
            assert ends(made) == {"t": set(), "u": set()}
        made.check_replication()
    made.wait_for("CompleteCommit")
    assert ends(made) == both(COMMIT)


def test_transaction_with_many_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marker_channel_manager, "PARTITIONS_PER_REQUEST_MAX", 100)
    made = Producers()
    made.call(
        "create_topics",
        7,
        topics=[
            {
                "name": "wide",
                "num_partitions": 300,
                "replication_factor": 1,
                "assignments": [],
                "configs": [],
            }
        ],
        timeout=10_000,
        validate_only=False,
    )
    made.cluster.run_until(lambda: "wide" in made.cluster.broker(1).metadata.topics)
    producer = made.started()
    wide = [("wide", index) for index in range(300)]
    assert made.add(producer, *wide, *DATA) is NONE
    assert made.end(producer, version=5).error_code is NONE
    made.wait_for("CompleteCommit")
    assert all(len(made.markers("wide", index)) == 1 for index in (0, 150, 299))
