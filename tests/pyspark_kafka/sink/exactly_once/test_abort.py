"""Tests of abort, which ends undecided transactions, but none of a newer owner."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kio.schema.errors import ErrorCode

from pyspark_kafka.errors import AuthorizationError, BrokerUnreachableError, ProducerFencedError
from pyspark_kafka.kafka.transactions import TransactionState
from pyspark_kafka.sink.exactly_once.abort import abort
from pyspark_kafka.sink.exactly_once.decisions import Entry
from tests.pyspark_kafka.sink.exactly_once.conftest import Setting
from tests.pyspark_kafka.sink.exactly_once.drivers import Driver
from tests.pyspark_kafka.sink.exactly_once.fake_client import FakeClient
from tests.pyspark_kafka.sink.exactly_once.fake_cluster import FakeCluster

OUT = "out"
ENDED = (
    TransactionState.EMPTY,
    TransactionState.PREPARE_ABORT,
    TransactionState.COMPLETE_ABORT,
)


def of(fake: FakeCluster, run: str = "run-1") -> Driver:
    if OUT not in fake.topics:
        fake.create_topic(OUT)
    return Driver(
        client=fake.client(run),
        sink_id="X",
        run=run,
        commit_topic="commits",
        version=fake.transaction_version,
    )


def failing(fake: FakeCluster) -> tuple[Driver, list[Entry]]:
    """Return a driver with two finished tasks and one whose result is lost."""
    driver = of(fake)
    driver.plan()
    entries = [driver.prepare(n, OUT, f"{n}") for n in range(2)]
    driver.prepare(2, OUT, "lost attempt")
    return driver, entries


def asked(driver: Driver) -> list[str]:
    assert isinstance(driver.client, FakeClient)
    return driver.client.asked()


def seen(fake: FakeCluster) -> list[str]:
    return sorted((value or b"").decode() for _, value in fake.committed(OUT))


# --- on every cluster ---


def test_abort_ends_an_undecided_batch(setting: Setting) -> None:
    topic = setting.world.topic()
    driver = setting.driver()
    driver.plan()
    entries = [driver.prepare(n, topic, f"{n}") for n in range(2)]
    lost = driver.prepare(2, topic, "lost attempt")
    other = setting.driver("run-2").prepare(0, topic, "of another batch", generation=9)
    driver.abort(*entries)
    found = driver.client.describe_transactions(
        [each.transactional_id for each in (*entries, lost, other)]
    )
    assert all(found[each.transactional_id].state in ENDED for each in (*entries, lost))
    assert found[other.transactional_id].state is TransactionState.ONGOING
    # The batch can no longer be decided.
    assert driver.end(driver.sink_id, driver.owner) is not ErrorCode.none
    with pytest.raises(ProducerFencedError):
        driver.write_decision(driver.decision(0, *entries))
    driver.plan()
    driver.decide(0, driver.prepare(0, topic, "again"))
    driver.plan()
    assert setting.world.committed(topic) == [b"again"]


def test_abort_leaves_a_decided_batch_to_roll_forward(setting: Setting) -> None:
    """The response to the decision was lost, so commit() has failed."""
    topic = setting.world.topic()
    driver = setting.driver()
    driver.plan()
    entries = [driver.prepare(n, topic, f"{n}") for n in range(2)]
    driver.decide(0, *entries)
    driver.abort(*entries)
    found = driver.client.describe_transactions([each.transactional_id for each in entries])
    assert all(each.state is TransactionState.ONGOING for each in found.values())
    assert driver.plan().last["query"].lost == frozenset()
    assert setting.world.committed(topic) == [b"0", b"1"]


def test_written_decision_without_commit_does_not_count(setting: Setting) -> None:
    topic = setting.world.topic()
    driver = setting.driver()
    driver.plan()
    entry = driver.prepare(0, topic, "a")
    driver.write_decision(driver.decision(0, entry))
    driver.abort(entry)
    assert driver.end(driver.sink_id, driver.owner) is not ErrorCode.none
    assert driver.plan().last == {}
    assert setting.world.committed(topic) == []


def test_abort_leaves_a_newer_owner_alone(setting: Setting) -> None:
    """Even a failed InitProducerId would abort the decision that the new owner is writing."""
    topic = setting.world.topic()
    old, new = setting.driver("old"), setting.driver("new")
    old.plan()
    stale = old.prepare(0, topic, "old")
    new.plan()
    entry = new.prepare(0, topic, "new")
    decision = new.decision(0, entry)
    new.write_decision(decision)
    old.abort(stale)
    assert new.end(new.sink_id, new.owner) is ErrorCode.none
    old.abort(stale)
    assert new.plan().last["query"].lost == frozenset()
    assert setting.world.committed(topic) == [b"new"]


# --- concurrent requests ---


def requests_of_an_abort() -> int:
    driver, entries = failing(FakeCluster(2))
    driver.write_decision(driver.decision(0, *entries))
    before = len(asked(driver))
    driver.abort(*entries)
    return len(asked(driver)) - before


@pytest.mark.parametrize("number", range(1, requests_of_an_abort() + 2))
def test_late_decision_is_executed_or_refused_as_a_whole(fake: FakeCluster, number: int) -> None:
    """The deciding EndTxn arrives at any point between the requests of abort."""
    driver, entries = failing(fake)
    driver.write_decision(driver.decision(0, *entries))
    late = of(fake, "late")
    late.plans = driver.plans
    answers: list[ErrorCode | None] = []
    assert isinstance(driver.client, FakeClient)
    driver.client.before(
        driver.client.request_count + number,
        lambda: answers.append(late.end("X", driver.owner)),
    )
    driver.abort(*entries)
    if not answers:
        answers.append(late.end("X", driver.owner))
    is_decided = answers == [ErrorCode.none]
    assert is_decided is (number <= 2)
    assert driver.plan().last.keys() == ({"query"} if is_decided else set())
    assert seen(fake) == (["0", "1"] if is_decided else [])
    assert fake.is_stable(OUT)


@pytest.mark.parametrize("number", range(1, requests_of_an_abort() + 1))
@pytest.mark.parametrize("is_done", [True, False], ids=["done", "not-done"])
@pytest.mark.parametrize("is_decided", [True, False], ids=["decided", "undecided"])
def test_failing_abort_is_silent_and_harmless(
    fake: FakeCluster, number: int, is_done: bool, is_decided: bool
) -> None:
    driver, entries = failing(fake)
    if is_decided:
        driver.decide(0, *entries)
    assert isinstance(driver.client, FakeClient)
    at = driver.client.request_count + number
    if is_done:
        driver.client.lose_response(at)
    else:
        driver.client.fail(at, BrokerUnreachableError("gone"))
    driver.abort(*entries)
    of(fake, "next").plan()
    assert seen(fake) == (["0", "1"] if is_decided else [])
    assert fake.is_stable(OUT)


@pytest.mark.parametrize("number", range(1, requests_of_an_abort() + 1))
def test_overtaken_abort_is_harmless(fake: FakeCluster, number: int) -> None:
    driver, entries = failing(fake)
    new = of(fake, "new")

    def take_over() -> None:
        new.plan()
        new.write_decision(new.decision(0, new.prepare(0, OUT, "new")))

    assert isinstance(driver.client, FakeClient)
    driver.client.before(driver.client.request_count + number, take_over)
    driver.abort(*entries)
    ended = new.end("X", new.owner)
    # The old driver fenced the id before it detected the new owner, so the EndTxn of the new owner
    # fails.
    assert ended is ErrorCode.none or number == 2
    new.plan()
    assert seen(fake) == (["new"] if ended is ErrorCode.none else [])
    assert fake.is_stable(OUT)


@pytest.mark.parametrize("number", range(1, requests_of_an_abort() + 1))
def test_newer_owner_without_a_batch_stays_the_owner(fake: FakeCluster, number: int) -> None:
    driver, entries = failing(fake)
    new = of(fake, "new")
    assert isinstance(driver.client, FakeClient)
    driver.client.before(driver.client.request_count + number, new.plan)
    driver.abort(*entries)
    new.decide(0, new.prepare(0, OUT, "new"))
    new.plan()
    assert seen(fake) == ["new"]


def test_abort_waits_for_markers_of_the_decision(fake: FakeCluster) -> None:
    driver, entries = failing(fake)
    driver.write_decision(driver.decision(0, *entries))
    fake.holds_markers = True
    assert driver.end("X", driver.owner) is ErrorCode.none
    assert fake.state("X") is TransactionState.PREPARE_COMMIT
    fake.while_waiting = fake.write_markers
    driver.abort(*entries)
    fake.holds_markers = False
    assert all(fake.state(e.transactional_id) is TransactionState.ONGOING for e in entries)
    driver.plan()
    assert seen(fake) == ["0", "1"]


# --- abort without effect ---


@pytest.mark.parametrize("count", [0, 1, 3])
def test_abort_without_results_does_nothing(fake: FakeCluster, count: int) -> None:
    """Spark creates a new writer for this call, which does not know the run or the owner."""
    driver, _ = failing(fake)
    before = len(fake.requests)
    abort(driver.client, driver.options, [None] * count)
    assert len(fake.requests) == before


def test_abort_of_a_batch_without_rows_fences_and_sweeps(fake: FakeCluster) -> None:
    driver, _ = failing(fake)
    abort(driver.client, driver.options, [driver.message(0, None)])
    assert fake.producer_of("X") != driver.owner
    assert fake.is_stable(OUT)


def test_abort_does_not_recreate_an_expired_sink_id(fake: FakeCluster) -> None:
    driver, entries = failing(fake)
    fake.expire("X")
    driver.abort(*entries)
    assert "X" not in fake.ids


def test_decision_of_an_earlier_batch_does_not_count(fake: FakeCluster) -> None:
    driver = of(fake)
    driver.plan()
    driver.decide(0, driver.prepare(0, OUT, "first"))
    driver.plan()
    entry = driver.prepare(0, OUT, "second", slot=1)
    driver.abort(entry)
    assert fake.state(entry.transactional_id) in ENDED
    assert seen(fake) == ["first"]


def test_decided_id_with_another_epoch_is_aborted(fake: FakeCluster) -> None:
    """A later batch reuses an id, with another epoch."""
    driver = of(fake)
    driver.plan()
    first = driver.prepare(0, OUT, "first")
    driver.decide(0, first)
    driver.plan()
    driver.plans[-1] = replace(driver.plans[-1], generation=driver.plans[0].generation)
    second = driver.prepare(0, OUT, "second")
    assert second.transactional_id == first.transactional_id
    driver.abort(second)
    assert fake.state(second.transactional_id) in ENDED
    assert seen(fake) == ["first"]
    assert fake.is_stable(OUT)


def test_failed_supplement_aborts_only_its_own_transactions(fake: FakeCluster) -> None:
    """The batch is decided. The supplement for its lost rows is undecided."""
    driver = of(fake)
    driver.plan()
    kept, lost = driver.prepare(0, OUT, "kept"), driver.prepare(1, OUT, "lost")
    driver.end(lost.transactional_id, lost.producer, is_commit=False)
    driver.decide(0, kept, lost)
    assert driver.plan().last["query"].lost == {1}
    again = driver.prepare(1, OUT, "lost", slot=1)
    driver.abort(again)
    assert fake.state(again.transactional_id) in ENDED
    assert seen(fake) == ["kept"]
    assert driver.plan().last["query"].lost == {1}


def test_decided_transactions_are_not_swept(fake: FakeCluster) -> None:
    """The decided transaction of another query belongs to the same run."""
    driver, entries = failing(fake)
    other = of(fake)
    other.query_id, other.plans = "other", driver.plans
    decided = other.prepare(9, OUT, "decided")
    other.decide(4, decided)
    driver.abort(*entries)
    assert fake.state(decided.transactional_id) is TransactionState.ONGOING
    driver.plan()
    assert seen(fake) == ["decided"]


def test_abort_ignores_transactions_that_timed_out(fake: FakeCluster) -> None:
    driver, entries = failing(fake)
    fake.advance(10_000_000)
    driver.abort(*entries)
    assert fake.is_stable(OUT)
    assert seen(fake) == []


def test_refused_abort_is_logged(fake: FakeCluster, caplog: pytest.LogCaptureFixture) -> None:
    driver, entries = failing(fake)
    assert isinstance(driver.client, FakeClient)
    driver.client.fail("list_offsets", AuthorizationError("TOPIC_AUTHORIZATION_FAILED"))
    driver.abort(*entries)
    assert "run-1" in caplog.text
    assert "'X'" in caplog.text
    assert "TOPIC_AUTHORIZATION_FAILED" in caplog.text
    assert all(fake.state(e.transactional_id) is TransactionState.ONGOING for e in entries)


def test_abort_after_an_open_decision_unblocks_consumers(fake: FakeCluster) -> None:
    """With version 1, InitProducerId with an expected epoch would abort only the decision."""
    driver = of(fake)
    driver.plan()
    entries = [driver.prepare(n, OUT, f"{n}") for n in range(2)]
    driver.write_decision(driver.decision(0, *entries))
    driver.abort(*entries)
    assert fake.is_stable(OUT)
    assert driver.end(driver.sink_id, driver.owner) is not ErrorCode.none
    assert seen(fake) == []
