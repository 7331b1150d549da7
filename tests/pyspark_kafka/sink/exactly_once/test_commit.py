"""Tests of commit: conditions of a decision, errors before it, and failures after it."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal

import pytest
from kio.schema.errors import ErrorCode

from pyspark_kafka.errors import (
    AuthorizationError,
    BatchNotCommittedError,
    BrokerUnreachableError,
    DeliveryError,
    EarlierJobCommittedError,
    OutcomeUnknownError,
    ReplayMismatchError,
    RowsLostError,
    SinkFencedError,
)
from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.kafka.transactions import EndTransaction, ProducerIdAndEpoch, TransactionState
from pyspark_kafka.sink.exactly_once.commit_topic import CommitTopic
from pyspark_kafka.sink.exactly_once.decisions import BATCH_JOB, QueryState, RowTotals
from pyspark_kafka.sink.exactly_once.failpoint_client import FailpointClient
from pyspark_kafka.sink.exactly_once.messages import Prepared, Task, TaskMessage, TaskResults
from pyspark_kafka.sink.exactly_once.planning import DECISION_TIMEOUT_MS
from pyspark_kafka.sink.exactly_once.source_offsets import SourceOffsets
from tests.pyspark_kafka.sink.exactly_once.query import Query
from tests.pyspark_kafka.sink.exactly_once.runs import Batch, Killed, Rows, Run, at, kill
from tests.pyspark_kafka.sink.exactly_once.worlds import FakeWorld

ROWS: tuple[Rows, ...] = ([b"a", b"b"], [b"c"])
DECISION_DOMAIN = "pyspark_kafka.sink.exactly_once.commit"


@pytest.fixture
def world() -> FakeWorld:
    return FakeWorld()


@pytest.fixture
def query(world: FakeWorld) -> Query:
    return Query.of(world, (ROWS,))


def prepared(run: Run, batch_id: int | None = 0) -> Batch:
    batch = run.begin(batch_id)
    for partition, rows in enumerate(ROWS):
        batch.task(partition, rows)
    return batch


def entry_of(batch: Batch, partition: int = 0) -> Prepared:
    message = batch.messages[partition]
    assert isinstance(message, Prepared)
    return message


def state_of(query: Query) -> QueryState:
    run = query.first
    with run.process("reader") as client:
        return (
            CommitTopic(client, run.options.commit_topic, run.sink_id).read().queries[run.query_id]
        )


def is_decided(query: Query) -> bool:
    run = query.first
    with run.process("reader") as client:
        return (
            run.query_id
            in CommitTopic(client, run.options.commit_topic, run.sink_id).read().queries
        )


# --- the decision ---


def test_decision_contains_the_batch(query: Query, world: FakeWorld) -> None:
    batch = prepared(query.first)
    states: list[QueryState] = []
    with at("commit.mark.before", lambda: states.append(state_of(query))):
        batch.commit(offsets=SourceOffsets(hash="h", offsets={}))
    decision = states[0].decision
    finished = state_of(query)
    assert (finished.is_finished, finished.decision) == (True, replace(decision, entries=()))
    assert decision.sink_id == query.first.sink_id
    assert (decision.number, decision.batch_id, decision.run) == (1, 0, "run-1")
    assert decision.offsets_hash == "h"
    assert decision.entries == tuple(entry_of(batch, number).entry for number in (0, 1))
    assert decision.totals == entry_of(batch, 0).entry.totals + entry_of(batch, 1).entry.totals
    assert decision.decided_ms == world.now_ms()


def test_numbers_rise_with_each_batch(query: Query) -> None:
    for batch_id in (0, 1, 5):
        query.first.write(batch_id, *ROWS)
    assert state_of(query).decision.number == 3
    assert state_of(query).decision.batch_id == 5


def test_empty_batch_is_decided(query: Query) -> None:
    query.first.write(0, [], [])
    assert state_of(query).is_finished
    assert state_of(query).decision.totals == RowTotals()
    assert state_of(query).decision.batch_id == 0


def test_empty_job_without_batch_id_is_not_decided(query: Query) -> None:
    query.first.write(None, [], [])
    assert not is_decided(query)


def test_replay_decides_nothing(query: Query) -> None:
    query.drive(query.first)
    before = state_of(query)
    query.restarted().write(0, *ROWS)
    assert state_of(query) == before


def test_supplement_has_the_run_that_wrote_it(query: Query, world: FakeWorld) -> None:
    with at("commit.roll_forward.before", kill), suppress(Killed):
        query.drive(query.first)
    world.cluster.advance(query.first.timeout_ms + 1)
    first = state_of(query).decision
    query.drive(query.restarted())
    second = state_of(query).decision
    assert (second.number, second.run) == (2, "run-2")
    assert (second.totals, second.batch_id) == (first.totals, first.batch_id)
    old, new = ({e.transactional_id for e in each.entries} for each in (first, second))
    assert not old & new
    assert state_of(query).is_finished
    query.check()


def test_failed_supplement_does_not_deny_the_earlier_decision(
    query: Query, world: FakeWorld
) -> None:
    with at("commit.roll_forward.before", kill), suppress(Killed):
        query.drive(query.first)
    world.cluster.advance(query.first.timeout_ms + 1)
    batch = prepared(query.restarted())
    world.cluster.advance(query.first.timeout_ms + 1)
    assert "decision 1" in not_committed(batch)


# --- not committed: contradictory task results ---


def refused(query: Query, messages: list[Any], facts: str) -> None:
    """Check that these results are rejected before a decision."""
    with pytest.raises(BatchNotCommittedError, match=facts) as caught:
        TaskResults.of(query.first.sink_id, messages)
    assert caught.value.transactional_id == query.first.sink_id


def test_every_task_must_return_a_result(query: Query) -> None:
    messages: list[TaskMessage | None] = [*prepared(query.first).messages.values()]
    refused(query, [], query.first.sink_id)
    refused(query, [None, None], r"\b0, 1\b")
    refused(query, [messages[0], None], r" 1\b")


@pytest.mark.parametrize(
    ("change", "facts"),
    [
        ({"query_id": "other"}, r" 0\b.*\bquery\b.* 1\b.*\bother\b"),
        ({"batch_id": 4}, r" 0\b.* 0\b.* 1\b.* 4\b"),
        ({"run": "run-9"}, r" 0\b.*\brun-1\b.* 1\b.*\brun-9\b"),
    ],
)
def test_results_of_different_batches_are_refused(
    query: Query, change: Mapping[str, Any], facts: str
) -> None:
    one, two = prepared(query.first).messages.values()
    refused(query, [one, replace(two, task=replace(two.task, **change))], facts)


def test_results_of_different_plans_are_refused(query: Query) -> None:
    one, two = prepared(query.first).messages.values()
    other = ProducerIdAndEpoch(producer_id=1, producer_epoch=9)
    refused(query, [one, replace(two, owner=other)], str(other))
    refused(query, [one, replace(two, version=1)], r" 2\b.* 1\b")
    refused(query, [one, replace(two, last_number=5)], r" 0\b.* 5\b")


def test_two_results_of_a_partition_are_refused(query: Query) -> None:
    batch = prepared(query.first)
    one, two = batch.messages.values()
    again = batch.task(1, ROWS[1], attempt=1)
    refused(query, [one, two, again], r" 1\b")


def test_transaction_of_another_task_is_refused(query: Query) -> None:
    batch = prepared(query.first)
    one, two = entry_of(batch, 0), entry_of(batch, 1)
    for transactional_id in ("other/0/1/0-1", "x/0/1/0-1", query.first.sink_id, "x"):
        strange = replace(two, entry=replace(two.entry, transactional_id=transactional_id))
        refused(query, [one, strange], f"'{transactional_id}'")
    strange = replace(two, entry=replace(two.entry, partition=4))
    refused(query, [one, strange], r" 4\b")


def test_decision_known_to_some_tasks_is_refused(query: Query) -> None:
    one, two = prepared(query.first).messages.values()
    assert isinstance(one, Prepared)
    refused(query, [replace(one, decision_number=3), two], r"\b3, None\b")


# --- not committed: transactions that changed after they were prepared ---


def not_committed(batch: Batch) -> str:
    """Check that the commit fails undecided and that the next run succeeds; return the error."""
    with pytest.raises(BatchNotCommittedError) as raised:
        batch.commit()
    assert raised.value.transactional_id == batch.run.sink_id
    batch.abort()
    batch.run.write(batch.batch_id, *ROWS)
    assert batch.run.world.committed(batch.run.topic) == [b"a", b"b", b"c"]
    return str(raised.value)


def test_transaction_that_no_longer_exists(query: Query, world: FakeWorld) -> None:
    batch = prepared(query.first)
    transactional_id = entry_of(batch).entry.transactional_id
    world.cluster.advance(query.first.timeout_ms + 1)
    world.cluster.expire(transactional_id)
    with pytest.raises(BatchNotCommittedError) as raised:
        batch.commit()
    text = str(raised.value)
    assert entry_of(batch).task.batch in text.lower()
    assert re.search(rf"'{transactional_id}'.*\b0\b.*\b2 rows\b", text)
    assert entry_of(batch, 1).entry.transactional_id in text
    assert not is_decided(query)


def test_transaction_of_another_producer(query: Query, world: FakeWorld) -> None:
    batch = prepared(query.first)
    other = world.cluster.client("other")
    owner = other.init_producer_id(entry_of(batch).entry.transactional_id, timeout_ms=30_000)
    assert str(owner) in not_committed(batch)


def test_transaction_that_has_ended() -> None:
    """With version 1 the producer keeps its epoch, although the transaction has ended."""
    query = Query.of(FakeWorld(1), (ROWS,))
    batch = prepared(query.first)
    entry = entry_of(batch).entry
    end = EndTransaction(
        transactional_id=entry.transactional_id, producer=entry.producer, is_commit=False, version=1
    )
    with query.first.process("other") as client:
        client.end_transactions([end])
    assert "CompleteAbort" in not_committed(batch)


def test_transaction_with_more_partitions(query: Query, world: FakeWorld) -> None:
    """Another process has written to more partitions in the transaction than the task returned."""
    batch = prepared(query.first)
    entry = entry_of(batch).entry
    world.cluster.add_partition(
        entry.transactional_id, entry.producer, TopicPartition("elsewhere", 4), 2
    )
    text = not_committed(batch)
    assert f"elsewhere-4, {query.first.topic}-0" in text


@pytest.mark.parametrize(
    ("timeout_ms", "left_ms", "is_enough"),
    [
        (600_000, 60_000, True),
        (600_000, 59_999, False),
        (60_000, 15_000, True),
        (60_000, 14_999, False),
        (2_000, 500, True),
        (2_000, 499, False),
    ],
)
def test_transaction_needs_time_before_its_timeout(
    query: Query, world: FakeWorld, timeout_ms: int, left_ms: int, is_enough: bool
) -> None:
    """The required time is a minute, or a quarter of a short timeout."""
    batch = prepared(replace(query.first, timeout_ms=timeout_ms))
    world.cluster.advance(timeout_ms - left_ms)
    if is_enough:
        batch.commit()
        query.check()
    else:
        text = not_committed(batch)
        assert f"{timeout_ms - left_ms} ms" in text
        assert f"{left_ms} ms" in text
        assert "'transactionTimeout'" in text


@pytest.mark.parametrize(("left_ms", "is_decided"), [(30_000, False), (30_001, True)])
def test_decision_that_took_too_long_to_write_is_not_committed(
    query: Query, world: FakeWorld, left_ms: int, is_decided: bool
) -> None:
    """Half of the required time must be left, otherwise the rows could be lost."""
    batch = prepared(query.first)
    world.cluster.advance(query.first.timeout_ms - 60_000)

    def wait() -> None:
        world.cluster.advance(60_000 - left_ms)

    with at("commit.decide.flush.after", wait):
        if is_decided:
            batch.commit()
            return
        assert f"'{query.first.commit_topic}'" in not_committed(batch)


def test_request_to_decide_is_not_repeated_too_late(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the required time must be left for the transactions of the tasks."""
    timeouts: list[float | None] = []
    original = FailpointClient.end_transactions

    def end(self: Any, ends: Any, *, timeout_ms: float | None = None) -> Any:
        timeouts.append(timeout_ms)
        return original(self, ends, timeout_ms=timeout_ms)

    monkeypatch.setattr(FailpointClient, "end_transactions", end)
    query.drive(query.first)
    assert timeouts == [query.first.timeout_ms - 30_000, None]


def test_failed_verification_decides_nothing(query: Query) -> None:
    batch = prepared(query.first)
    with (
        at("commit.verify.describe_transactions.before", unreachable),
        pytest.raises(BrokerUnreachableError),
    ):
        batch.commit()
    assert not is_decided(query)


def test_long_list_of_problems_is_cut(world: FakeWorld) -> None:
    query = Query.of(world, ([[b"x"]] * 13,))
    batch = query.first.begin(0)
    for partition in range(13):
        batch.task(partition, [b"x"])
    world.cluster.advance(query.first.timeout_ms + 1)
    with pytest.raises(BatchNotCommittedError) as caught:
        batch.commit()
    assert str(caught.value).count(f"'{query.first.sink_id}/") == 10


def unreachable() -> None:
    raise BrokerUnreachableError("the network")


# --- deciding ---


def test_fenced_driver_decides_nothing(query: Query) -> None:
    batch = prepared(query.first)
    with (
        at("commit.verify.after", lambda: query.restarted().begin(0)),
        pytest.raises(SinkFencedError) as caught,
    ):
        batch.commit()
    assert caught.value.transactional_id == query.first.sink_id
    assert not is_decided(query)


@pytest.mark.parametrize("version", [1, 2])
def test_timeout_of_the_decision_is_not_reported_as_a_fence(version: Literal[1, 2]) -> None:
    """The coordinator bumps the epoch, as a newer run does."""
    world = FakeWorld(version)
    batch = prepared(replace(Query.of(world, (ROWS,)).first, group_id="group"))
    offsets = SourceOffsets(hash="h", offsets={TopicPartition("source", 0): 5})
    with (
        at("commit.decide.produce.after", lambda: world.cluster.advance(DECISION_TIMEOUT_MS + 1)),
        pytest.raises(BatchNotCommittedError) as caught,
    ):
        batch.commit(offsets=offsets)
    assert caught.value.topic == batch.run.commit_topic
    batch.abort()
    batch.run.successor().write(0, *ROWS, offsets=offsets)
    assert world.committed(batch.run.topic) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("name", ["produce", "flush"])
def test_failed_write_of_the_decision(query: Query, name: str) -> None:
    batch = prepared(query.first)

    def fail() -> None:
        raise DeliveryError("__spark_commits-0: no answer")

    with at(f"commit.decide.{name}.after", fail), pytest.raises(DeliveryError):
        batch.commit()
    batch.abort()
    assert query.committed() == []
    query.drive(query.restarted())
    query.check()


@pytest.mark.parametrize(
    "answer", [ErrorCode.producer_fenced, ErrorCode.concurrent_transactions, None]
)
def test_outcome_is_unknown_after_any_error_code(
    query: Query, world: FakeWorld, answer: ErrorCode | None
) -> None:
    batch = prepared(query.first)
    world.cluster.respond_to_end_txn(query.first.sink_id, answer)
    fact = query.first.sink_id if answer is None else answer.name.upper()
    with pytest.raises(OutcomeUnknownError, match=fact) as raised:
        batch.commit()
    assert raised.value.transactional_id == query.first.sink_id


def test_outcome_is_unknown_after_a_failed_request(query: Query) -> None:
    batch = prepared(query.first)

    def fail() -> None:
        raise AuthorizationError("TRANSACTIONAL_ID_AUTHORIZATION_FAILED")

    with (
        at("commit.decide.end_transactions.after", fail),
        pytest.raises(OutcomeUnknownError, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED"),
    ):
        batch.commit()
    assert is_decided(query)


# --- after the decision ---


def test_failure_after_the_decision_notes_that_it_is_decided(query: Query) -> None:
    batch = prepared(query.first)
    with (
        at("commit.roll_forward.end_transactions.before", unreachable),
        pytest.raises(OutcomeUnknownError) as raised,
    ):
        batch.commit()
    (note,) = raised.value.__notes__
    assert entry_of(batch).task.batch in note.lower()
    query.restarted().begin(0)
    query.check()


def test_error_names_lost_rows(query: Query, world: FakeWorld) -> None:
    batch = prepared(query.first)
    entry = entry_of(batch).entry
    with (
        at("commit.roll_forward.before", lambda: world.cluster.advance(600_001)),
        pytest.raises(RowsLostError) as raised,
    ):
        batch.commit()
    text = str(raised.value)
    where = rf"{entry.transactional_id}\b.*{query.first.topic}-0@1\b"
    assert re.search(rf"\b2 rows\b.*\b0\b.*{where}", text)
    assert re.search(rf"\b1 row\b.*\b1\b.*{entry_of(batch, 1).entry.transactional_id}", text)
    assert not hasattr(raised.value, "__notes__")
    assert raised.value.transactional_id == query.first.sink_id
    assert not state_of(query).is_finished


def test_lost_rows_of_a_job_need_an_operator(query: Query, world: FakeWorld) -> None:
    batch = prepared(query.first, batch_id=None)
    with (
        at("commit.roll_forward.before", lambda: world.cluster.advance(600_001)),
        pytest.raises(RowsLostError, match="--recover --accept-loss"),
    ):
        batch.commit()


def test_failed_finished_mark_is_a_warning(query: Query, caplog: pytest.LogCaptureFixture) -> None:
    batch = prepared(query.first)
    with at("commit.mark.produce.before", unreachable):
        batch.commit()
    query.check()
    assert re.search(rf"'{query.first.sink_id}'.*the network", caplog.text)
    assert not state_of(query).is_finished
    query.restarted().begin(1)
    assert state_of(query).is_finished


def test_failed_sweep_is_a_warning(query: Query, caplog: pytest.LogCaptureFixture) -> None:
    batch = prepared(query.first)
    with at("commit.sweep.list_transactions.before", unreachable):
        batch.commit()
    query.check()
    assert re.search(rf"'{query.first.sink_id}'.*the network", caplog.text)


def test_duplicate_attempt_is_swept(query: Query, world: FakeWorld) -> None:
    batch = prepared(query.first)
    losing = entry_of(batch).entry.transactional_id
    batch.task(0, ROWS[0], attempt=1)
    batch.commit()
    assert world.cluster.state(losing) is not TransactionState.ONGOING
    assert world.cluster.is_stable(query.first.topic)
    query.check()


def test_attempts_of_other_batches_are_not_swept(query: Query, world: FakeWorld) -> None:
    batch = prepared(query.first)
    new = query.first.successor("run-9")
    later = list[Batch]()
    with (
        at("commit.sweep.before", lambda: later.append(prepared(new, 1))),  # takes over
        suppress(SinkFencedError),
    ):
        batch.commit()
    own_id = entry_of(later[0], 0).entry.transactional_id
    assert world.cluster.state(own_id) is TransactionState.ONGOING


def test_replaced_query_stops_after_its_commit(query: Query) -> None:
    batch = prepared(query.first)
    with (
        at("commit.sweep.before", lambda: query.restarted().begin(1)),
        pytest.raises(SinkFencedError) as raised,
    ):
        batch.commit()
    (note,) = raised.value.__notes__
    assert entry_of(batch).task.batch in note.lower()
    query.check()


def test_replaced_job_does_not_fail_after_its_commit(
    query: Query, caplog: pytest.LogCaptureFixture
) -> None:
    batch = prepared(query.first, batch_id=None)
    with at("commit.sweep.before", lambda: query.restarted().begin(1)):
        batch.commit()
    query.check()
    assert f"'{query.first.sink_id}'" in caplog.text


def test_job_that_was_killed_in_its_sweep_is_reported(query: Query) -> None:
    """The sweep can take minutes if a broker is unreachable."""
    batch = prepared(query.first, batch_id=None)
    with at("commit.sweep.list_transactions.before", kill), suppress(Killed):
        batch.commit()
    with pytest.raises(EarlierJobCommittedError):
        query.restarted().begin(None)
    query.check()


# --- replays ---


def test_replay_after_another_run_has_continued(query: Query) -> None:
    query.drive(query.first)
    batch = query.restarted().begin(0)
    for partition, rows in enumerate(ROWS):
        batch.task(partition, rows)
    query.restarted().write(1, [b"z"])
    with pytest.raises(SinkFencedError, match=r"decision 1\b.*decision 2\b"):
        batch.commit()


def test_missing_finished_mark_is_written_by_the_replay(query: Query) -> None:
    batch = prepared(query.first)
    with at("commit.mark.before", unreachable), suppress(BrokerUnreachableError):
        batch.commit()
    with at("plan.mark.produce.before", unreachable), suppress(BrokerUnreachableError):
        query.restarted().begin(0)
    again = query.restarted().begin(0)
    for partition, rows in enumerate(ROWS):
        again.task(partition, rows)
    again.commit()
    assert state_of(query).is_finished


def test_rows_that_are_not_lost_are_not_written_again(query: Query) -> None:
    """Planning never reports these rows as lost. If it did, no row would be written twice."""
    query.drive(query.first)
    again = query.restarted().begin(0)
    for partition, rows in enumerate(ROWS):
        again.task(partition, rows)
    written = replace(again, batch_id=1, messages={}).task(0, ROWS[0])
    assert isinstance(written, Prepared)
    again.messages[0] = replace(written, task=again.messages[0].task, decision_number=1)
    with pytest.raises(BatchNotCommittedError, match=r" 0\b"):
        again.commit()


def test_replay_with_other_rows(query: Query, caplog: pytest.LogCaptureFixture) -> None:
    query.drive(query.first)
    with pytest.raises(ReplayMismatchError) as raised:
        query.restarted().write(0, [b"a"], [b"c"])
    text = str(raised.value)
    assert re.search(r"\b2 rows\b.*\b3 rows\b", text)
    assert "onReplayMismatch" in text
    assert raised.value.transactional_id == query.first.sink_id
    query.restarted().successor(fail_on_replay_mismatch=False).write(0, [b"a"], [b"c"])
    assert re.search(r"\b2 rows\b.*\b3 rows\b", caplog.text)
    query.check()


# --- offsets ---


def test_batch_without_offsets_is_a_warning(
    query: Query, world: FakeWorld, caplog: pytest.LogCaptureFixture
) -> None:
    run = replace(query.first, group_id="group")
    for batch_id, offsets in enumerate((None, SourceOffsets(hash="h", offsets={}))):
        caplog.clear()
        run.write(batch_id, [b"a"], offsets=offsets)
        assert "'group'" in caplog.text
    assert world.cluster.groups == {}


def test_offsets_are_only_committed_with_a_group(query: Query, world: FakeWorld) -> None:
    offsets = SourceOffsets(hash="h", offsets={TopicPartition("source", 0): 5})
    query.first.write(0, *ROWS, offsets=offsets)
    assert world.cluster.groups == {}


# --- log messages and names of batches ---


def test_decision_and_commit_are_logged(query: Query, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, DECISION_DOMAIN):
        query.drive(query.first)
    name = rf"\b0\b.*\bquery\b.*\brun-1\b.*'{query.first.sink_id}'"
    assert re.search(rf"{name}.*decision 1\b.*\b3 rows\b.*\b2\b", caplog.text)
    assert re.search(rf"{name}.*\b3 rows\b.*\b{query.first.topic}\b", caplog.text)
    caplog.clear()
    query.restarted().write(0, *ROWS)
    assert re.search(r"decision 1\b.*\b3 rows\b", caplog.text)


@pytest.mark.parametrize(
    ("query_id", "batch_id", "facts"),
    [
        ("q", 5, r"\b5\b.*\bq\b.*\br\b"),
        (BATCH_JOB, 5, r"\bbatchId 5\b.*\br\b"),
        ("token", None, r"\br\b"),
    ],
)
def test_task_names_its_batch(query_id: str, batch_id: int | None, facts: str) -> None:
    task = Task(
        query_id=query_id, batch_id=batch_id, run="r", partition=0, attempt=0, task_attempt_id=0
    )
    assert re.search(facts, task.batch)
