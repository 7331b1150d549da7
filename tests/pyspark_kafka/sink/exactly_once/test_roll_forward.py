"""Tests of roll forward.

Committed transactions are complete, aborted ones mean lost rows, and any other state is an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import pytest
from kio.schema.errors import ErrorCode

from pyspark_kafka.errors import AuthorizationError, BrokerUnreachableError, OutcomeUnknownError
from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.kafka.transactions import TransactionState
from pyspark_kafka.sink.exactly_once.decisions import Entry, QueryState
from pyspark_kafka.sink.exactly_once.roll_forward import roll_forward
from tests.pyspark_kafka.sink.exactly_once.conftest import Setting
from tests.pyspark_kafka.sink.exactly_once.drivers import Driver, rows
from tests.pyspark_kafka.sink.exactly_once.fake_client import FakeClient
from tests.pyspark_kafka.sink.exactly_once.fake_cluster import FakeCluster
from tests.pyspark_kafka.sink.exactly_once.fake_log import FakeLog

OUT = "out"
OUT_0 = TopicPartition(OUT, 0)


def roll(driver: Driver, *entries: Entry, is_finished: bool = False) -> list[int]:
    state = QueryState(decision=driver.decision(5, *entries), is_finished=is_finished)
    return [entry.partition for entry in roll_forward(driver.client, state, sleep=lambda _: None)]


def unknown_outcome(driver: Driver, *entries: Entry) -> str:
    with pytest.raises(OutcomeUnknownError) as error:
        roll(driver, *entries)
    assert error.value.transactional_id == driver.sink_id
    text = str(error.value)
    assert re.search(r"(?i)decision 1\b.*\bquery\b.*\b5\b", text)
    return text


@pytest.fixture
def driver(fake: FakeCluster, client: FakeClient) -> Driver:
    """Return a driver on a fake cluster that has the topic `out` with two partitions."""
    fake.create_topic(OUT, 2)
    return Driver(
        client=client, sink_id="X", commit_topic="commits", version=fake.transaction_version
    )


@pytest.fixture
def out(fake: FakeCluster, driver: Driver) -> FakeLog:
    return fake.log(OUT_0)


# --- on every cluster ---


def test_prepared_transactions_are_committed(setting: Setting) -> None:
    driver, topic = setting.driver(), setting.world.topic(2)
    entries = [driver.prepare(n, topic, f"{n}", to=(0, 1)) for n in range(3)]
    assert setting.world.committed(topic) == []
    for _ in range(2):
        assert roll(driver, *entries) == []
    assert setting.world.committed(topic) == [b"0", b"0", b"1", b"1", b"2", b"2"]


def test_aborted_transaction_is_lost(setting: Setting) -> None:
    driver, topic = setting.driver(), setting.world.topic()
    entries = [driver.prepare(n, topic, f"{n}") for n in range(3)]
    driver.end(entries[1].transactional_id, entries[1].producer, is_commit=False)
    for _ in range(2):
        assert roll(driver, *entries) == [1]
    assert setting.world.committed(topic) == [b"0", b"2"]


def test_fenced_transaction_is_lost(setting: Setting) -> None:
    """A fence leaves the same coordinator state as a commit; only the log has the outcome."""
    driver, topic = setting.driver(), setting.world.topic(2)
    entries = [driver.prepare(n, topic, f"{n}", to=(1,)) for n in range(2)]
    driver.client.init_producer_id(entries[0].transactional_id, timeout_ms=30_000)
    for _ in range(2):
        assert roll(driver, *entries) == [0]
    assert setting.world.committed(topic) == [b"1"]


def test_committed_transaction_of_a_reused_id_is_done(setting: Setting) -> None:
    driver, topic = setting.driver(), setting.world.topic()
    first = driver.prepare(0, topic, "first")
    assert driver.commit(first) is ErrorCode.none
    second = driver.prepare(0, topic, "second")
    assert second.transactional_id == first.transactional_id
    assert roll(driver, first) == []
    driver.end(second.transactional_id, second.producer, is_commit=False)
    driver.prepare(0, topic, "third")
    assert roll(driver, first) == []
    assert setting.world.committed(topic) == [b"first"]


def test_aborted_transaction_of_a_reused_id_is_lost(setting: Setting) -> None:
    driver, topic = setting.driver(), setting.world.topic()
    first = driver.prepare(0, topic, "first")
    second = driver.prepare(0, topic, "second")
    assert driver.commit(second) is ErrorCode.none
    assert roll(driver, first) == [0]
    assert roll(driver, second) == []
    assert setting.world.committed(topic) == [b"second"]


def test_newer_client_rolls_forward_an_older_clients_decision(setting: Setting) -> None:
    """Each transaction is ended with the version that it was written with."""
    driver, topic = setting.driver(), setting.world.topic()
    entry = driver.prepare(0, topic, "a")
    driver.commit(entry)
    driver.version = driver.client.transaction_version()
    other = driver.prepare(1, topic, "b")
    assert roll(driver, entry, other) == []
    driver.client.init_producer_id(entry.transactional_id, timeout_ms=30_000)
    assert roll(driver, entry, other) == []


@pytest.mark.parametrize("version", [1, 2])
def test_retry_uses_the_transaction_version_of_the_entry(version: Literal[1, 2]) -> None:
    """A retry with another version is rejected although the transaction is committed."""
    fake = FakeCluster(2)
    client = fake.client()
    fake.create_topic(OUT)
    driver = Driver(client=client, sink_id="X", commit_topic="commits", version=version)
    entries = [driver.prepare(n, OUT, "a") for n in range(2)]
    driver.commit(entries[0])
    state = QueryState(decision=driver.decision(5, *entries))
    for _ in range(2):
        assert roll_forward(client, state, is_new=True) == ()
    assert "describe_transactions" not in client.asked()


def test_empty_decision_sends_no_request(client: FakeClient) -> None:
    driver = Driver(client=client, sink_id="X", commit_topic="commits")
    assert roll(driver) == []
    assert client.asked() == []


# --- (a) the decision is finished ---


def test_finished_decision_sends_no_request(driver: Driver, client: FakeClient) -> None:
    entry = driver.prepare(0, OUT, "a")
    before = len(client.asked())
    assert roll(driver, entry, is_finished=True) == []
    assert len(client.asked()) == before


# --- (b) the coordinator has the outcome ---


def test_log_is_not_read_if_the_coordinator_knows_the_outcome(
    fake: FakeCluster, driver: Driver, client: FakeClient
) -> None:
    done, lost = driver.prepare(0, OUT, "a"), driver.prepare(1, OUT, "b")
    driver.commit(done)
    driver.end(lost.transactional_id, lost.producer, is_commit=False)
    fake.respond_to_end_txn(done.transactional_id, ErrorCode.invalid_txn_state)
    assert roll(driver, done, lost) == [1]
    assert "read_log" not in client.asked()


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.invalid_txn_state,
        ErrorCode.invalid_producer_epoch,
        ErrorCode.producer_fenced,
        ErrorCode.invalid_producer_id_mapping,
        ErrorCode.transactional_id_not_found,
        ErrorCode.unknown_server_error,
        None,
    ],
)
@pytest.mark.parametrize("verdict", ["commit", "abort"])
def test_error_codes_are_not_outcomes(
    fake: FakeCluster, driver: Driver, code: ErrorCode | None, verdict: str
) -> None:
    entry = driver.prepare(0, OUT, "a")
    driver.end(entry.transactional_id, entry.producer, is_commit=verdict == "commit")
    fake.respond_to_end_txn(entry.transactional_id, code)
    assert roll(driver, entry) == ([] if verdict == "commit" else [0])


def test_open_transaction_is_committed_again(fake: FakeCluster, driver: Driver) -> None:
    entry = driver.prepare(0, OUT, "a")
    fake.respond_to_end_txn(entry.transactional_id, None, ErrorCode.unknown_server_error)
    assert roll(driver, entry) == []
    assert fake.committed(OUT) == [(None, b"a")]


def test_transaction_that_stays_open_is_reported(fake: FakeCluster, driver: Driver) -> None:
    entries = [driver.prepare(n, OUT, "a", "b", to=(0, 1)) for n in range(2)]
    fake.respond_to_end_txn(entries[1].transactional_id, *[None] * 20)
    text = unknown_outcome(driver, *entries)
    assert re.search(rf"'{entries[1].transactional_id}'.*\b2 rows\b.*\bout-0\b.*\b3\b", text)
    assert entries[0].transactional_id not in text


def test_prepared_commit_is_committed(fake: FakeCluster, driver: Driver) -> None:
    """The markers cannot be written while a partition is offline, but the outcome is certain."""
    entry = driver.prepare(0, OUT, "a")
    fake.holds_markers = True
    driver.commit(entry)
    assert fake.state(entry.transactional_id) is TransactionState.PREPARE_COMMIT
    asked = len(fake.requests)
    assert roll(driver, entry) == []
    assert [request.name for request in fake.requests[asked:]] == ["describe_transactions"]
    fake.write_markers()
    assert fake.committed(OUT) == [(None, b"a")]


def test_commit_that_is_prepared_meanwhile_is_committed(fake: FakeCluster, driver: Driver) -> None:
    """The response to EndTxn is lost, and the next one waits for markers in vain."""
    entry = driver.prepare(0, OUT, "a")
    fake.holds_markers = True
    assert isinstance(driver.client, FakeClient)
    driver.client.lose_response("end_transactions")
    assert roll(driver, entry) == []


def test_prepared_abort_is_lost(fake: FakeCluster, driver: Driver) -> None:
    """With version 1 a fence uses the next owner's epoch, so only the markers show the outcome."""
    entry = driver.prepare(0, OUT, "a")
    fake.holds_markers = True
    fake.advance(10_000_000)
    assert fake.state(entry.transactional_id) is TransactionState.PREPARE_ABORT
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        fake.write_markers()

    state = QueryState(decision=driver.decision(5, entry))
    assert roll_forward(driver.client, state, sleep=pause) == (entry,)
    assert len(pauses) == (1 if fake.transaction_version == 1 else 0)


def test_next_owner_with_the_same_epoch_is_not_this_transaction(
    fake: FakeCluster, driver: Driver
) -> None:
    """With version 1 a transaction is committed in epoch e, and the next one is aborted in e+1."""
    first = driver.prepare(0, OUT, "a")
    driver.commit(first)
    second = driver.prepare(0, OUT, "b")
    driver.end(second.transactional_id, second.producer, is_commit=False)
    assert fake.state(first.transactional_id) is TransactionState.COMPLETE_ABORT
    assert roll(driver, first) == []
    third = driver.prepare(0, OUT, "c")
    fake.advance(10_000_000)
    assert roll(driver, third) == [0]
    driver.commit(driver.prepare(0, OUT, "d"))
    assert roll(driver, third) == [0]


def test_timed_out_transaction_is_lost(fake: FakeCluster, driver: Driver) -> None:
    entry = driver.prepare(0, OUT, "a")
    fake.advance(10_000_000)
    assert fake.state(entry.transactional_id) is TransactionState.COMPLETE_ABORT
    assert roll(driver, entry) == [0]
    driver.client.init_producer_id(entry.transactional_id, timeout_ms=1000)
    assert roll(driver, entry) == [0]


# --- (c) the log has the outcome ---


@pytest.mark.parametrize("verdict", ["commit", "abort"])
def test_outcome_of_an_expired_id_is_read_from_the_log(
    fake: FakeCluster, driver: Driver, verdict: str
) -> None:
    entry = driver.prepare(0, OUT, "a", to=(1,))
    driver.commit(driver.prepare(1, OUT, "b", to=(1,)))
    driver.end(entry.transactional_id, entry.producer, is_commit=verdict == "commit")
    fake.expire(entry.transactional_id)
    assert roll(driver, entry) == ([] if verdict == "commit" else [0])


@pytest.mark.parametrize("verdict", ["commit", "abort"])
def test_last_epoch_of_a_producer_id(fake: FakeCluster, driver: Driver, verdict: str) -> None:
    """After the last epoch the coordinator has another producer id: INVALID_PRODUCER_ID_MAPPING."""
    own_id = driver.id_of(0)
    driver.client.init_producer_id(own_id, timeout_ms=1000)
    fake.exhaust(own_id)
    producer = fake.producer_of(own_id)
    writer = driver.client.transactional_producer(own_id, producer, driver.version)
    entry = driver.prepare(1, OUT, "other")
    writer.send(rows(OUT, 0, ["a"]))
    writer.flush()
    entry = replace(
        entry,
        partition=0,
        transactional_id=own_id,
        producer=producer,
        last_offsets=dict(writer.last_offsets),
    )
    if verdict == "commit":
        for _ in range(2):
            assert roll(driver, entry) == []
    else:
        fake.advance(10_000_000)
    following = driver.prepare(0, OUT, "b")
    assert following.producer.producer_id != producer.producer_id
    for _ in range(2):
        assert roll(driver, entry) == ([] if verdict == "commit" else [0])
        assert roll(driver, following) == []


def test_marker_in_any_partition_counts(fake: FakeCluster, driver: Driver, out: FakeLog) -> None:
    entry = driver.prepare(0, OUT, "a", to=(0, 1))
    driver.commit(entry)
    fake.expire(entry.transactional_id)
    out.delete_before(out.end)
    assert roll(driver, entry) == []


def test_deleted_topic_has_no_outcome(fake: FakeCluster, driver: Driver) -> None:
    fake.create_topic("another")
    entry = driver.prepare(0, OUT, "a")
    elsewhere = {TopicPartition("another", 0): 0, **entry.last_offsets}
    driver.commit(entry)
    fake.expire(entry.transactional_id)
    del fake.topics["another"]
    assert roll(driver, replace(entry, last_offsets=elsewhere)) == []
    del fake.topics[OUT]
    assert "out-0" in unknown_outcome(driver, entry)


def test_recreated_topic_has_no_outcome(fake: FakeCluster, driver: Driver) -> None:
    driver.prepare(1, OUT, "first")
    entry = driver.prepare(0, OUT, "a")
    driver.commit(entry)
    fake.expire(entry.transactional_id)
    fake.create_topic(OUT)
    unknown_outcome(driver, entry)


def test_markers_of_other_producers_do_not_count(driver: Driver, fake: FakeCluster) -> None:
    entry = driver.prepare(0, OUT, "a")
    other = driver.prepare(1, OUT, "b")
    driver.end(other.transactional_id, other.producer, is_commit=False)
    driver.commit(entry)
    fake.expire(entry.transactional_id)
    assert roll(driver, entry) == []


# --- (d) the outcome is unknown ---


def gone(fake: FakeCluster, driver: Driver, entry: Entry, cut: int) -> None:
    fake.expire(entry.transactional_id)
    fake.log(OUT_0).delete_before(cut)


def test_marker_deleted_by_retention(fake: FakeCluster, driver: Driver) -> None:
    entry = driver.prepare(0, OUT, "a", "b")
    driver.commit(entry)
    driver.commit(driver.prepare(1, OUT, "c"))
    gone(fake, driver, entry, 3)
    text = unknown_outcome(driver, entry)
    assert re.search(rf"'{entry.transactional_id}'.*\b2 rows\b.*\bout-0\b.*\b1\b", text)
    assert "--accept-loss" in text
    assert "python -m pyspark_kafka transactions --id=X" in text


def test_marker_of_a_later_transaction_does_not_count(fake: FakeCluster, driver: Driver) -> None:
    """The transactions have the same producer id and different epochs."""
    entry = driver.prepare(0, OUT, "a")
    driver.commit(entry)
    later = driver.prepare(0, OUT, "b")
    driver.end(later.transactional_id, later.producer, is_commit=False)
    gone(fake, driver, entry, 2)
    unknown_outcome(driver, entry)


def test_marker_after_deleted_records_counts_by_its_epoch(
    fake: FakeCluster, driver: Driver
) -> None:
    entry = driver.prepare(0, OUT, "a")
    driver.commit(entry)
    gone(fake, driver, entry, 1)
    assert roll(driver, entry) == []


def test_fencing_marker_after_deleted_records(fake: FakeCluster, driver: Driver) -> None:
    """With version 1 the marker could also belong to an abort by the next owner."""
    entry = driver.prepare(0, OUT, "a")
    fake.advance(10_000_000)
    gone(fake, driver, entry, 1)
    if fake.transaction_version == 1:
        unknown_outcome(driver, entry)
    else:
        assert roll(driver, entry) == [0]


def test_compacted_log(fake: FakeCluster, driver: Driver) -> None:
    """Replaced records are deleted with their marker; the next marker is of another transaction."""
    entry = driver.prepare(0, OUT, "a")
    driver.commit(entry)
    later = driver.prepare(0, OUT, "b")  # replaces the record with the same key, null
    driver.commit(later)
    aborted = driver.prepare(0, OUT, "c")
    driver.end(aborted.transactional_id, aborted.producer, is_commit=False)
    log = fake.log(OUT_0)
    log.batches = [b for b in log.batches if b.base_offset in (2, 3, 5)]
    fake.expire(entry.transactional_id)
    unknown_outcome(driver, entry)
    assert roll(driver, later) == []


def test_unreadable_log_is_reported(fake: FakeCluster, driver: Driver, client: FakeClient) -> None:
    entry = driver.prepare(0, OUT, "a")
    driver.commit(entry)
    fake.expire(entry.transactional_id)
    client.fail("read_log", AuthorizationError("TOPIC_AUTHORIZATION_FAILED"))
    text = unknown_outcome(driver, entry)
    assert re.search(r"\bout-0\b.*TOPIC_AUTHORIZATION_FAILED", text)
    assert "READ" in text
    assert "--accept-loss" not in text


def test_unknown_outcome_does_not_keep_others_from_being_committed(
    fake: FakeCluster, driver: Driver
) -> None:
    entry = driver.prepare(0, OUT, "a")
    driver.commit(entry)
    gone(fake, driver, entry, 2)
    others = [driver.prepare(n, OUT, f"{n}") for n in (1, 2)]
    unknown_outcome(driver, entry, *others)
    assert [value for _, value in fake.committed(OUT)] == [b"1", b"2"]


# --- interruptions ---


@pytest.mark.parametrize(
    "interrupt",
    [
        lambda client: client.fail("describe_transactions", BrokerUnreachableError("the cause")),
        lambda client: client.fail("list_offsets", BrokerUnreachableError("the cause")),
        lambda client: client.fail("read_log", BrokerUnreachableError("the cause")),
    ],
    ids=["describe", "offsets", "read"],
)
def test_interruption_is_reported(
    fake: FakeCluster,
    driver: Driver,
    client: FakeClient,
    interrupt: Callable[[FakeClient], None],
) -> None:
    entry = driver.prepare(0, OUT, "a")
    driver.commit(entry)
    fake.expire(entry.transactional_id)
    interrupt(client)
    text = unknown_outcome(driver, entry)
    assert "the cause" in text
    assert roll(driver, entry) == []


def test_lost_response_is_retried(driver: Driver, client: FakeClient) -> None:
    entries = [driver.prepare(n, OUT, f"{n}") for n in range(3)]
    client.lose_response("end_transactions")
    assert roll(driver, *entries) == []
