"""Tests of recover and forget: actions, refusals, and signs that the owner is alive."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Literal, cast

import pytest

from pyspark_kafka.errors import (
    AuthorizationError,
    BrokerUnreachableError,
    CommitTopicError,
    EarlierJobCommittedError,
    ExactlyOnceError,
    OutcomeUnknownError,
    SinkFencedError,
)
from pyspark_kafka.sink.exactly_once import operator_repair
from pyspark_kafka.sink.exactly_once.commit_topic import CommitTopic
from pyspark_kafka.sink.exactly_once.messages import Prepared
from pyspark_kafka.sink.exactly_once.operator_repair import (
    RepairRequest,
    check,
    planned_actions,
    repair,
    signs_of_life,
)
from pyspark_kafka.sink.exactly_once.operator_report import (
    EntryState,
    examine,
)
from pyspark_kafka.sink.exactly_once.operator_text import lines
from pyspark_kafka.sink.exactly_once.roll_forward import roll_forward
from tests.conftest import TopicFactory
from tests.pyspark_kafka.sink.exactly_once.operator_scenarios import (
    COMMIT_TOPIC,
    FORGET,
    RECOVER,
    damaged,
    decided_and_killed,
    lost,
    report_of,
    run_of,
    run_repair,
    unknown,
)
from tests.pyspark_kafka.sink.exactly_once.runs import Killed, Run, World, at, kill
from tests.pyspark_kafka.sink.exactly_once.worlds import FakeWorld, RealWorld


@pytest.fixture(params=[1, 2], ids=["version-1", "version-2"])
def world(request: pytest.FixtureRequest) -> FakeWorld:
    """Return a fake cluster of each `transaction.version`."""
    return FakeWorld(cast("Literal[1, 2]", request.param))


@pytest.fixture
def real(bootstrap: str, topic: TopicFactory, unique_name: Callable[[], str]) -> RealWorld:
    return RealWorld(bootstrap, topic, lambda: unique_name().replace("[", "-").replace("]", "-"))


# --- recover ---


def check_recovery_of_decided(world: World) -> None:
    run = decided_and_killed(world)
    assert world.committed(run.topic) == []
    done = run_repair(world, run.sink_id, RECOVER)
    _, committed, marked = done
    assert re.match(r"committed 2\b.*\bdecision 1\b", committed)
    assert re.match(r"marked\b.*\bdecision 1\b", marked)
    assert world.committed(run.topic) == [b"a", b"b", b"c"]
    report = report_of(world, run.sink_id)
    assert (report.unfinished, report.open_transactions, report.held) == ((), (), ())
    run.successor().write(0, [b"a", b"b"], [b"c"])
    assert world.committed(run.topic) == [b"a", b"b", b"c"]


def test_recovery_commits_decided_batch(world: FakeWorld) -> None:
    check_recovery_of_decided(world)


@pytest.mark.slow
def test_recovery_commits_decided_batch_on_brokers(real: RealWorld) -> None:
    check_recovery_of_decided(real)


def check_recovery_of_undecided(world: World) -> None:
    run = run_of(world)
    run.write(0, [b"a"])
    batch = run.begin(1)
    message = batch.task(0, [b"b"])
    assert isinstance(message, Prepared)
    own_id = message.entry.transactional_id
    assert run_repair(world, run.sink_id, RECOVER)[1:] == [f"aborted '{own_id}'"]
    assert report_of(world, run.sink_id).held == ()
    with pytest.raises(ExactlyOnceError):
        batch.commit()
    batch.abort()
    run.successor().write(1, [b"b"])
    assert world.committed(run.topic) == [b"a", b"b"]


def test_recovery_aborts_undecided_batch(world: FakeWorld) -> None:
    check_recovery_of_undecided(world)


def test_recovery_aborts_undecided_batch_on_brokers(real: RealWorld) -> None:
    check_recovery_of_undecided(real)


def test_recovery_reads_decisions_again(world: FakeWorld) -> None:
    """A batch that is decided after the report is committed, not aborted."""
    run = run_of(world)
    run.write(0, [b"a"])
    batch = run.begin(1)
    batch.task(0, [b"b"])
    report, done = report_of(world, run.sink_id), list[str]()
    assert len(report.leftover) == 1
    with at("commit.roll_forward.before", kill), suppress(Killed):
        batch.commit()
    with world.client("operator") as client:
        repair(client, report, RECOVER, done.append)
    assert world.committed(run.topic) == [b"a", b"b"]
    assert not [text for text in done if text.startswith("aborted")]


def test_recovery_leaves_lost_rows_to_the_query(world: FakeWorld) -> None:
    run = lost(world)
    planned = planned_actions(report_of(world, run.sink_id), RECOVER)
    assert re.match(r"leave\b.*\bdecision 1\b", planned[-1])
    done = run_repair(world, run.sink_id, RECOVER)
    assert re.match(r"left\b.*\bdecision 1\b.*\b3\b", done[-1])
    assert report_of(world, run.sink_id).needs_operator
    run.successor().write(0, [b"a", b"b"], [b"c"])
    assert world.committed(run.topic) == [b"a", b"b", b"c"]


def test_loss_is_accepted_on_request(world: FakeWorld) -> None:
    run = lost(world)
    request = RepairRequest(accept_loss=True)
    planned = planned_actions(report_of(world, run.sink_id), request)
    assert re.match(r"accept\b.*\bdecision 1\b", planned[-1])
    _, accepted, marked = run_repair(world, run.sink_id, request)
    assert re.match(r"accepted\b.*\b3 rows\b.*\bdecision 1\b", accepted)
    assert re.match(r"marked\b.*\bdecision 1\b", marked)
    assert not report_of(world, run.sink_id).needs_operator
    run.successor().write(1, [b"d"])
    assert world.committed(run.topic) == [b"d"]


def test_unknown_outcome_stops_a_query_until_it_is_accepted(world: FakeWorld) -> None:
    run = unknown(world)
    [decision] = report_of(world, run.sink_id).unfinished
    assert [one.state for one in decision.entries] == [EntryState.UNKNOWN] * 2
    with pytest.raises(OutcomeUnknownError):
        run.successor().write(1, [b"d"])
    assert re.match(r"left\b.*\bdecision 1\b", run_repair(world, run.sink_id, RECOVER)[-1])
    run_repair(world, run.sink_id, RepairRequest(accept_loss=True))
    run.successor().write(1, [b"d"])
    assert world.committed(run.topic) == [b"d"]


def test_unreadable_outcome_is_never_accepted(world: FakeWorld) -> None:
    """The rows may exist, and a principal with READ on the topic can determine that."""
    run = decided_and_killed(world)
    for transactional_id in list(world.cluster.ids):
        world.cluster.expire(transactional_id)
    report, done = report_of(world, run.sink_id), list[str]()
    client = world.cluster.client("operator")

    def refuse() -> None:
        for _ in range(2):
            client.fail("read_log", AuthorizationError("TOPIC_AUTHORIZATION_FAILED"))

    client.before("describe_transactions", refuse)
    repair(client, report, RepairRequest(accept_loss=True), done.append)
    [left] = [text for text in done if "decision" in text]
    assert re.match(r"left\b.*\bdecision 1\b", left)
    assert "READ" in left


def test_loss_is_not_accepted_while_a_commit_is_possible(world: FakeWorld) -> None:
    run = decided_and_killed(world)
    report, done = report_of(world, run.sink_id), list[str]()
    client = world.cluster.client("operator")
    for _ in range(9):
        client.fail("end_transactions", BrokerUnreachableError("no broker"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operator_repair, "roll_forward", partial(roll_forward, sleep=lambda _: None))
        repair(client, report, RepairRequest(accept_loss=True, forget=True), done.append)
    assert not [text for text in done if text.startswith(("marked", "accepted", "removed"))]
    run_repair(world, run.sink_id, RECOVER)
    assert world.committed(run.topic) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("is_lost", [False, True])
def test_recovered_job_is_still_reported(world: FakeWorld, is_lost: bool) -> None:
    """Otherwise the scheduler's retry of the killed job would write all rows again."""
    job = run_of(world)
    with at("commit.roll_forward.before", kill), suppress(Killed):
        job.write(None, [b"a"])
    if is_lost:
        world.cluster.advance(job.timeout_ms + 1)
    for _ in range(2):
        run_repair(world, job.sink_id, RepairRequest(accept_loss=is_lost))
    assert report_of(world, job.sink_id).unfinished == ()
    with pytest.raises(EarlierJobCommittedError):
        job.successor(query_id="retry").begin(None)


# --- forget ---


def check_forgetting(world: World) -> None:
    run = decided_and_killed(world)
    replace(run, query_id="other").begin(0)
    removed = run_repair(world, run.sink_id, FORGET)[-1]
    assert re.match(rf"removed\b.*'{run.sink_id}'.*'{COMMIT_TOPIC}'", removed)
    assert world.committed(run.topic) == [b"a", b"b", b"c"]
    assert report_of(world, run.sink_id).decisions == ()
    run.successor().write(0, [b"new"])
    [decision] = report_of(world, run.sink_id).decisions
    assert (decision.decision.number, decision.is_finished) == (2, True)


def test_forgotten_job_is_not_reported(world: FakeWorld) -> None:
    job = run_of(world)
    with at("commit.roll_forward.before", kill), suppress(Killed):
        job.write(None, [b"a"])
    run_repair(world, job.sink_id, FORGET)
    job.successor(query_id="next").write(None, [b"b"])
    assert world.committed(job.topic) == [b"a", b"b"]


def test_forgetting_commits_before_it_removes(world: FakeWorld) -> None:
    check_forgetting(world)


def test_forgetting_commits_before_it_removes_on_brokers(real: RealWorld) -> None:
    check_forgetting(real)


def test_other_sinks_are_not_forgotten(world: FakeWorld) -> None:
    run, other = run_of(world), run_of(world)
    run.write(0, [b"a"])
    other.write(0, [b"b"])
    run_repair(world, run.sink_id, FORGET)
    assert len(report_of(world, other.sink_id).decisions) == 1


def test_lost_rows_are_not_forgotten(world: FakeWorld) -> None:
    run = lost(world)
    planned = planned_actions(report_of(world, run.sink_id), FORGET)
    assert re.match(rf"keep\b.*'{run.sink_id}'.*'{COMMIT_TOPIC}'", planned[-1])
    kept = run_repair(world, run.sink_id, FORGET)[-1]
    assert re.match(rf"kept\b.*'{run.sink_id}'.*\b1\b", kept)
    assert report_of(world, run.sink_id).needs_operator
    run_repair(world, run.sink_id, RepairRequest(forget=True, accept_loss=True))
    assert report_of(world, run.sink_id).decisions == ()


def test_forgetting_is_fenced_by_a_running_query(world: FakeWorld) -> None:
    run = run_of(world)
    run.write(0, [b"a"])
    report, done = report_of(world, run.sink_id), list[str]()
    client = world.cluster.client("operator")
    client.before("produce", lambda: run.begin(1))
    with pytest.raises(SinkFencedError) as caught:
        repair(client, report, FORGET, done.append)
    assert caught.value.transactional_id == run.sink_id
    assert len(report_of(world, run.sink_id).decisions) == 1


def test_forgetting_waits_for_slow_brokers(world: FakeWorld) -> None:
    """The commit topic has too few in-sync replicas, or temporarily no leader."""
    run = run_of(world)
    run.write(0, [b"a"])
    report, done = report_of(world, run.sink_id), list[str]()
    client = world.cluster.client("operator")
    client.before("end_transactions", lambda: world.cluster.advance(20_000))
    repair(client, report, FORGET, done.append)
    assert report_of(world, run.sink_id).decisions == ()


def test_forgetting_respects_the_brokers_timeout_limit(world: FakeWorld) -> None:
    run = run_of(world)
    run.write(0, [b"a"])
    assert world.cluster.broker_config is not None
    world.cluster.broker_config["transaction.max.timeout.ms"] = "5000"
    run_repair(world, run.sink_id, FORGET)
    owner = report_of(world, run.sink_id).owner
    assert owner is not None
    assert owner.timeout_ms == 5_000


def test_unconfirmed_removal_is_reported(world: FakeWorld) -> None:
    run = run_of(world)
    run.write(0, [b"a"])
    report, done = report_of(world, run.sink_id), list[str]()
    client = world.cluster.client("operator")
    client.lose_response("end_transactions")
    with pytest.raises(OutcomeUnknownError) as caught:
        repair(client, report, FORGET, done.append)
    assert caught.value.transactional_id == run.sink_id
    assert report_of(world, run.sink_id).decisions == ()


# --- refused repairs ---


@pytest.mark.parametrize("is_recreated", [False, True])
def test_repair_without_the_decisions_is_refused(world: FakeWorld, is_recreated: bool) -> None:
    """The decisions may be in another topic, or the topic was deleted."""
    run = run_of(world)
    run.begin(0).task(0, [b"a"])
    del world.cluster.topics[COMMIT_TOPIC]
    if is_recreated:
        run_of(world).write(0, [b"b"])
    for request in (RECOVER, FORGET, RepairRequest(accept_loss=True)):
        with pytest.raises(ExactlyOnceError) as caught:
            check(report_of(world, run.sink_id), request)
        assert (caught.value.topic, caught.value.transactional_id) == (COMMIT_TOPIC, run.sink_id)
        assert f"--commit-topic {COMMIT_TOPIC} --forget --accept-loss" in caught.value.advice
    if is_recreated:
        with pytest.raises(CommitTopicError):
            run.successor().begin(0)
    run_repair(world, run.sink_id, RepairRequest(forget=True, accept_loss=True))
    assert report_of(world, run.sink_id).open_transactions == ()
    run.successor().write(0, [b"c"])
    assert world.committed(run.topic) == [b"c"]


def test_repair_with_damaged_decisions_is_refused(world: FakeWorld) -> None:
    run = damaged(world)
    report = report_of(world, run.sink_id)
    assert report.damage is not None
    assert "decision UNREADABLE " in "\n".join(lines(report))
    for request in (RECOVER, FORGET, RepairRequest(accept_loss=True)):
        with pytest.raises(ExactlyOnceError, match=re.escape(report.damage.what)):
            check(report, request)


def test_damaged_decisions_can_be_removed(world: FakeWorld) -> None:
    run = damaged(world)
    with pytest.raises(CommitTopicError):
        run.successor().begin(1)
    run_repair(world, run.sink_id, RepairRequest(forget=True, accept_loss=True))
    run.successor().write(1, [b"b"])
    assert world.committed(run.topic) == [b"a", b"b"]


@pytest.mark.parametrize("name", ["describe_transactions", "read_log"])
def test_missing_acls_are_named(world: FakeWorld, name: str) -> None:
    run = run_of(world)
    run.write(0, [b"a"])
    world.cluster.denied_requests.add(name)
    advice = {"describe_transactions": r"\bDESCRIBE\b.*\bWRITE\b", "read_log": r"\bREAD\b"}
    with pytest.raises(AuthorizationError, match=advice[name]) as caught:
        report_of(world, run.sink_id)
    assert caught.value.transactional_id == run.sink_id


def test_report_without_access_to_topics(world: FakeWorld) -> None:
    run = run_of(world)
    run.begin(0).task(0, [b"a"])
    world.cluster.denied_requests.add("list_offsets")
    world.cluster.topics.pop(COMMIT_TOPIC)
    report = report_of(world, run.sink_id)
    assert len(report.leftover) == 1
    assert report.held_is_unknown is not None
    assert "held UNKNOWN" in "\n".join(lines(report))


def test_first_offset_of_lost_rows_is_unknown_without_access(
    world: FakeWorld,
) -> None:
    run = lost(world)
    client = world.cluster.client("operator")
    client.before("read_log", lambda: world.cluster.denied_requests.add("list_offsets"))
    report = examine(client, run.sink_id, COMMIT_TOPIC, now_ms=world.now_ms())
    [decision] = report.unfinished
    assert [one.rows[0].first_offset for one in decision.entries] == [None, None]
    assert [one.rows[0].last_offset for one in decision.entries] == [1, 2]


# --- signs that the owner is alive ---


def signs(world: FakeWorld, run: Run, *, meanwhile: Callable[[], object] = lambda: None) -> str:
    earlier = report_of(world, run.sink_id)
    meanwhile()
    return "; ".join(signs_of_life(earlier, report_of(world, run.sink_id), quiet_ms=60_000))


def test_old_transactions_are_no_sign_of_life(world: FakeWorld) -> None:
    run = decided_and_killed(world)
    replace(run, query_id="other", run="run-8").begin(0).task(0, [b"x"])
    world.cluster.advance(60_000)
    assert signs(world, run) == ""


def test_young_transaction_is_a_sign_of_life(world: FakeWorld) -> None:
    run = run_of(world)
    run.begin(0).task(0, [b"a"])
    assert re.search(r"\b1\b.*\b1m00s\b", signs(world, run))


def test_young_decision_is_a_sign_of_life(world: FakeWorld) -> None:
    run = decided_and_killed(world)
    assert re.search(r"\bquery\b.*\b1970-01-01T00:16:40Z", signs(world, run))


def test_planning_is_a_sign_of_life(world: FakeWorld) -> None:
    run = run_of(world)
    run.begin(0)
    assert f"'{run.sink_id}'" in signs(world, run, meanwhile=lambda: run.begin(0))


def test_growing_transaction_is_a_sign_of_life(world: FakeWorld) -> None:
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
            producer.send(CommitTopic(client, run.topic, "X", partition=0).rows([(b"k", b"v")]))

    assert signs(world, run, meanwhile=grows)


def test_decision_in_progress_is_a_sign_of_life(world: FakeWorld) -> None:
    run = run_of(world)
    batch = run.begin(0)
    batch.task(0, [b"a"])
    world.cluster.advance(60_000)
    with at("commit.decide.end_transactions.before", kill), suppress(Killed):
        batch.commit()
    assert f"'{run.sink_id}'" in signs(world, run)
