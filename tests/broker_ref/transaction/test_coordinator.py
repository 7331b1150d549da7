"""Tests of the transaction coordinator in virtual time: its responses and their effects."""

from __future__ import annotations

import re
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from broker_ref.config import BrokerConfig
from broker_ref.controller.metadata import TRANSACTION_STATE_TOPIC
from broker_ref.faults import Match
from broker_ref.log.batch import encode_batch
from broker_ref.log.control import Marker
from broker_ref.log.records import Record
from broker_ref.node.registration import BrokerState
from broker_ref.transaction import loading, request_validation, transitions
from broker_ref.transaction.records import encode_key
from integration.raw import request
from tests.broker_ref.node.clients import Clients
from tests.broker_ref.transaction.producers import DATA, NAME, WRITE_TXN_MARKERS, Producers
from tests.broker_ref.virtual import VirtualCluster

NONE = ErrorCode.none
CONCURRENT = ErrorCode.concurrent_transactions
COMMIT, ABORT = Marker.COMMIT, Marker.ABORT
BLOCKS = Match(api_keys=frozenset({67}))
MARKERS = Match(api_keys=frozenset({WRITE_TXN_MARKERS}))


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("version", [4, 5])
def test_transaction_from_start_to_end(version: int, commit: bool) -> None:
    made = Producers(transaction_version=1 if version == 4 else 2)
    producer = made.started()
    assert made.add(producer, ("t", 0), ("u", 0)) is NONE
    assert made.produce(producer) is NONE
    assert made.state == "Ongoing"
    ended = made.end(producer, commit=commit, version=version)
    assert ended.error_code is NONE
    made.wait_for("CompleteCommit" if commit else "CompleteAbort")
    epoch = producer[1]
    if version == 5:
        epoch += 1
        assert (ended.producer_id, ended.producer_epoch) == (producer[0], epoch)
    for topic in ("t", "u"):
        assert made.markers(topic) == [(COMMIT if commit else ABORT, epoch, 0)]
    described = made.describe()
    assert (described.producer_id, described.producer_epoch) == (producer[0], epoch)
    assert described.topics == ()


def test_second_producer_fences_the_first() -> None:
    made = Producers(transaction_version=1)
    first = made.started()
    assert made.add(first) is NONE
    assert made.start().error_code is CONCURRENT  # The open transaction is aborted first.
    second = made.started()
    assert second == (first[0], first[1] + 2)
    assert made.markers() == [(ABORT, first[1] + 1, 0)]
    assert made.add(first) is ErrorCode.producer_fenced
    assert made.add(first, version=1) is ErrorCode.invalid_producer_epoch
    assert made.end(first).error_code is ErrorCode.producer_fenced
    assert made.end(first, version=1).error_code is ErrorCode.invalid_producer_epoch
    assert made.start(was=first).error_code is ErrorCode.producer_fenced
    assert made.start(was=first, version=3).error_code is ErrorCode.invalid_producer_epoch


def test_invalid_requests_are_refused() -> None:
    made = Producers()
    invalid = ErrorCode.invalid_request
    assert made.start(transactional_id="").error_code is invalid
    assert made.start(was=(5, -1)).error_code is invalid
    assert made.start(was=(-1, 5)).error_code is invalid
    timeouts = ErrorCode.invalid_transaction_timeout
    for timeout in (0, -1, 900_001):
        assert made.start(transaction_timeout=timeout).error_code is timeouts
    mapping = ErrorCode.invalid_producer_id_mapping
    assert made.add((5, 0)) is mapping
    assert made.end((5, 0)).error_code is mapping
    assert made.add_offsets((5, 0)) is mapping
    assert made.describe().error_code is ErrorCode.transactional_id_not_found
    assert made.describe("").error_code is invalid


def test_no_coordinator_until_there_are_enough_brokers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = VirtualCluster(
        *(
            BrokerConfig(
                node_id=node_id,
                transaction_state_log_num_partitions=1,
                transaction_state_log_replication_factor=3,
            )
            for node_id in (1, 2, 3)
        )
    )
    cluster.start_controller()
    cluster.start_broker(1)
    cluster.run_until(lambda: cluster.broker(1).state is BrokerState.RUNNING)
    clients = Clients(cluster)
    find = request("find_coordinator", 4, key_type=1, coordinator_keys=[NAME])
    for _ in range(2):
        (found,) = clients.call(1, find).coordinators
        assert found.error_code is ErrorCode.coordinator_not_available
        assert re.search(rf"{TRANSACTION_STATE_TOPIC}\b.*\b3\b", found.error_message)
        cluster.advance(100)
    assert re.search(rf"'{TRANSACTION_STATE_TOPIC}'.*\binvalid_replication_factor\b", caplog.text)
    sent = request("init_producer_id", 2, transactional_id=NAME, transaction_timeout=1_000)
    assert clients.call(1, sent).error_code is ErrorCode.not_coordinator
    for node_id in (2, 3):
        cluster.start_broker(node_id)
    cluster.run_until(
        lambda: clients.call(1, find).coordinators[0].error_code is NONE,
    )
    made = clients.call(1, find).coordinators[0].node_id
    cluster.run_until(lambda: clients.call(made, sent).error_code is NONE)


def test_two_phase_commit_is_disabled_by_default() -> None:
    made = Producers()
    sent = made.send(
        "init_producer_id", 6, transactional_id=NAME, transaction_timeout=1, enable2_pc=True
    )
    assert sent.is_closed  # Version 6 is not stable in Kafka 4.3.
    made = Producers(unstable_api_versions_enable=True)
    refused = made.start(version=6, enable2_pc=True)
    assert refused.error_code is ErrorCode.transactional_id_authorization_failed
    assert made.start(version=6).error_code is NONE
    kept = made.start(version=6, keep_prepared_txn=True)
    assert kept.error_code is ErrorCode.unsupported_version


def test_transaction_with_two_phase_commit_never_times_out() -> None:
    made = Producers(unstable_api_versions_enable=True, transaction_two_phase_commit_enable=True)
    producer = made.started(version=6, enable2_pc=True, transaction_timeout=0)
    assert made.add(producer) is NONE
    assert made.describe().transaction_timeout.total_seconds() == (2**31 - 1) / 1000
    made.cluster.advance(20 * 60_000)
    assert made.state == "Ongoing"
    assert made.end(producer, version=5).error_code is NONE


def test_all_partitions_are_added_or_none() -> None:
    made = Producers()
    producer = made.started()
    codes = made.add(producer, ("t", 0), ("t", 7), ("nowhere", 0))
    unknown = ErrorCode.unknown_topic_or_partition
    assert codes == [ErrorCode.operation_not_attempted, unknown, unknown]
    assert made.add(producer, ("__consumer_offsets", 0)) is ErrorCode.topic_authorization_failed
    assert made.state == "Empty"


def test_several_transactions_in_one_request() -> None:
    made = Producers()
    producer = made.started()
    assert made.add(producer) is NONE

    def of(topic: str, *, verify_only: bool, epoch: int = producer[1]) -> dict[str, Any]:
        return {
            "transactional_id": NAME,
            "producer_id": producer[0],
            "producer_epoch": epoch,
            "verify_only": verify_only,
            "topics": [{"name": topic, "partitions": [0]}],
        }

    def codes(*transactions: dict[str, Any]) -> list[ErrorCode]:
        response = made.call("add_partitions_to_txn", 5, transactions=transactions)
        assert response.error_code is NONE
        return [
            result.topic_results[0].results_by_partition[0].partition_error_code
            for result in response.results_by_transaction
        ]

    abortable = ErrorCode.transaction_abortable
    assert codes(of("t", verify_only=True), of("u", verify_only=True)) == [NONE, abortable]
    assert codes(of("u", verify_only=True, epoch=9)) == [ErrorCode.producer_fenced]
    assert codes(of("u", verify_only=False), of("u", verify_only=True)) == [NONE, NONE]
    other = of("u", verify_only=False) | {"transactional_id": ""}
    assert codes(other) == [ErrorCode.invalid_request]


def test_add_offsets_adds_the_partition_of_the_group() -> None:
    made = Producers()
    producer = made.started()
    made.clients.call(1, request("find_coordinator", 2, key="g", key_type=0))
    assert made.add_offsets(producer) is NONE
    (topic,) = made.describe().topics
    assert topic.topic == "__consumer_offsets"


def test_open_transaction_is_aborted_after_its_timeout() -> None:
    made = Producers(transaction_version=1)
    producer = made.started(transaction_timeout=15_000)
    assert made.add(producer) is NONE
    made.cluster.advance(14_000)
    assert made.state == "Ongoing"
    made.cluster.advance(12_000)  # The check runs every ten seconds.
    assert made.state == "CompleteAbort"
    assert made.markers() == [(ABORT, producer[1] + 1, 0)]
    assert made.add(producer) is ErrorCode.producer_fenced


def test_adding_partitions_does_not_extend_the_timeout() -> None:
    made = Producers()
    producer = made.started(transaction_timeout=15_000)
    assert made.add(producer, ("t", 0)) is NONE
    made.cluster.advance(14_000)
    assert made.add(producer, ("u", 0)) is NONE
    made.cluster.advance(12_000)
    assert made.state == "CompleteAbort"


def test_unused_transactional_id_expires() -> None:
    made = Producers(
        transactional_id_expiration_ms=60_000,
        transaction_remove_expired_transaction_cleanup_interval_ms=40_000,
    )
    assert made.started() == (0, 0)
    made.cluster.advance(50_000)
    assert made.state == "Empty"
    made.cluster.advance(40_000)
    assert made.describe().error_code is ErrorCode.transactional_id_not_found
    made.restart_all()  # The log contains the tombstone.
    assert made.state == ""
    producer_id, epoch = made.started()
    assert (producer_id > 0, epoch) == (True, 0)


def test_transactional_id_does_not_expire_in_a_transaction() -> None:
    made = Producers(
        unstable_api_versions_enable=True,
        transaction_two_phase_commit_enable=True,
        transactional_id_expiration_ms=1_000,
        transaction_remove_expired_transaction_cleanup_interval_ms=10_000,
    )
    producer = made.started(version=6, enable2_pc=True)
    assert made.add(producer) is NONE
    made.cluster.advance(60_000)
    assert made.state == "Ongoing"


def test_restarted_coordinator_loads_its_state() -> None:
    made = Producers()
    producer = made.started(transaction_timeout=45_000)
    assert made.add(producer, ("t", 0), ("u", 0)) is NONE
    before = made.coordinator(1).value
    made.restart_all()
    assert made.coordinator(made.find()).value == before
    assert made.end(producer, version=5).producer_epoch == producer[1] + 1
    made.wait_for("CompleteCommit")
    assert [marker for marker, _, _ in made.markers("u")] == [COMMIT]


def test_large_log_is_loaded_in_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = Producers()
    names = {f"tx-{number}" for number in range(7)}
    for name in names:
        made.started(transactional_id=name)
    monkeypatch.setattr(loading, "IDS_PER_STEP", 3)
    steps: list[bool] = []
    plain = loading.Loading.step

    def counted(self: loading.Loading) -> bool:
        steps.append(plain(self))
        return steps[-1]

    monkeypatch.setattr(loading.Loading, "step", counted)
    made.restart_all()
    assert steps == [False, False, True]
    assert {state.transactional_id for state in made.listed().transaction_states} == names


def test_records_of_unknown_versions_are_ignored() -> None:
    made = Producers()
    producer = made.started()
    foreign = [
        Record(timestamp=1, key=encode_key(NAME), value=b"\x00\x07later"),
        Record(timestamp=1, key=b"\x00\x07later", value=b"x"),
    ]
    made.partition("__transaction_state").append(
        encode_batch(foreign), all_replicas=True, now_ms=made.cluster.now_ms
    )
    made.restart_all()
    assert made.add(producer) is NONE


def test_unreadable_record_leaves_the_partition_without_coordinator(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = Producers()
    made.started(transactional_id="other")
    damaged = [Record(timestamp=1, key=encode_key(NAME), value=b"\x00\x01no")]
    appended = made.partition("__transaction_state").append(
        encode_batch(damaged), all_replicas=True, now_ms=made.cluster.now_ms
    )
    made.started(transactional_id="other")
    made.cluster.stop_broker(1)
    made.cluster.start_broker(1)
    made.cluster.run_until(lambda: made.cluster.broker(1).state is BrokerState.RUNNING)
    made.cluster.advance(100)
    response = made.clients.call(
        1,
        request(
            "init_producer_id",
            5,
            transactional_id=NAME,
            transaction_timeout=1_000,
            producer_id=-1,
            producer_epoch=-1,
        ),
    )
    assert response.error_code is ErrorCode.not_coordinator
    assert re.search(rf"__transaction_state-0\b.*\b{appended.base_offset}\b", caplog.text)


def test_requests_while_markers_are_being_sent() -> None:
    made = Producers()
    producer = made.started()
    assert made.add(producer) is NONE
    with made.cluster.faults.hold(MARKERS):
        assert made.end(producer, version=5).error_code is NONE
        next_producer = (producer[0], producer[1] + 1)
        assert made.state == "PrepareCommit"
        assert made.describe().topics[0].topic == "t"
        assert made.start().error_code is CONCURRENT
        assert made.add(next_producer) is CONCURRENT
        assert made.end(producer, version=5).error_code is CONCURRENT
    made.wait_for("CompleteCommit")
    assert made.end(producer, version=5).error_code is NONE  # A retry succeeds.
    assert made.end(producer, commit=False, version=5).error_code is ErrorCode.invalid_txn_state
    assert made.add(next_producer) is NONE


def use_up_producer_ids(made: Producers) -> None:
    """Use up the broker's block of producer ids, without allocating the next block."""
    broker = made.cluster.broker(1).broker
    assert broker is not None
    broker.producer_ids._block, broker.producer_ids._next_block = range(0), None


def test_init_producer_id_waits_for_the_next_block() -> None:
    made = Producers()
    first = made.started()
    use_up_producer_ids(made)
    begin = {"transactional_id": "new", "transaction_timeout": 60_000}
    with made.cluster.faults.hold(BLOCKS):
        given_up = made.send("init_producer_id", 2, **begin)
        made.cluster.advance(900)
        patient = made.send("init_producer_id", 2, **begin)
        assert made.start(was=first).producer_epoch == 1  # A known producer needs no id.
        assert given_up.is_open()
        made.cluster.advance(100)
        assert made.clients.outcome(given_up).error_code is ErrorCode.coordinator_load_in_progress
        assert patient.is_open()
    response = made.clients.outcome(patient)
    assert (response.error_code, response.producer_epoch) == (NONE, 0)
    assert response.producer_id > first[0]


def test_transaction_stays_open_until_its_end_gets_a_producer_id(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (request_validation, transitions):
        monkeypatch.setattr(module, "LAST_PRODUCERS_EPOCH", 0)
    made = Producers()
    producer = made.started(transaction_timeout=15_000)
    assert made.add(producer) is NONE
    use_up_producer_ids(made)
    with made.cluster.faults.hold(BLOCKS):
        ended = made.end(producer, version=5)
        assert ended.error_code is ErrorCode.coordinator_load_in_progress
        made.cluster.advance(30_000)  # The transaction has also timed out.
        assert made.state == "Ongoing"
    made.wait_for("CompleteAbort")
    value = made.coordinator(1).value
    assert value is not None
    assert value.producer_id > producer[0]
    assert value.producer_epoch == 0


@pytest.mark.parametrize(
    "error_code",
    [
        ErrorCode.not_leader_or_follower,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.not_enough_replicas_after_append,
        ErrorCode.unknown_server_error,
    ],
)
def test_markers_are_retried_until_every_partition_has_them(error_code: ErrorCode) -> None:
    made = Producers()
    producer = made.started()
    assert made.add(producer, ("t", 0), ("u", 0)) is NONE
    with made.cluster.faults.refuse(error_code, MARKERS, times=5) as refusing:
        assert made.end(producer).error_code is NONE
        assert made.state == "PrepareCommit"
        made.wait_for("CompleteCommit")
        assert refusing.hits == 5
    assert [len(made.markers(topic)) for topic in ("t", "u")] == [1, 1]


def test_marker_is_sent_again_after_a_lost_response() -> None:
    made = Producers()
    producer = made.started()
    assert made.add(producer) is NONE
    with made.cluster.faults.drop_response(MARKERS, times=1):
        assert made.end(producer, version=5).error_code is NONE
        made.wait_for("CompleteCommit")
    assert {marker for marker, _, _ in made.markers()} == {COMMIT}


def test_deleted_topic_needs_no_marker() -> None:
    made = Producers()
    producer = made.started()
    assert made.add(producer, ("t", 0), ("u", 0)) is NONE
    with made.cluster.faults.hold(MARKERS):
        assert made.end(producer).error_code is NONE
        deleted = made.call("delete_topics", 3, topic_names=["u"], timeout=1_000)
        assert deleted.responses[0].error_code is NONE
        assert made.state == "PrepareCommit"
    made.wait_for("CompleteCommit")
    assert len(made.markers("t")) == 1


def test_list_transactions_filters() -> None:
    made = Producers()
    made.started(transactional_id="one")
    producer = made.started()
    assert made.add(producer) is NONE
    made.cluster.advance(5_000)

    def names(version: int = 2, **filters: Any) -> list[str]:
        response = made.listed(version, **filters)
        assert response.error_code is NONE
        return sorted(state.transactional_id for state in response.transaction_states)

    assert names(0) == ["one", NAME]
    assert names(state_filters=["Ongoing"]) == [NAME]
    assert names(state_filters=["ongoing"]) == []
    assert names(producer_id_filters=[producer[0]]) == [NAME]
    assert names(duration_filter=4_999) == ["one", NAME]
    assert names(duration_filter=5_000) == ["one"]  # Without a start time it is the oldest.
    assert names(transactional_id_pattern="o.*") == ["one"]
    assert names(transactional_id_pattern="n") == []
    assert names(transactional_id_pattern="") == ["one", NAME]
    made.started(transactional_id="of two\nlines")
    assert names(transactional_id_pattern="of.*") == []  # As in Kafka, `.` matches no newline.
    assert "of two\nlines" in names()
    unknown = made.listed(state_filters=["Nothing", "Dead", "PrepareEpochFence"])
    assert (unknown.unknown_state_filters, unknown.transaction_states) == (("Nothing",), ())
    wrong = made.listed(transactional_id_pattern="(")
    assert wrong.error_code is ErrorCode.invalid_regular_expression


def test_transaction_version_2_requires_its_feature() -> None:
    made = Producers(transaction_version=0)
    producer = made.started()
    assert made.add(producer) is NONE
    assert made.end(producer, version=5).error_code is ErrorCode.unsupported_version
    assert made.state == "Ongoing"
    assert made.end(producer).error_code is NONE


def test_produce_adds_the_partition_in_version_2() -> None:
    made = Producers()
    producer = made.started()
    assert made.produce(producer, version=12) is NONE
    (topic,) = made.describe().topics
    assert ((topic.topic, *topic.partitions),) == DATA
    assert made.end(producer, version=5).error_code is NONE
    made.wait_for("CompleteCommit")
    late = made.produce(producer, sequence=1, version=12)
    assert late is ErrorCode.invalid_producer_epoch
