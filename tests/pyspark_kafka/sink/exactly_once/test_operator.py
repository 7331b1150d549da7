"""The operator's command: what it finds, what it would do and does, and how it says so."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Literal, cast

import pytest

from pyspark_kafka import __main__ as command
from pyspark_kafka.client.base import TopicPartition
from pyspark_kafka.client.transactions import TransactionState
from pyspark_kafka.errors import (
    AuthenticationFailed,
    BrokerUnreachable,
    CommitTopicError,
    ExactlyOnceError,
    Fenced,
    OutcomeUnknown,
)
from pyspark_kafka.sink.exactly_once import operator
from pyspark_kafka.sink.exactly_once.commit_topic import CommitTopic
from pyspark_kafka.sink.exactly_once.messages import Prepared
from pyspark_kafka.sink.exactly_once.operator import (
    Wish,
    carry_out,
    check,
    intentions,
    signs_of_life,
)
from pyspark_kafka.sink.exactly_once.operator_report import (
    Report,
    RowRange,
    Standing,
    examine,
)
from pyspark_kafka.sink.exactly_once.operator_text import as_json, duration_text, lines, range_text
from pyspark_kafka.sink.exactly_once.roll_forward import roll_forward
from tests.conftest import TopicFactory
from tests.pyspark_kafka.sink.exactly_once.play import Killed, Run, World, at, kill
from tests.pyspark_kafka.sink.exactly_once.worlds import FakeWorld, RealWorld

COMMIT_TOPIC = "__spark_commits"
RECOVER, FORGET = Wish(), Wish(forgets=True)
LOOKS = {
    "describe_transactions",
    "list_transactions",
    "describe_topics",
    "list_offsets",
    "read_log",
}


@pytest.fixture(params=[1, 2], ids=["version-1", "version-2"])
def world(request: pytest.FixtureRequest) -> FakeWorld:
    """Of each `transaction.version`."""
    return FakeWorld(cast("Literal[1, 2]", request.param))


@pytest.fixture
def real(bootstrap: str, topic: TopicFactory, unique_name: Callable[[], str]) -> RealWorld:
    """The cluster of the run."""
    return RealWorld(bootstrap, topic, lambda: unique_name().replace("[", "-").replace("]", "-"))


def run_of(world: World, partitions: int = 1) -> Run:
    return Run(world=world, topic=world.topic(partitions), x=world.name())


def look(world: World, x: str) -> Report:
    with world.client("operator") as client:
        return examine(client, x, COMMIT_TOPIC, now_ms=world.now_ms())


def do(world: World, x: str, wish: Wish) -> list[str]:
    """What the operator is told that was done."""
    report, done = look(world, x), list[str]()
    check(report, wish, names_topic=False)
    with world.client("operator") as client:
        carry_out(client, report, wish, done.append)
    return done


def decided_and_killed(world: World, *, partitions: int = 1) -> Run:
    """A run whose driver died when its batch 0 of 3 rows was decided, and not committed yet."""
    run = run_of(world, partitions)
    with at("commit.roll_forward.before", kill), suppress(Killed):
        run.write(0, [b"a", b"b"], [b"c"])
    return run


def lost(world: FakeWorld) -> Run:
    """The same, and its transactions have timed out."""
    run = decided_and_killed(world)
    world.cluster.advance(run.timeout_ms + 1)
    return run


# --- looking ---


def check_decided(world: World) -> None:
    run = decided_and_killed(world)
    report = look(world, run.x)
    [decision] = report.unfinished
    assert [one.standing for one in decision.entries] == [Standing.PREPARED] * 2
    assert [one.is_decided for one in report.open_transactions] == [True, True]
    assert report.leftover == ()
    [held] = report.held
    assert (held.partition, held.last_stable_offset) == (TopicPartition(run.topic, 0), 0)
    assert held.high_watermark == 3
    assert held.transactional_id == f"{run.x}/run-1/0/0-0"
    assert held.started_ms is not None
    assert report.owner is not None
    assert report.owner.state in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)
    assert not report.needs_judgement


def test_a_decided_batch_is_found_waiting(world: FakeWorld) -> None:
    check_decided(world)


def test_a_decided_batch_is_found_waiting_on_brokers(real: RealWorld) -> None:
    check_decided(real)


def check_undecided(world: World) -> None:
    run = run_of(world)
    run.begin(0).task(0, [b"a"])
    report = look(world, run.x)
    assert report.decisions == ()
    [open_one] = report.leftover
    assert open_one.description.partitions == {TopicPartition(run.topic, 0)}
    assert [one.partition.topic for one in report.held] == [run.topic]
    assert not report.is_two_phase


def test_an_undecided_batch_is_found(world: FakeWorld) -> None:
    check_undecided(world)


def test_an_undecided_batch_is_found_on_brokers(real: RealWorld) -> None:
    check_undecided(real)


def test_a_finished_batch_leaves_nothing_to_do(world: FakeWorld) -> None:
    run = run_of(world)
    run.write(0, [b"a"])
    report = look(world, run.x)
    [decision] = report.decisions
    assert decision.is_finished
    assert (report.open_transactions, report.held) == ((), ())
    assert intentions(report, RECOVER) == ()


def test_decisions_of_every_query_are_found(world: FakeWorld) -> None:
    run = run_of(world)
    run.write(3, [b"a"])
    replace(run, query_id="other", run="run-9").write(7, [b"b"])
    found = [(one.decision.query_id, one.decision.batch_id) for one in look(world, run.x).decisions]
    assert found == [("other", 7), ("query", 3)]


def test_lost_rows_are_named(world: FakeWorld) -> None:
    run = run_of(world, 2)
    before, behind = TopicPartition(run.topic, 0), TopicPartition(run.topic, 1)
    run.write(0, [b"x"] * 1_500)
    with at("commit.roll_forward.before", kill), suppress(Killed):
        run.write(1, [b"a", b"b"], [b"c"])
    others = run_of(world)
    replace(others, topic=run.topic).write(0, [b"z"] * 2_000)
    world.cluster.advance(run.timeout_ms + 1)
    report = look(world, run.x)
    assert report.needs_judgement
    [decision] = report.unfinished
    assert [one.standing for one in decision.entries] == [Standing.LOST] * 2
    ranges = [rows for one in decision.entries for rows in one.rows]
    log = {p: world.cluster.log(p) for p in (before, behind)}
    for rows in ranges:
        wrote = [
            batch
            for batch in log[rows.partition].batches
            if batch.last_offset == rows.last_offset and batch.verdict is None
        ]
        assert rows.first_offset == wrote[0].base_offset
    assert len(ranges) == 2


def test_rows_are_searched_behind_much_else(world: FakeWorld) -> None:
    """The first row of a transaction lies further back than one window, among others' rows."""
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
    [decision] = look(world, run.x).unfinished
    assert [one.rows[0].first_offset for one in decision.entries] == [0, 5_001 + 1]


def other_writes(other: Run, topic: str) -> None:
    replace(other, topic=topic).write(0, [b"z"] * 5_000)


def test_rows_whose_beginning_is_gone_are_named_by_their_end(world: FakeWorld) -> None:
    run = lost(world)
    partition = TopicPartition(run.topic, 0)
    world.cluster.log(partition).delete_before(1)
    [decision] = look(world, run.x).unfinished
    by_partition = {one.entry.partition: one.rows for one in decision.entries}
    assert by_partition[1] == (RowRange(partition=partition, first_offset=2, last_offset=2),)
    world.cluster.log(partition).delete_before(3)
    [decision] = look(world, run.x).unfinished
    assert [one.rows[0].first_offset for one in decision.entries] == [None, None]
    assert range_text(decision.entries[0].rows[0]).endswith(
        "-0 up to offset 1 (the first is not found any more)"
    )


def test_rows_of_a_deleted_topic_are_named_all_the_same(world: FakeWorld) -> None:
    run = lost(world)
    for transactional_id in list(world.cluster.ids):
        world.cluster.expire(transactional_id)
    del world.cluster.topics[run.topic]
    [decision] = look(world, run.x).unfinished
    assert [one.standing for one in decision.entries] == [Standing.UNKNOWN] * 2
    assert [one.rows[0].last_offset for one in decision.entries] == [1, 2]


def test_readers_held_back_by_others_are_told_apart(world: FakeWorld) -> None:
    """The partition of ours waits for another application's transaction, which came first."""
    run, other = run_of(world), run_of(world)
    replace(other, topic=run.topic).begin(0).task(0, [b"z"])
    run.begin(0).task(0, [b"a"])
    [held] = look(world, run.x).held
    assert held.transactional_id is None
    assert held.holder is not None
    assert "another application" in "\n".join(lines(look(world, run.x)))


def test_a_two_phase_sink_is_recognised(world: FakeWorld) -> None:
    world.cluster.enables_two_phase_commit = True
    run = replace(run_of(world), two_phase_commit=True)
    run.begin(0).task(0, [b"a"])
    report = look(world, run.x)
    assert report.is_two_phase
    assert "times_out=never" in "\n".join(lines(report))


def test_looking_changes_nothing(world: FakeWorld) -> None:
    run = lost(world)
    world.cluster.requests.clear()
    report = look(world, run.x)
    intentions(report, Wish(forgets=True, accepts_loss=True))
    assert {request.name for request in world.cluster.requests} <= LOOKS


def test_nothing_known_is_told_from_nothing_to_do(world: FakeWorld) -> None:
    assert look(world, "nobody").is_unknown
    run = run_of(world)
    run.begin(0)
    assert not look(world, run.x).is_unknown


def test_another_id_with_the_same_beginning_is_not_looked_at(world: FakeWorld) -> None:
    run = replace(run_of(world), x="sink")
    replace(run, x="sink-2").begin(0).task(0, [b"a"])
    run.write(0, [b"b"])
    assert look(world, "sink").open_transactions == ()


# --- recovering ---


def check_recovery_of_decided(world: World) -> None:
    run = decided_and_killed(world)
    assert world.committed(run.topic) == []
    done = do(world, run.x, RECOVER)
    assert done[1:] == [
        "committed 2 transactions of decision 1 of query query (batch 0)",
        "marked decision 1 of query query (batch 0) as finished",
    ]
    assert world.committed(run.topic) == [b"a", b"b", b"c"]
    report = look(world, run.x)
    assert (report.unfinished, report.open_transactions, report.held) == ((), (), ())
    run.successor().write(0, [b"a", b"b"], [b"c"])
    assert world.committed(run.topic) == [b"a", b"b", b"c"]


def test_recovery_commits_what_is_decided(world: FakeWorld) -> None:
    check_recovery_of_decided(world)


def test_recovery_commits_what_is_decided_on_brokers(real: RealWorld) -> None:
    check_recovery_of_decided(real)


def check_recovery_of_undecided(world: World) -> None:
    run = run_of(world)
    run.write(0, [b"a"])
    batch = run.begin(1)
    batch.task(0, [b"b"])
    assert do(world, run.x, RECOVER)[1:] == [f"aborted '{run.x}/run-1/0/0-1'"]
    assert look(world, run.x).held == ()
    with pytest.raises(ExactlyOnceError):
        batch.commit()
    batch.abort()
    run.successor().write(1, [b"b"])
    assert world.committed(run.topic) == [b"a", b"b"]


def test_recovery_ends_what_is_not_decided(world: FakeWorld) -> None:
    check_recovery_of_undecided(world)


def test_recovery_ends_what_is_not_decided_on_brokers(real: RealWorld) -> None:
    check_recovery_of_undecided(real)


def test_recovery_does_what_is_decided_when_it_begins(world: FakeWorld) -> None:
    """A batch that is decided between the look and the recovery is committed, not aborted."""
    run = run_of(world)
    run.write(0, [b"a"])
    batch = run.begin(1)
    batch.task(0, [b"b"])
    report, done = look(world, run.x), list[str]()
    assert len(report.leftover) == 1
    with at("commit.roll_forward.before", kill), suppress(Killed):
        batch.commit()
    with world.client("operator") as client:
        carry_out(client, report, RECOVER, done.append)
    assert world.committed(run.topic) == [b"a", b"b"]
    assert not [text for text in done if text.startswith("aborted")]


def test_recovery_of_a_two_phase_sink_also_ends_what_has_not_begun(world: FakeWorld) -> None:
    world.cluster.enables_two_phase_commit = True
    run = replace(run_of(world), two_phase_commit=True)
    run.write(0, [b"a"])
    batch = run.begin(1)
    batch.task(0, [b"b"])
    with at("task.produce.before", kill), suppress(Killed):
        batch.task(1, [b"c"])
    idle = f"{run.x}/run-1/1/0-2"
    assert world.cluster.state(idle) is TransactionState.EMPTY
    before = world.cluster.producer_of(idle)
    do(world, run.x, RECOVER)
    assert world.cluster.producer_of(idle) != before


def test_lost_rows_stay_the_querys_to_write(world: FakeWorld) -> None:
    run = lost(world)
    assert "leave unfinished decision 1 of query query (batch 0)" in intentions(
        look(world, run.x), RECOVER
    )
    done = do(world, run.x, RECOVER)
    assert "unfinished: 3 of its rows are lost" in done[-1]
    assert look(world, run.x).needs_judgement
    run.successor().write(0, [b"a", b"b"], [b"c"])
    assert world.committed(run.topic) == [b"a", b"b", b"c"]


def test_loss_may_be_accepted(world: FakeWorld) -> None:
    run = lost(world)
    wish = Wish(accepts_loss=True)
    assert "mark as finished, although rows are lost, decision 1 of query query (batch 0)" in (
        intentions(look(world, run.x), wish)
    )
    assert do(world, run.x, wish)[1:] == [
        "gave up 3 lost rows of decision 1 of query query (batch 0)",
        "marked decision 1 of query query (batch 0) as finished",
    ]
    assert not look(world, run.x).needs_judgement
    run.successor().write(1, [b"d"])
    assert world.committed(run.topic) == [b"d"]


def unknown(world: FakeWorld) -> Run:
    """A decided run of whose transactions no trace is left."""
    run = lost(world)
    for transactional_id in list(world.cluster.ids):
        world.cluster.expire(transactional_id)
    world.cluster.log(TopicPartition(run.topic, 0)).delete_before(5)
    return run


def test_what_nobody_knows_stops_a_query_until_it_is_given_up(world: FakeWorld) -> None:
    run = unknown(world)
    [decision] = look(world, run.x).unfinished
    assert [one.standing for one in decision.entries] == [Standing.UNKNOWN] * 2
    with pytest.raises(OutcomeUnknown):
        run.successor().begin(1)
    assert "left decision 1" in do(world, run.x, RECOVER)[-1]
    do(world, run.x, Wish(accepts_loss=True))
    run.successor().write(1, [b"d"])
    assert world.committed(run.topic) == [b"d"]


def test_what_may_still_be_committed_is_never_given_up(world: FakeWorld) -> None:
    run = decided_and_killed(world)
    report, done = look(world, run.x), list[str]()
    client = world.cluster.client("operator")
    for _ in range(9):
        client.fail("end_transactions", BrokerUnreachable("no broker"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operator, "roll_forward", partial(roll_forward, pause=lambda _: None))
        carry_out(client, report, Wish(accepts_loss=True, forgets=True), done.append)
    assert not [text for text in done if text.startswith(("marked", "gave up", "removed"))]
    do(world, run.x, RECOVER)
    assert world.committed(run.topic) == [b"a", b"b", b"c"]


# --- forgetting ---


def check_forgetting(world: World) -> None:
    run = decided_and_killed(world)
    replace(run, query_id="other").begin(0)
    assert do(world, run.x, FORGET)[-1] == (
        f"removed every record of '{run.x}' from topic '{COMMIT_TOPIC}'"
    )
    assert world.committed(run.topic) == [b"a", b"b", b"c"]
    assert look(world, run.x).decisions == ()
    run.successor().write(0, [b"new"])
    [decision] = look(world, run.x).decisions
    assert (decision.decision.number, decision.is_finished) == (1, True)


def test_forgetting_commits_before_it_removes(world: FakeWorld) -> None:
    check_forgetting(world)


def test_forgetting_commits_before_it_removes_on_brokers(real: RealWorld) -> None:
    check_forgetting(real)


def test_others_are_not_forgotten(world: FakeWorld) -> None:
    run, other = run_of(world), run_of(world)
    run.write(0, [b"a"])
    other.write(0, [b"b"])
    do(world, run.x, FORGET)
    assert len(look(world, other.x).decisions) == 1


def test_lost_rows_are_not_forgotten(world: FakeWorld) -> None:
    run = lost(world)
    assert f"not remove anything of '{run.x}' from topic '{COMMIT_TOPIC}'" in intentions(
        look(world, run.x), FORGET
    )
    assert do(world, run.x, FORGET)[-1] == f"kept the decisions of '{run.x}': 1 are not finished"
    assert look(world, run.x).needs_judgement
    do(world, run.x, Wish(forgets=True, accepts_loss=True))
    assert look(world, run.x).decisions == ()


def test_forgetting_is_fenced_by_a_query_that_goes_on(world: FakeWorld) -> None:
    run = run_of(world)
    run.write(0, [b"a"])
    report, done = look(world, run.x), list[str]()
    client = world.cluster.client("operator")
    client.before("produce", lambda: run.begin(1))
    with pytest.raises(Fenced, match="back meanwhile"):
        carry_out(client, report, FORGET, done.append)
    assert len(look(world, run.x).decisions) == 1


def test_a_removal_that_is_not_confirmed_is_told(world: FakeWorld) -> None:
    run = run_of(world)
    run.write(0, [b"a"])
    report, done = look(world, run.x), list[str]()
    client = world.cluster.client("operator")
    client.lose("end_transactions")
    with pytest.raises(OutcomeUnknown, match="Either all are or none"):
        carry_out(client, report, FORGET, done.append)
    assert look(world, run.x).decisions == ()


# --- what is refused ---


def test_nothing_is_aborted_where_no_decision_is_found(world: FakeWorld) -> None:
    """They may be in another topic: the operator has to say that this is it."""
    run = run_of(world)
    run.begin(0).task(0, [b"a"])
    report = look(world, run.x)
    with pytest.raises(ExactlyOnceError, match="--commit-topic __spark_commits, if this is it"):
        check(report, RECOVER, names_topic=False)
    check(report, RECOVER, names_topic=True)


def test_nothing_is_aborted_without_the_commit_topic(world: FakeWorld) -> None:
    run = run_of(world)
    run.begin(0).task(0, [b"a"])
    del world.cluster.topics[COMMIT_TOPIC]
    report = look(world, run.x)
    assert not report.has_commit_topic
    with pytest.raises(ExactlyOnceError, match=f"there is no topic '{COMMIT_TOPIC}'"):
        check(report, RECOVER, names_topic=True)
    do(world, run.x, Wish(accepts_loss=True))
    assert look(world, run.x).open_transactions == ()


def damaged(world: FakeWorld) -> Run:
    run = run_of(world)
    run.write(0, [b"a"])
    run.begin(1).task(0, [b"b"])
    with world.client("somebody") as client:
        topic = CommitTopic(client, COMMIT_TOPIC)
        topic.write_plain([(key, b"?") for key in topic.keys(run.x)[:1]])
    return run


def test_nothing_is_aborted_where_decisions_are_damaged(world: FakeWorld) -> None:
    run = damaged(world)
    report = look(world, run.x)
    assert report.damage is not None
    assert "decision UNREADABLE topic '__spark_commits'" in "\n".join(lines(report))
    for wish in (RECOVER, FORGET, Wish(accepts_loss=True)):
        with pytest.raises(ExactlyOnceError, match="cannot be read"):
            check(report, wish, names_topic=True)


def test_damaged_decisions_may_be_given_up(world: FakeWorld) -> None:
    run = damaged(world)
    with pytest.raises(CommitTopicError):
        run.successor().begin(1)
    do(world, run.x, Wish(forgets=True, accepts_loss=True))
    run.successor().write(1, [b"b"])
    assert world.committed(run.topic) == [b"a", b"b"]


@pytest.mark.parametrize("name", ["describe_transactions", "read_log"])
def test_rights_that_are_missing_are_named(world: FakeWorld, name: str) -> None:
    run = run_of(world)
    run.write(0, [b"a"])
    world.cluster.refuses.add(name)
    wanted = {"describe_transactions": "DESCRIBE.* WRITE.*prefix", "read_log": "READ on topic"}
    with pytest.raises(AuthenticationFailed, match=wanted[name]):
        look(world, run.x)


# --- is the owner alive? ---


def signs(world: FakeWorld, run: Run, *, meanwhile: Callable[[], object] = lambda: None) -> str:
    earlier = look(world, run.x)
    meanwhile()
    return "; ".join(signs_of_life(earlier, look(world, run.x), quiet_ms=60_000))


def test_who_has_left_things_long_ago_is_not_alive(world: FakeWorld) -> None:
    run = decided_and_killed(world)
    replace(run, query_id="other", run="run-8").begin(0).task(0, [b"x"])
    world.cluster.advance(60_000)
    assert signs(world, run) == ""


def test_a_young_transaction_is_a_sign_of_life(world: FakeWorld) -> None:
    run = run_of(world)
    run.begin(0).task(0, [b"a"])
    assert "1 undecided transactions began less than 1m00s ago" in signs(world, run)


def test_a_young_decision_is_a_sign_of_life(world: FakeWorld) -> None:
    run = decided_and_killed(world)
    assert "query query decided a batch at 1970-01-01T00:16:40Z" in signs(world, run)


def test_a_planning_is_a_sign_of_life(world: FakeWorld) -> None:
    run = run_of(world)
    run.begin(0)
    assert "took" in signs(world, run, meanwhile=lambda: run.begin(0))


def test_a_transaction_that_grows_is_a_sign_of_life(world: FakeWorld) -> None:
    run = run_of(world)
    batch = run.begin(0)
    task = batch.task(0, [b"a"])
    assert isinstance(task, Prepared)
    world.cluster.advance(60_000)
    assert signs(world, run) == ""

    def grows() -> None:
        with world.client("task") as client:
            producer = client.transactional_producer(
                task.entry.transactional_id, task.entry.producer, task.entry.version
            )
            producer.send(CommitTopic(client, run.topic).rows([(b"k", b"v")]))

    assert "grew" in signs(world, run, meanwhile=grows)


def test_a_decision_under_way_is_a_sign_of_life(world: FakeWorld) -> None:
    run = run_of(world)
    batch = run.begin(0)
    batch.task(0, [b"a"])
    world.cluster.advance(60_000)
    with at("commit.decide.end_transactions.before", kill), suppress(Killed):
        batch.commit()
    assert f"the transaction of '{run.x}' itself is open" in signs(world, run)


# --- the command ---


@pytest.fixture
def fake_world(monkeypatch: pytest.MonkeyPatch) -> FakeWorld:
    """The one that the command talks to. Its clock stands still, and nobody waits."""
    world = FakeWorld()
    monkeypatch.setattr(command, "open_transactional", lambda _: world.client("operator"))
    monkeypatch.setattr(command, "wall_clock_ms", world.now_ms)
    monkeypatch.setattr("time.sleep", lambda _: None)
    return world


def call(x: str, *arguments: str, servers: str = "broker:9092") -> int:
    return command.main(["transactions", "--id", x, "--bootstrap-servers", servers, *arguments])


def test_the_command_looks(fake_world: FakeWorld, capsys: pytest.CaptureFixture[str]) -> None:
    run = decided_and_killed(fake_world)
    fake_world.cluster.advance(65_000)
    assert call(run.x) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"owner id={run.x} producer_id=1000 epoch=1 state=CompleteCommit: decides nothing now",
        (
            "decision query=query batch=0 number=1 state=unfinished rows=3 transactions=2 run=run-1 "
            "decided=1970-01-01T00:16:40Z"
        ),
        f"  prepared id={run.x}/run-1/0/0-0 partition=0 rows=2: waits to be committed",
        f"  prepared id={run.x}/run-1/1/0-1 partition=1 rows=1: waits to be committed",
        (
            f"transaction id={run.x}/run-1/0/0-0 state=Ongoing decided producer_id=1001 epoch=0 "
            "open_since=1970-01-01T00:16:40Z open_for=1m05s times_out_in=8m55s "
            f"partitions={run.topic}-0"
        ),
        (
            f"transaction id={run.x}/run-1/1/0-1 state=Ongoing decided producer_id=1002 epoch=0 "
            "open_since=1970-01-01T00:16:40Z open_for=1m05s times_out_in=8m55s "
            f"partitions={run.topic}-0"
        ),
        (
            f"held partition={run.topic}-0 last_stable_offset=0 high_watermark=3 behind=3 "
            f"holder={run.x}/run-1/0/0-0 open_since=1970-01-01T00:16:40Z open_for=1m05s"
        ),
    ]


def test_the_command_only_says_what_it_would_do(
    fake_world: FakeWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    run = decided_and_killed(fake_world)
    fake_world.cluster.advance(65_000)
    assert call(run.x, "--recover") == 0
    assert capsys.readouterr().out.splitlines()[-3:] == [
        (
            f"would take '{run.x}': a run that is within a batch fails, and of that batch nothing is "
            "seen"
        ),
        "would commit 2 transactions of decision 1 of query query (batch 0)",
        "would mark as finished decision 1 of query query (batch 0)",
    ]
    assert fake_world.committed(run.topic) == []


def test_the_command_recovers(fake_world: FakeWorld, capsys: pytest.CaptureFixture[str]) -> None:
    run = decided_and_killed(fake_world)
    fake_world.cluster.advance(65_000)
    assert call(run.x, "--recover", "--yes") == 0
    assert "done committed 2 transactions" in capsys.readouterr().out
    assert fake_world.committed(run.topic) == [b"a", b"b", b"c"]
    assert call(run.x, "--recover", "--yes") == 0
    assert "done nothing" in capsys.readouterr().out


def test_the_command_leaves_the_living_alone(
    fake_world: FakeWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    run = decided_and_killed(fake_world)
    assert call(run.x, "--recover", "--yes") == command.ALIVE
    assert call(run.x, "--recover") == command.ALIVE
    out = capsys.readouterr().out
    assert "alive query query decided a batch" in out
    assert "refused the owner seems to be alive" in out
    assert fake_world.committed(run.topic) == []
    assert call(run.x, "--recover", "--yes", "--take-over") == 0
    assert fake_world.committed(run.topic) == [b"a", b"b", b"c"]


def test_the_command_tells_of_lost_rows_by_its_exit_code(
    fake_world: FakeWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    run = lost(fake_world)
    assert call(run.x) == command.LOST
    out = capsys.readouterr().out
    assert "state=LOST-ROWS" in out
    assert f"    rows {run.topic}-0 offsets 0 to 1" in out.splitlines()
    assert call(run.x, "--recover", "--yes") == command.LOST
    assert call(run.x, "--forget", "--accept-loss", "--yes") == 0


def test_the_command_prints_json(fake_world: FakeWorld, capsys: pytest.CaptureFixture[str]) -> None:
    run = lost(fake_world)
    assert call(run.x, "--recover", "--yes", "--json") == command.LOST
    document = json.loads(capsys.readouterr().out)
    assert document["exit_code"] == command.LOST
    assert document["done"][0].startswith("took")
    [decision] = document["report"]["decisions"]
    assert decision["transactions"][1]["rows"] == [
        {"partition": f"{run.topic}-0", "first_offset": 2, "last_offset": 2}
    ]
    assert document["report"] == as_json(look(fake_world, run.x)) | {
        "taken_ms": fake_world.now_ms()
    }
    assert call(run.x, "--recover", "--json") == command.LOST
    assert json.loads(capsys.readouterr().out)["would"]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ([], "required"),
        (["transactions", "--id", "x"], "--bootstrap-servers"),
        (["transactions", "--id", "x", "--bootstrap-servers", "b:1", "--yes"], "--yes needs"),
        (
            ["transactions", "--id", "x", "--bootstrap-servers", "b:1", "--option", "a"],
            "NAME=VALUE",
        ),
        (
            ["transactions", "--id", "x", "--bootstrap-servers", "b:1", "--recover", "--forget"],
            "not allowed with",
        ),
    ],
)
def test_wrong_arguments_are_one_line(
    arguments: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(arguments)
    assert ended.value.code == command.ARGUMENTS
    [line] = capsys.readouterr().err.splitlines()
    assert error in line


@pytest.mark.parametrize(
    ("x", "arguments", "error"),
    [
        ("a/b", (), "option 'transactionalId' has the value 'a/b'"),
        ("x", ("--commit-topic", "a b"), "option 'commitTopic' names the topic 'a b'"),
        ("x", ("--option", "kafka.acks=1"), "option 'kafka.acks'"),
        ("x", ("--option", "engine=librdkafka"), "needs the engine 'native'"),
        ("nobody", (), "nothing is known of transactionalId 'nobody'"),
    ],
)
def test_what_cannot_be_is_one_line(
    bootstrap: str,
    x: str,
    arguments: tuple[str, ...],
    error: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert call(x, *arguments, servers=bootstrap) == command.FAILED
    [line] = capsys.readouterr().err.splitlines()
    assert error in line


def test_the_command_runs_by_itself(real: RealWorld, bootstrap: str) -> None:
    """And says in one line that no broker answers."""
    run = decided_and_killed(real)
    ended = run_command(run.x, bootstrap, "--recover", "--yes", "--quiet", "0")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "done committed 2 transactions" in ended.stdout
    assert real.committed(run.topic) == [b"a", b"b", b"c"]
    failed = run_command(run.x, "127.0.0.1:1", "--option", "kafka.default.api.timeout.ms=1000")
    assert (failed.returncode, failed.stdout) == (command.FAILED, "")
    assert "127.0.0.1:1" in failed.stderr
    assert "Traceback" not in failed.stderr


def run_command(x: str, servers: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *(sys.executable, "-m", "pyspark_kafka", "transactions"),
            *("--id", x, "--bootstrap-servers", servers, *arguments),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_durations_are_short() -> None:
    texts = [duration_text(ms) for ms in (-5, 59_999, 61_000, 3_600_000, 90_061_000)]
    assert texts == ["0s", "59s", "1m01s", "1h00m", "25h01m"]
