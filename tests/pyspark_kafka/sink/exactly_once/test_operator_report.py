"""Tests of the report of a sink's state, which changes nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Literal, cast

import pytest

from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.kafka.transactions import ProducerIdAndEpoch, TransactionState
from pyspark_kafka.sink.exactly_once.decisions import Entry, RowTotals
from pyspark_kafka.sink.exactly_once.messages import Prepared
from pyspark_kafka.sink.exactly_once.names import is_task_id_of
from pyspark_kafka.sink.exactly_once.operator_repair import (
    RepairRequest,
    planned_actions,
)
from pyspark_kafka.sink.exactly_once.operator_report import (
    EntryState,
    RowRange,
    examine,
    row_ranges,
)
from pyspark_kafka.sink.exactly_once.operator_text import lines, range_text
from tests.conftest import TopicFactory
from tests.pyspark_kafka.sink.exactly_once.operator_scenarios import (
    COMMIT_TOPIC,
    RECOVER,
    decided_and_killed,
    lost,
    report_of,
    run_of,
)
from tests.pyspark_kafka.sink.exactly_once.runs import Killed, Run, World, at, kill
from tests.pyspark_kafka.sink.exactly_once.worlds import FakeWorld, RealWorld

LOOKS = {
    "describe_transactions",
    "list_transactions",
    "describe_topics",
    "list_offsets",
    "read_log",
}


@pytest.fixture(params=[1, 2], ids=["version-1", "version-2"])
def world(request: pytest.FixtureRequest) -> FakeWorld:
    """Return a fake cluster of each `transaction.version`."""
    return FakeWorld(cast("Literal[1, 2]", request.param))


@pytest.fixture
def real(bootstrap: str, topic: TopicFactory, unique_name: Callable[[], str]) -> RealWorld:
    return RealWorld(bootstrap, topic, lambda: unique_name().replace("[", "-").replace("]", "-"))


def check_decided(world: World) -> None:
    run = decided_and_killed(world)
    report = report_of(world, run.sink_id)
    [decision] = report.unfinished
    assert [one.state for one in decision.entries] == [EntryState.PREPARED] * 2
    assert [one.is_decided for one in report.open_transactions] == [True, True]
    assert report.leftover == ()
    [held] = report.held
    assert (held.partition, held.last_stable_offset) == (TopicPartition(run.topic, 0), 0)
    assert held.high_watermark == 3
    assert held.transactional_id == f"{run.sink_id}/0/0/0-0"
    assert held.started_ms is not None
    assert report.owner is not None
    assert report.owner.state in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)
    assert not report.needs_operator


def test_report_of_a_decided_batch(world: FakeWorld) -> None:
    check_decided(world)


def test_report_of_a_decided_batch_on_brokers(real: RealWorld) -> None:
    check_decided(real)


def decided_without_markers(world: FakeWorld) -> Run:
    """Return a run whose driver died before the markers of its decision were written."""
    run = run_of(world)
    batch = run.begin(0)
    batch.task(0, [b"a"])
    world.cluster.holds_markers = True
    with at("commit.roll_forward.before", kill), suppress(Killed):
        batch.commit()
    return run


def test_report_waits_for_the_markers_of_a_decision(world: FakeWorld) -> None:
    run = decided_without_markers(world)
    with world.client("operator") as client:
        report = examine(
            client,
            run.sink_id,
            COMMIT_TOPIC,
            now_ms=world.now_ms(),
            sleep=lambda _: world.cluster.write_markers(),
        )
    assert [one.is_decided for one in report.open_transactions] == [True]
    assert report.leftover == ()


def test_report_of_a_decision_without_markers(world: FakeWorld) -> None:
    run = decided_without_markers(world)
    with world.client("operator") as client:
        report = examine(
            client, run.sink_id, COMMIT_TOPIC, now_ms=world.now_ms(), sleep=lambda _: None
        )
    assert "state=PrepareCommit" in next(lines(report))


def check_undecided(world: World) -> None:
    run = run_of(world)
    run.begin(0).task(0, [b"a"])
    report = report_of(world, run.sink_id)
    assert report.decisions == ()
    [open_one] = report.leftover
    assert open_one.description.partitions == {TopicPartition(run.topic, 0)}
    assert [one.partition.topic for one in report.held] == [run.topic]


def test_report_of_an_undecided_batch(world: FakeWorld) -> None:
    check_undecided(world)


def test_report_of_an_undecided_batch_on_brokers(real: RealWorld) -> None:
    check_undecided(real)


def test_finished_batch_needs_no_repair(world: FakeWorld) -> None:
    run = run_of(world)
    run.write(0, [b"a"])
    report = report_of(world, run.sink_id)
    [decision] = report.decisions
    assert decision.is_finished
    assert (report.open_transactions, report.held) == ((), ())
    assert planned_actions(report, RECOVER) == ()


def test_report_has_the_decisions_of_every_query(world: FakeWorld) -> None:
    run = run_of(world)
    run.write(3, [b"a"])
    replace(run, query_id="other", run="run-9").write(7, [b"b"])
    found = [
        (one.decision.query_id, one.decision.batch_id)
        for one in report_of(world, run.sink_id).decisions
    ]
    assert found == [("other", 7), ("query", 3)]


def test_report_has_the_offsets_of_lost_rows(world: FakeWorld) -> None:
    run = run_of(world, 2)
    before, behind = TopicPartition(run.topic, 0), TopicPartition(run.topic, 1)
    run.write(0, [b"x"] * 1_500)
    with at("commit.roll_forward.before", kill), suppress(Killed):
        run.write(1, [b"a", b"b"], [b"c"])
    others = run_of(world)
    replace(others, topic=run.topic).write(0, [b"z"] * 2_000)
    world.cluster.advance(run.timeout_ms + 1)
    report = report_of(world, run.sink_id)
    assert report.needs_operator
    [decision] = report.unfinished
    assert [one.state for one in decision.entries] == [EntryState.LOST] * 2
    ranges = [rows for one in decision.entries for rows in one.rows]
    log = {p: world.cluster.log(p) for p in (before, behind)}
    for rows in ranges:
        wrote = [
            batch
            for batch in log[rows.partition].batches
            if batch.last_offset == rows.last_offset and batch.ends_with is None
        ]
        assert rows.first_offset == wrote[0].base_offset
    assert len(ranges) == 2


def test_first_row_is_found_before_many_others(world: FakeWorld) -> None:
    """The first row is more than one window before the end, among rows of other producers."""
    run = run_of(world)
    batch = run.begin(0)
    with run.process("task") as client:
        other = run_of(world)
        with at("task.produce.flush.before", lambda: other_writes(other, run.topic)):
            batch.task(0, [b"a"])
        assert client is not None
    batch.task(1, [b"b"])
    with at("commit.roll_forward.before", kill), suppress(Killed):
        batch.commit()
    world.cluster.advance(run.timeout_ms + 1)
    [decision] = report_of(world, run.sink_id).unfinished
    assert [one.rows[0].first_offset for one in decision.entries] == [0, 5_001 + 1]


def other_writes(other: Run, topic: str) -> None:
    replace(other, topic=topic).write(0, [b"z"] * 5_000)


def test_rows_are_counted_once_across_windows(world: FakeWorld) -> None:
    """The 1,500 rows lie in two windows; the first row and rows of others are before them."""
    topic = world.topic()
    log = world.cluster.log(TopicPartition(topic, 0))
    ours, others = (ProducerIdAndEpoch(producer_id=n, producer_epoch=3) for n in (7, 8))
    log.append(others, [(None, b"")] * 10)
    log.append(ours, [(None, b"")], transactional=True)
    log.append(others, [(None, b"")] * 9_000)
    last_offset = log.append(ours, [(None, b"")] * 1_500, transactional=True)
    entry = Entry(
        partition=0,
        transactional_id="x/0/0/0-0",
        producer=ours,
        version=2,
        started_ms=0,
        totals=RowTotals(row_count=1_501, checksum=0),
        last_offsets={TopicPartition(topic, 0): last_offset},
    )
    client = world.client("operator")
    assert [rows.first_offset for rows in row_ranges(client, entry)] == [10]
    log.delete_before(20)
    assert [rows.first_offset for rows in row_ranges(client, entry)] == [None]


def test_first_offset_of_deleted_rows_is_unknown(world: FakeWorld) -> None:
    run = lost(world)
    partition = TopicPartition(run.topic, 0)
    world.cluster.log(partition).delete_before(1)
    [decision] = report_of(world, run.sink_id).unfinished
    by_partition = {one.entry.partition: one.rows for one in decision.entries}
    assert by_partition[1] == (RowRange(partition=partition, first_offset=2, last_offset=2),)
    world.cluster.log(partition).delete_before(3)
    [decision] = report_of(world, run.sink_id).unfinished
    assert [one.rows[0].first_offset for one in decision.entries] == [None, None]
    assert re.match(rf"{partition} .*\b1\b", range_text(decision.entries[0].rows[0]))


def test_report_of_rows_in_a_deleted_topic(world: FakeWorld) -> None:
    run = lost(world)
    for transactional_id in list(world.cluster.ids):
        world.cluster.expire(transactional_id)
    del world.cluster.topics[run.topic]
    [decision] = report_of(world, run.sink_id).unfinished
    assert [one.state for one in decision.entries] == [EntryState.UNKNOWN] * 2
    assert [one.rows[0].last_offset for one in decision.entries] == [1, 2]


def test_report_names_another_application_that_holds_readers(world: FakeWorld) -> None:
    """The partition waits for the transaction of another application, which began earlier."""
    run, other = run_of(world), run_of(world)
    replace(other, topic=run.topic).begin(0).task(0, [b"z"])
    run.begin(0).task(0, [b"a"])
    [held] = report_of(world, run.sink_id).held
    assert held.transactional_id is None
    assert held.holder is not None
    text = "\n".join(lines(report_of(world, run.sink_id)))
    assert re.search(rf"^held .*\bproducer_id={held.holder.producer_id}$", text, re.MULTILINE)


def test_report_changes_nothing(world: FakeWorld) -> None:
    run = lost(world)
    world.cluster.requests.clear()
    report = report_of(world, run.sink_id)
    planned_actions(report, RepairRequest(forget=True, accept_loss=True))
    assert {request.name for request in world.cluster.requests} <= LOOKS


def test_report_of_an_unknown_sink(world: FakeWorld) -> None:
    assert report_of(world, "nobody").is_unknown
    run = run_of(world)
    run.begin(0)
    assert not report_of(world, run.sink_id).is_unknown


def test_ids_that_are_not_of_tasks_are_ignored(world: FakeWorld) -> None:
    run = run_of(world)
    run.write(0, [b"a"])
    known_ids = report_of(world, run.sink_id).known_ids
    with world.client("somebody") as client:
        client.init_producer_id(f"{run.sink_id}/report", timeout_ms=60_000)
    assert report_of(world, run.sink_id).known_ids == known_ids == 1


def test_partition_without_rows_holds_no_readers(world: FakeWorld) -> None:
    run = run_of(world, 2)
    task = run.begin(0).task(0, [b"a"])
    assert isinstance(task, Prepared)
    empty = TopicPartition(run.topic, 1)
    world.cluster.add_partition(
        task.entry.transactional_id, task.entry.producer, empty, task.entry.version
    )
    report = report_of(world, run.sink_id)
    assert empty in report.leftover[0].description.partitions
    assert [held.partition for held in report.held] == [TopicPartition(run.topic, 0)]


def test_report_checks_the_acl_on_task_ids(world: FakeWorld) -> None:
    """Lists silently omit ids without an ACL, but DescribeTransactions rejects such an id."""
    run = run_of(world)
    run.begin(0)
    world.cluster.requests.clear()
    report_of(world, run.sink_id)
    described = [r.subject for r in world.cluster.requests if r.name == "describe_transactions"]
    assert any(is_task_id_of(name, run.sink_id) for name in described[0].split(","))


def test_another_id_with_the_same_beginning_is_not_looked_at(world: FakeWorld) -> None:
    run = replace(run_of(world), sink_id="sink")
    replace(run, sink_id="sink-2").begin(0).task(0, [b"a"])
    run.write(0, [b"b"])
    assert report_of(world, "sink").open_transactions == ()
