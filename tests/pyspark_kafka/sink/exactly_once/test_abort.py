"""Abort ends what cannot be decided any more, and leaves alone what was or what is another's."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from pyspark_kafka.errors import AccessError, BrokerUnreachableError, ProducerFencedError
from pyspark_kafka.kafka.transactions import TransactionState
from pyspark_kafka.sink.exactly_once.abort import abort
from pyspark_kafka.sink.exactly_once.decisions import Entry
from tests.pyspark_kafka.sink.exactly_once.conftest import Setting
from tests.pyspark_kafka.sink.exactly_once.drivers import Driver
from tests.pyspark_kafka.sink.exactly_once.fake_client import FakeClient
from tests.pyspark_kafka.sink.exactly_once.fake_cluster import FakeCluster

OUT = "out"
ENDED = (TransactionState.EMPTY, TransactionState.COMPLETE_ABORT)


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
    """A driver with two tasks that are done and one that was not heard of."""
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


def test_a_batch_that_failed_undecided_is_ended(setting: Setting) -> None:
    topic = setting.world.topic()
    driver = setting.driver()
    driver.plan()
    entries = [driver.prepare(n, topic, f"{n}") for n in range(2)]
    lost = driver.prepare(2, topic, "lost attempt")
    other = setting.driver("run-2").prepare(0, topic, "of another run")
    driver.abort(*entries)
    found = driver.client.describe_transactions(
        [each.transactional_id for each in (*entries, lost, other)]
    )
    assert all(found[each.transactional_id].state in ENDED for each in (*entries, lost))
    assert found[other.transactional_id].state is TransactionState.ONGOING
    # Nor can anything decide it any more.
    assert driver.end(driver.sink_id, driver.owner) is not ErrorCode.none
    with pytest.raises(ProducerFencedError):
        driver.write_decision(driver.decision(0, *entries))
    driver.plan()
    driver.decide(0, driver.prepare(0, topic, "again"))
    driver.plan()
    assert setting.world.committed(topic) == [b"again"]


def test_a_batch_that_was_decided_is_left_to_be_rolled_forward(setting: Setting) -> None:
    """The answer to the decision was lost, so that commit() has failed."""
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


def test_a_decision_that_was_not_ended_is_none(setting: Setting) -> None:
    topic = setting.world.topic()
    driver = setting.driver()
    driver.plan()
    entry = driver.prepare(0, topic, "a")
    driver.write_decision(driver.decision(0, entry))
    driver.abort(entry)
    assert driver.end(driver.sink_id, driver.owner) is not ErrorCode.none
    assert driver.plan().last == {}
    assert setting.world.committed(topic) == []


def test_a_newer_owner_is_left_alone(setting: Setting) -> None:
    """Asking for X, even in vain, would abort the decision that it is writing."""
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


# --- interleaved ---


def requests_of_an_abort() -> int:
    driver, entries = failing(FakeCluster(2))
    driver.write_decision(driver.decision(0, *entries))
    before = len(asked(driver))
    driver.abort(*entries)
    return len(asked(driver)) - before


@pytest.mark.parametrize("number", range(1, requests_of_an_abort() + 2))
def test_a_decision_that_comes_late_is_made_or_refused_but_never_halved(
    fake: FakeCluster, number: int
) -> None:
    """EndTxn of X is under way when abort begins, and arrives before any of its requests."""
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
def test_an_abort_that_fails_anywhere_is_silent_and_does_no_harm(
    fake: FakeCluster, number: int, is_done: bool, is_decided: bool
) -> None:
    driver, entries = failing(fake)
    if is_decided:
        driver.decide(0, *entries)
    assert isinstance(driver.client, FakeClient)
    at = driver.client.request_count + number
    if is_done:
        driver.client.lose(at)
    else:
        driver.client.fail(at, BrokerUnreachableError("gone"))
    driver.abort(*entries)
    of(fake, "next").plan()
    assert seen(fake) == (["0", "1"] if is_decided else [])
    assert fake.is_stable(OUT)


@pytest.mark.parametrize("number", range(1, requests_of_an_abort() + 1))
def test_an_abort_that_is_overtaken_anywhere_does_no_harm(fake: FakeCluster, number: int) -> None:
    driver, entries = failing(fake)
    new = of(fake, "new")

    def take_over() -> None:
        new.plan()
        new.write_decision(new.decision(0, new.prepare(0, OUT, "new")))

    assert isinstance(driver.client, FakeClient)
    driver.client.before(driver.client.request_count + number, take_over)
    driver.abort(*entries)
    ended = new.end("X", new.owner)
    # Taken back just before it noticed, X lets nobody decide: told, not silent.
    assert ended is ErrorCode.none or number == 2
    new.plan()
    assert seen(fake) == (["new"] if ended is ErrorCode.none else [])
    assert fake.is_stable(OUT)


@pytest.mark.parametrize("number", range(1, requests_of_an_abort() + 1))
def test_an_owner_that_has_only_planned_stays_the_owner(fake: FakeCluster, number: int) -> None:
    driver, entries = failing(fake)
    new = of(fake, "new")
    assert isinstance(driver.client, FakeClient)
    driver.client.before(driver.client.request_count + number, new.plan)
    driver.abort(*entries)
    new.decide(0, new.prepare(0, OUT, "new"))
    new.plan()
    assert seen(fake) == ["new"]


def test_late_markers_of_the_decision_are_waited_for(fake: FakeCluster) -> None:
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


# --- what is not to be done ---


@pytest.mark.parametrize("count", [0, 1, 3])
def test_without_messages_nothing_is_done(fake: FakeCluster, count: int) -> None:
    """The fresh writer that Spark makes for this knows neither run nor owner."""
    driver, _ = failing(fake)
    before = len(fake.requests)
    abort(driver.client, driver.options, [None] * count)
    assert len(fake.requests) == before


def test_a_batch_without_rows_moves_x_on_and_sweeps(fake: FakeCluster) -> None:
    driver, _ = failing(fake)
    abort(driver.client, driver.options, [driver.message(0, None)])
    assert fake.producer_of("X") != driver.owner
    assert fake.is_stable(OUT)


def test_an_x_that_is_gone_is_left_gone(fake: FakeCluster) -> None:
    driver, entries = failing(fake)
    fake.expire("X")
    driver.abort(*entries)
    assert "X" not in fake.ids


def test_a_decision_of_the_batch_before_does_not_save_this_one(fake: FakeCluster) -> None:
    driver = of(fake)
    driver.plan()
    driver.decide(0, driver.prepare(0, OUT, "first"))
    driver.plan()
    entry = driver.prepare(0, OUT, "second", slot=1)
    driver.abort(entry)
    assert fake.state(entry.transactional_id) in ENDED
    assert seen(fake) == ["first"]


def test_an_id_that_was_decided_before_is_not_taken_for_it(fake: FakeCluster) -> None:
    """After 16 attempts a task gets an id again, with another epoch."""
    driver = of(fake)
    driver.plan()
    first = driver.prepare(0, OUT, "first")
    driver.decide(0, first)
    driver.plan()
    second = driver.prepare(0, OUT, "second")
    assert second.transactional_id == first.transactional_id
    driver.abort(second)
    assert fake.state(second.transactional_id) in ENDED
    assert seen(fake) == ["first"]
    assert fake.is_stable(OUT)


def test_a_supplement_that_fails_ends_its_own_transactions_alone(fake: FakeCluster) -> None:
    """The batch was decided before; what was written again for its lost rows was not."""
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


def test_what_is_decided_and_not_rolled_forward_is_not_swept(fake: FakeCluster) -> None:
    """Not even under the same run."""
    driver, entries = failing(fake)
    other = of(fake)
    other.query_id, other.plans = "other", driver.plans
    decided = other.prepare(9, OUT, "decided")
    other.decide(4, decided)
    driver.abort(*entries)
    assert fake.state(decided.transactional_id) is TransactionState.ONGOING
    driver.plan()
    assert seen(fake) == ["decided"]


def test_what_has_ended_by_itself_does_not_matter(fake: FakeCluster) -> None:
    driver, entries = failing(fake)
    fake.advance(10_000_000)
    driver.abort(*entries)
    assert fake.is_stable(OUT)
    assert seen(fake) == []


def test_refusals_are_told_in_the_log(fake: FakeCluster, caplog: pytest.LogCaptureFixture) -> None:
    driver, entries = failing(fake)
    assert isinstance(driver.client, FakeClient)
    driver.client.fail("list_offsets", AccessError("TOPIC_AUTHORIZATION_FAILED"))
    driver.abort(*entries)
    assert "run run-1" in caplog.text
    assert "transactionalId 'X'" in caplog.text
    assert "TOPIC_AUTHORIZATION_FAILED" in caplog.text
    assert all(fake.state(e.transactional_id) is TransactionState.ONGOING for e in entries)
