"""What a batch is decided on, what is told when it is not, and what cannot undo a decision."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from pyspark_kafka.errors import (
    AccessError,
    BatchNotCommittedError,
    BrokerUnreachableError,
    DeliveryError,
    OutcomeUnknownError,
    ReplayMismatchError,
    RowsLostError,
    SinkFencedError,
)
from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.kafka.transactions import EndTransaction, ProducerIdAndEpoch, TransactionState
from pyspark_kafka.sink.exactly_once.commit_topic import CommitTopic
from pyspark_kafka.sink.exactly_once.decisions import BATCH_JOB, QueryState, RowTotals
from pyspark_kafka.sink.exactly_once.messages import Prepared, Task, TaskMessage, TaskResults
from pyspark_kafka.sink.exactly_once.source_offsets import SourceOffsets
from tests.pyspark_kafka.sink.exactly_once.play import Batch, Killed, Rows, Run, at, kill
from tests.pyspark_kafka.sink.exactly_once.query import Query
from tests.pyspark_kafka.sink.exactly_once.worlds import FakeWorld

ROWS: tuple[Rows, ...] = ([b"a", b"b"], [b"c"])
DECISION_DOMAIN = "pyspark_kafka.sink.exactly_once.commit"


@pytest.fixture
def world() -> FakeWorld:
    """A cluster in memory."""
    return FakeWorld()


@pytest.fixture
def query(world: FakeWorld) -> Query:
    """A query with one batch."""
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
    """What the commit topic says."""
    run = query.first
    with run.process("reader") as client:
        return CommitTopic(client, run.options.commit_topic).read(run.sink_id)[run.query_id]


def is_decided(query: Query) -> bool:
    run = query.first
    with run.process("reader") as client:
        return run.query_id in CommitTopic(client, run.options.commit_topic).read(run.sink_id)


# --- what is decided ---


def test_the_decision_names_all(query: Query, world: FakeWorld) -> None:
    batch = prepared(query.first)
    batch.commit(offsets=SourceOffsets(hash="h", offsets={}))
    state = state_of(query)
    decision = state.decision
    assert state.is_finished
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


def test_an_empty_batch_is_decided(query: Query) -> None:
    query.first.write(0, [], [])
    assert state_of(query).is_finished
    assert state_of(query).decision.totals == RowTotals()
    assert state_of(query).decision.batch_id == 0


def test_an_empty_job_that_nobody_can_repeat_is_not(query: Query) -> None:
    query.first.write(None, [], [])
    assert not is_decided(query)


def test_a_replay_decides_nothing(query: Query) -> None:
    query.drive(query.first)
    before = state_of(query)
    query.restarted().write(0, *ROWS)
    assert state_of(query) == before


def test_a_supplement_is_of_the_run_that_wrote_it(query: Query, world: FakeWorld) -> None:
    with at("commit.roll_forward.before", kill), suppress(Killed):
        query.drive(query.first)
    world.cluster.advance(query.first.timeout_ms + 1)
    first = state_of(query).decision
    query.drive(query.restarted())
    second = state_of(query).decision
    assert (second.number, second.run) == (2, "run-2")
    assert (second.totals, second.batch_id) == (first.totals, first.batch_id)
    assert all("/run-2/" in entry.transactional_id for entry in second.entries)
    assert state_of(query).is_finished
    query.check()


def test_a_supplement_that_cannot_be_decided_does_not_deny_what_was(
    query: Query, world: FakeWorld
) -> None:
    with at("commit.roll_forward.before", kill), suppress(Killed):
        query.drive(query.first)
    world.cluster.advance(query.first.timeout_ms + 1)
    batch = prepared(query.restarted())
    world.cluster.advance(query.first.timeout_ms + 1)
    assert "Of what decision 1 of it has lost, nothing will be seen" in not_committed(batch)


# --- what is not: tasks that do not agree ---


def refused(query: Query, messages: list[Any], match: str) -> None:
    """The batch of these messages fails undecided."""
    with pytest.raises(BatchNotCommittedError, match=match) as raised:
        TaskResults.of(query.first.sink_id, messages)
    assert "Nothing of it will be seen" in str(raised.value)


def test_every_task_has_to_answer(query: Query) -> None:
    messages: list[TaskMessage | None] = [*prepared(query.first).messages.values()]
    refused(query, [], "no task has said")
    refused(query, [None, None], "the tasks of partitions 0, 1 have not said")
    refused(query, [messages[0], None], "the tasks of partitions 1 have not said")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (
            {"query_id": "other"},
            "the query of partition 0 is query, and that of partition 1 is other",
        ),
        ({"batch_id": 4}, "the batch id of partition 0 is 0, and that of partition 1 is 4"),
        ({"run": "run-9"}, "the run of partition 0 is run-1, and that of partition 1 is run-9"),
    ],
)
def test_tasks_are_of_one_batch(query: Query, change: Mapping[str, Any], what: str) -> None:
    one, two = prepared(query.first).messages.values()
    refused(query, [one, replace(two, task=replace(two.task, **change))], what)


def test_tasks_were_planned_together(query: Query) -> None:
    one, two = prepared(query.first).messages.values()
    other = ProducerIdAndEpoch(producer_id=1, producer_epoch=9)
    refused(query, [one, replace(two, owner=other)], "the owner of .* producer id 1, epoch 9")
    refused(query, [one, replace(two, version=1)], "the transaction version of partition 0 is 2")
    refused(query, [one, replace(two, last_number=5)], "the last decision of .* is 5")


def test_a_partition_answers_once(query: Query) -> None:
    batch = prepared(query.first)
    one, two = batch.messages.values()
    again = batch.task(1, ROWS[1], attempt=1)
    refused(query, [one, two, again], "more than one task answered for partition 1")


def test_a_transaction_is_the_tasks_own(query: Query) -> None:
    batch = prepared(query.first)
    one, two = entry_of(batch, 0), entry_of(batch, 1)
    for transactional_id in ("other/run-1/1/0-1", "x/run-2/1/0-1", query.first.sink_id, "x"):
        strange = replace(two, entry=replace(two.entry, transactional_id=transactional_id))
        refused(query, [one, strange], f"reports the transaction '{transactional_id}'")
    strange = replace(two, entry=replace(two.entry, partition=4))
    refused(query, [one, strange], "of partition 4, which cannot be its own")


def test_some_tasks_cannot_know_of_a_decision_alone(query: Query) -> None:
    one, two = prepared(query.first).messages.values()
    assert isinstance(one, Prepared)
    refused(query, [replace(one, decision_number=3), two], r"decisions 3, None")


# --- what is not: transactions that are not as they were left ---


def not_committed(batch: Batch) -> str:
    """What the failure says; nothing was decided, and abort() makes room for the next try."""
    with pytest.raises(BatchNotCommittedError) as raised:
        batch.commit()
    batch.abort()
    batch.run.write(batch.batch_id, *ROWS)
    assert batch.run.world.committed(batch.run.topic) == [b"a", b"b", b"c"]
    return str(raised.value)


def test_a_transaction_that_nobody_knows(query: Query, world: FakeWorld) -> None:
    batch = prepared(query.first)
    transactional_id = entry_of(batch).entry.transactional_id
    world.cluster.advance(query.first.timeout_ms + 1)
    world.cluster.expire(transactional_id)
    with pytest.raises(
        BatchNotCommittedError, match="is not known to the brokers any more"
    ) as raised:
        batch.commit()
    text = str(raised.value)
    assert text.startswith("batch 0 of query query (run run-1)")
    assert f"'{transactional_id}' (partition 0, 2 rows)" in text
    assert "partition 1" in text
    assert not is_decided(query)


def test_a_transaction_that_another_has_taken(query: Query, world: FakeWorld) -> None:
    batch = prepared(query.first)
    other = world.cluster.client("other")
    other.init_producer_id(entry_of(batch).entry.transactional_id, timeout_ms=30_000)
    assert "was taken by another (producer id" in not_committed(batch)


def test_a_transaction_that_is_over() -> None:
    """Under version 1 the producer keeps its epoch."""
    query = Query.of(FakeWorld(1), (ROWS,))
    batch = prepared(query.first)
    entry = entry_of(batch).entry
    end = EndTransaction(
        transactional_id=entry.transactional_id, producer=entry.producer, is_commit=False, version=1
    )
    with query.first.process("other") as client:
        client.end_transactions([end])
    assert "is not open any more, but CompleteAbort" in not_committed(batch)


def test_a_transaction_that_goes_on(query: Query, world: FakeWorld) -> None:
    """Somebody has written more with it than the task has said."""
    batch = prepared(query.first)
    entry = entry_of(batch).entry
    world.cluster.add_partition(
        entry.transactional_id, entry.producer, TopicPartition("elsewhere", 4), 2
    )
    text = not_committed(batch)
    assert f"is of the partitions elsewhere-4, {query.first.topic}-0" in text
    assert f"its task has written to {query.first.topic}-0" in text


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
def test_the_time_that_has_to_be_left(
    query: Query, world: FakeWorld, timeout_ms: int, left_ms: int, is_enough: bool
) -> None:
    """A minute, and of a short timeout a quarter."""
    batch = prepared(replace(query.first, timeout_ms=timeout_ms))
    world.cluster.advance(timeout_ms - left_ms)
    if is_enough:
        batch.commit()
        query.check()
    else:
        text = not_committed(batch)
        assert f"is {timeout_ms - left_ms} ms old and will time out in {left_ms} ms" in text
        assert "'transactionTimeout'" in text


@pytest.mark.parametrize(("left_ms", "is_decided"), [(30_000, False), (30_001, True)])
def test_a_decision_that_took_long_to_write_is_not_made(
    query: Query, world: FakeWorld, left_ms: int, is_decided: bool
) -> None:
    """Half of the time that had to be left before is left, or its rows would be lost."""
    batch = prepared(query.first)
    world.cluster.advance(query.first.timeout_ms - 60_000)

    def wait() -> None:
        world.cluster.advance(60_000 - left_ms)

    with at("commit.decide.flush.after", wait):
        if is_decided:
            batch.commit()
            return
        text = not_committed(batch)
    assert "writing down what is to be committed took so long" in text


def test_a_look_that_fails_decides_nothing(query: Query) -> None:
    batch = prepared(query.first)
    with (
        at("commit.verify.describe_transactions.before", unreachable),
        pytest.raises(BrokerUnreachableError),
    ):
        batch.commit()
    assert not is_decided(query)


def test_many_faults_are_not_all_listed(world: FakeWorld) -> None:
    query = Query.of(world, ([[b"x"]] * 13,))
    batch = query.first.begin(0)
    for partition in range(13):
        batch.task(partition, [b"x"])
    world.cluster.advance(query.first.timeout_ms + 1)
    with pytest.raises(BatchNotCommittedError, match=r"; and 3 more\. Nothing"):
        batch.commit()


def unreachable() -> None:
    raise BrokerUnreachableError("the network")


# --- deciding ---


def test_a_fenced_driver_decides_nothing(query: Query) -> None:
    batch = prepared(query.first)
    with (
        at("commit.verify.after", lambda: query.restarted().begin(0)),
        pytest.raises(SinkFencedError, match="another run of this transactionalId has taken over"),
    ):
        batch.commit()
    assert not is_decided(query)


@pytest.mark.parametrize("name", ["produce", "flush"])
def test_a_decision_that_cannot_be_written(query: Query, name: str) -> None:
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
def test_any_answer_but_none_is_unknown(
    query: Query, world: FakeWorld, answer: ErrorCode | None
) -> None:
    batch = prepared(query.first)
    world.cluster.answer(query.first.sink_id, answer)
    said = "nothing" if answer is None else answer.name.upper()
    with pytest.raises(OutcomeUnknownError, match=f"the brokers answered {said}") as raised:
        batch.commit()
    assert "Do not write these rows by other means" in str(raised.value)


def test_a_request_that_fails_leaves_the_outcome_unknown(query: Query) -> None:
    batch = prepared(query.first)

    def fail() -> None:
        raise AccessError("TRANSACTIONAL_ID_AUTHORIZATION_FAILED")

    with (
        at("commit.decide.end_transactions.after", fail),
        pytest.raises(OutcomeUnknownError, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED"),
    ):
        batch.commit()
    assert is_decided(query)


# --- behind the decision ---


def notes(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def test_a_failure_behind_the_decision_says_that_it_stands(query: Query) -> None:
    batch = prepared(query.first)
    with (
        at("commit.roll_forward.end_transactions.before", unreachable),
        pytest.raises(OutcomeUnknownError) as raised,
    ):
        batch.commit()
    assert "batch 0 of query query (run run-1) is decided all the same" in notes(raised.value)
    query.restarted().begin(0)
    query.check()


def test_lost_rows_are_named(query: Query, world: FakeWorld) -> None:
    batch = prepared(query.first)
    entry = entry_of(batch).entry
    with (
        at("commit.roll_forward.before", lambda: world.cluster.advance(600_001)),
        pytest.raises(RowsLostError) as raised,
    ):
        batch.commit()
    text = notes(raised.value)
    where = f"{entry.transactional_id}, last offsets {query.first.topic}-0@1"
    assert f"2 rows of partition 0 ({where})" in text
    assert "1 rows of partition 1" in text
    assert "Run it again (restart the query): that writes the lost rows alone" in text
    assert "decided all the same" not in text
    assert not state_of(query).is_finished


def test_lost_rows_of_a_job_that_nobody_can_repeat(query: Query, world: FakeWorld) -> None:
    batch = prepared(query.first, batch_id=None)
    with (
        at("commit.roll_forward.before", lambda: world.cluster.advance(600_001)),
        pytest.raises(RowsLostError, match="cannot be repeated in part: write these rows again by"),
    ):
        batch.commit()


def test_a_mark_that_is_lost_costs_a_warning(
    query: Query, caplog: pytest.LogCaptureFixture
) -> None:
    batch = prepared(query.first)
    with at("commit.mark.produce.before", unreachable):
        batch.commit()
    query.check()
    assert "could not be marked as finished" in caplog.text
    assert not state_of(query).is_finished
    query.restarted().begin(1)
    assert state_of(query).is_finished


def test_a_sweep_that_fails_costs_a_warning(query: Query, caplog: pytest.LogCaptureFixture) -> None:
    batch = prepared(query.first)
    with at("commit.sweep.list_transactions.before", unreachable):
        batch.commit()
    query.check()
    assert "could not be ended" in caplog.text


def test_a_losing_attempt_is_swept(query: Query, world: FakeWorld) -> None:
    batch = prepared(query.first)
    losing = entry_of(batch).entry.transactional_id
    batch.task(0, ROWS[0], attempt=1)
    batch.commit()
    assert world.cluster.state(losing) is not TransactionState.ONGOING
    assert world.cluster.is_stable(query.first.topic)
    query.check()


def test_attempts_of_other_runs_are_not_swept(query: Query, world: FakeWorld) -> None:
    batch = prepared(query.first)
    new = query.first.successor("run-9")
    with at("commit.sweep.before", lambda: prepared(new, 1)), suppress(SinkFencedError):
        batch.commit()
    assert world.cluster.state(f"{query.first.sink_id}/run-9/0/0-2") is TransactionState.ONGOING


def test_a_query_that_was_replaced_stops_behind_its_commit(query: Query) -> None:
    batch = prepared(query.first)
    with (
        at("commit.sweep.before", lambda: query.restarted().begin(1)),
        pytest.raises(SinkFencedError) as raised,
    ):
        batch.commit()
    assert "is decided all the same" in notes(raised.value)
    query.check()


def test_a_job_that_nobody_can_repeat_does_not_fail_behind_its_commit(
    query: Query, caplog: pytest.LogCaptureFixture
) -> None:
    batch = prepared(query.first, batch_id=None)
    with at("commit.sweep.before", lambda: query.restarted().begin(1)):
        batch.commit()
    query.check()
    assert "meanwhile another has taken over" in caplog.text


# --- replayed_number ---


def test_a_replay_behind_which_another_run_has_gone_on(query: Query) -> None:
    query.drive(query.first)
    batch = query.restarted().begin(0)
    for partition, rows in enumerate(ROWS):
        batch.task(partition, rows)
    query.restarted().write(1, [b"z"])
    with pytest.raises(
        SinkFencedError, match=r"is a replay of decision 1 .* has decision 2 by now"
    ):
        batch.commit()


def test_a_mark_that_is_missing_is_made_up_for(query: Query) -> None:
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


def test_what_is_not_lost_by_now_is_not_written_again(query: Query) -> None:
    """A task cannot be told that rows are lost and they are not; but if, nothing is doubled."""
    query.drive(query.first)
    again = query.restarted().begin(0)
    for partition, rows in enumerate(ROWS):
        again.task(partition, rows)
    written = replace(again, batch_id=1, messages={}).task(0, ROWS[0])
    assert isinstance(written, Prepared)
    again.messages[0] = replace(written, task=again.messages[0].task, decision_number=1)
    with pytest.raises(
        BatchNotCommittedError, match="partitions 0 again, which are not lost by now"
    ):
        again.commit()


def test_a_replay_that_differs_is_told(query: Query, caplog: pytest.LogCaptureFixture) -> None:
    query.drive(query.first)
    with pytest.raises(ReplayMismatchError) as raised:
        query.restarted().write(0, [b"a"], [b"c"])
    text = str(raised.value)
    assert "it has 2 rows with checksum" in text
    assert "and 3 with checksum" in text
    assert "onReplayMismatch" in text
    query.restarted().successor(fail_on_replay_mismatch=False).write(0, [b"a"], [b"c"])
    assert "rows that have only come now are not in Kafka" in caplog.text
    query.check()


# --- offsets ---


def test_a_batch_without_offsets_is_told(
    query: Query, world: FakeWorld, caplog: pytest.LogCaptureFixture
) -> None:
    run = replace(query.first, group_id="group")
    for batch_id, offsets in enumerate((None, SourceOffsets(hash="h", offsets={}))):
        caplog.clear()
        run.write(batch_id, [b"a"], offsets=offsets)
        assert "no offsets to commit to group 'group'" in caplog.text
    assert world.cluster.groups == {}


def test_offsets_are_not_committed_unless_asked(query: Query, world: FakeWorld) -> None:
    offsets = SourceOffsets(hash="h", offsets={TopicPartition("source", 0): 5})
    query.first.write(0, *ROWS, offsets=offsets)
    assert world.cluster.groups == {}


# --- what is logged, and how batches are called ---


def test_the_log_says_what_was_decided(query: Query, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, DECISION_DOMAIN):
        query.drive(query.first)
    name = f"batch 0 of query query (run run-1), transactionalId '{query.first.sink_id}',"
    assert f"{name} is decided (decision 1): 3 rows in 2 transactions" in caplog.text
    assert f"{name} is committed: 3 rows to {query.first.topic}" in caplog.text
    caplog.clear()
    query.restarted().write(0, *ROWS)
    assert "was committed before (decision 1): its 3 rows were counted again" in caplog.text


@pytest.mark.parametrize(
    ("query_id", "batch_id", "name"),
    [
        ("q", 5, "batch 5 of query q (run r)"),
        (BATCH_JOB, 5, "the batch job with batchId 5 (run r)"),
        ("token", None, "the batch job (run r)"),
    ],
)
def test_names_of_batches(query_id: str, batch_id: int | None, name: str) -> None:
    task = Task(
        query_id=query_id, batch_id=batch_id, run="r", partition=0, attempt=0, task_attempt_id=0
    )
    assert task.batch == name
