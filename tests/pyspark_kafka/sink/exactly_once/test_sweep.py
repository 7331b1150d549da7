"""Tests of the sweep, which aborts open undecided transactions, but none of a newer owner."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pyspark_kafka.errors import AuthorizationError, PysparkKafkaError, SinkFencedError
from pyspark_kafka.kafka.transactions import (
    ProducerIdAndEpoch,
    TransactionDescription,
    TransactionState,
    TransactionVersion,
)
from pyspark_kafka.options.table import TRANSACTION_TIMEOUT_MS_MIN
from pyspark_kafka.sink.exactly_once.sweep import is_held, sweep
from tests.conformance.eventually import eventually
from tests.pyspark_kafka.sink.exactly_once.conftest import Setting
from tests.pyspark_kafka.sink.exactly_once.drivers import Driver, rows
from tests.pyspark_kafka.sink.exactly_once.fake_client import FakeClient
from tests.pyspark_kafka.sink.exactly_once.fake_cluster import FakeCluster

OUT = "out"
ENDED = {1: TransactionState.EMPTY, 2: TransactionState.COMPLETE_ABORT}
"""The state of an id that a sweep has fenced, by transaction version."""


def sweep_of(driver: Driver, **options: Any) -> tuple[str, ...]:
    return sweep(driver.client, driver.sink_id, driver.owner, driver.version, **options)


def states(driver: Driver, *ids: str) -> list[TransactionState]:
    found = driver.client.describe_transactions(ids)
    return [found[each].state for each in ids]


def _producer_of(driver: Driver, transactional_id: str) -> ProducerIdAndEpoch:
    return driver.client.describe_transactions([transactional_id])[transactional_id].producer


@pytest.fixture
def driver(fake: FakeCluster, client: FakeClient) -> Driver:
    """Return a driver on a fake cluster with the topic `out`, after planning."""
    fake.create_topic(OUT)
    driver = Driver(
        client=client, sink_id="X", commit_topic="commits", version=fake.transaction_version
    )
    driver.plan()
    return driver


def another(fake: FakeCluster, name: str, **changes: str) -> Driver:
    return Driver(
        client=fake.client(name),
        sink_id=changes.get("sink_id", "X"),
        run=name,
        commit_topic="commits",
        version=fake.transaction_version,
    )


# --- on every cluster ---


def test_sweep_aborts_only_open_transactions_of_the_sink(setting: Setting) -> None:
    """The id X2 begins with X, but X/... can only be tasks of X."""
    topic = setting.world.topic()
    neighbours = [setting.driver(sink_id=f"{setting.sink_id}{more}") for more in ("2", ".", "-")]
    for neighbour in neighbours:
        neighbour.plan()
    theirs = [neighbour.prepare(0, topic, f"{n}") for n, neighbour in enumerate(neighbours)]
    driver = setting.driver()
    driver.plan()
    committed = driver.prepare(1, topic, "committed")
    driver.commit(committed)
    opened = [driver.prepare(0, topic, "lost", attempt=n) for n in range(3)]
    found = sweep_of(driver)
    assert sorted(found) == [each.transactional_id for each in opened]
    assert sweep_of(driver) == ()
    for neighbour, entry in zip(neighbours, theirs, strict=True):
        assert states(neighbour, entry.transactional_id) == [TransactionState.ONGOING]
        neighbour.commit(entry)
    assert setting.world.committed(topic) == [b"0", b"1", b"2", b"committed"]


def test_sweep_fences_a_writing_task(setting: Setting) -> None:
    """The writing task fails, and cannot silently begin another transaction.

    Until its partition has the marker, it can still append rows, which the marker aborts.
    """
    driver, topic = setting.driver(), setting.world.topic()
    driver.plan()
    own_id = driver.id_of(0)
    producer = driver.client.init_producer_id(own_id, timeout_ms=60_000)
    writer = driver.client.transactional_producer(own_id, producer, driver.version)
    writer.send(rows(topic, 0, ["early"]))
    writer.flush()
    assert sweep_of(driver) == (own_id,)
    eventually(lambda: states(driver, own_id) == [ENDED[driver.version]])
    with pytest.raises(PysparkKafkaError):
        _send(writer, topic)
    writer.abort()
    assert states(driver, own_id) == [ENDED[driver.version]]
    assert setting.world.committed(topic) == []


def _send(writer: object, topic: str) -> None:
    writer.send(rows(topic, 0, ["late"]))  # type: ignore[attr-defined]
    writer.flush()  # type: ignore[attr-defined]


def test_sweep_of_a_generation_leaves_others_alone(setting: Setting) -> None:
    topic = setting.world.topic()
    driver, other = setting.driver("run-1"), setting.driver("run-2")
    driver.plan()
    mine = driver.prepare(0, topic, "mine")
    other.plans = [replace(driver.plans[-1], generation=driver.generation + 10)]
    theirs = other.prepare(0, topic, "theirs")
    assert sweep_of(driver, generation=driver.generation) == (mine.transactional_id,)
    assert states(other, theirs.transactional_id) == [TransactionState.ONGOING]


def test_sweep_fences_an_attempt_that_has_not_begun(setting: Setting) -> None:
    """A late attempt could begin a transaction after the last sweep of an idle query."""
    driver, topic = setting.driver(), setting.world.topic()
    driver.plan()
    done = driver.prepare(0, topic, "done")
    driver.commit(done)
    own_id = driver.id_of(1)
    # With a sweep's own timeout, the attempt would count as fenced.
    for timeout_ms in (60_000, TRANSACTION_TIMEOUT_MS_MIN):
        producer = driver.client.init_producer_id(own_id, timeout_ms=timeout_ms)
        assert sweep_of(driver) == ()
        fenced = _producer_of(driver, own_id)
        assert sweep_of(driver) == ()
        assert _producer_of(driver, own_id) == fenced, "it is fenced once"
        writer = driver.client.transactional_producer(own_id, producer, driver.version)
        with pytest.raises(PysparkKafkaError):
            _send(writer, topic)
        writer.abort()
    assert setting.world.committed(topic) == [b"done"]


def test_sweep_spares_decided_transactions(setting: Setting) -> None:
    driver, topic = setting.driver(), setting.world.topic()
    driver.plan()
    spared, other = driver.prepare(0, topic, "a"), driver.prepare(1, topic, "b")
    found = sweep_of(driver, spare={spared.transactional_id})
    assert found == (other.transactional_id,)
    driver.commit(spared)
    assert setting.world.committed(topic) == [b"a"]


def test_fenced_driver_sweeps_nothing(setting: Setting) -> None:
    topic = setting.world.topic()
    old, new = setting.driver("old"), setting.driver("new")
    old.plan()
    new.plan()
    entry = new.prepare(0, topic, "new")
    left = old.prepare(0, topic, "late task of the old one")
    with pytest.raises(SinkFencedError) as caught:
        sweep_of(old)
    assert caught.value.transactional_id == setting.sink_id
    new.decide(1, entry)
    for is_decided in (False, True):
        with pytest.raises(SinkFencedError):
            sweep_of(old, is_decided=is_decided)
    assert states(new, entry.transactional_id) == [TransactionState.ONGOING]
    assert states(new, left.transactional_id) == [TransactionState.ONGOING]


def test_driver_may_sweep_after_its_own_decision(setting: Setting) -> None:
    """The driver has planned with one epoch, and in version 2 its decision bumps the epoch."""
    driver, topic = setting.driver(), setting.world.topic()
    driver.plan()
    entry, left = driver.prepare(0, topic, "a"), driver.prepare(1, topic, "b")
    driver.decide(1, entry)
    driver.commit(entry)
    found = sweep_of(driver, generation=driver.generation, is_decided=True)
    assert found == (left.transactional_id,)


# --- concurrent requests ---


@pytest.mark.parametrize(
    ("moment", "nth"),
    [
        ("list_transactions", 1),
        ("describe_transactions", 1),
        ("describe_transactions", 2),
        ("list_transactions", 2),
    ],
)
def test_sweep_never_fences_a_newer_owners_tasks(
    fake: FakeCluster, driver: Driver, client: FakeClient, moment: str, nth: int
) -> None:
    """The sweep lists transactions before it checks the owner, so it has none of a newer owner."""
    left = [driver.prepare(n, OUT, f"{n}") for n in range(2)]
    new = another(fake, "new")

    def take_over() -> None:
        new.plan()
        new.decide(7, new.prepare(0, OUT, "of the new one"), new.prepare(1, OUT, "of the new one"))

    for _ in range(nth - 1):
        client.before(moment, lambda: None)
    client.before(moment, take_over)
    with pytest.raises(SinkFencedError):
        sweep_of(driver)
    new.plan()
    assert [value for _, value in fake.committed(OUT)] == [b"of the new one"] * 2
    assert all(fake.state(each.transactional_id) is ENDED[driver.version] for each in left)


def test_stalled_sweep_does_not_harm_an_id_in_use_again() -> None:
    """With version 2, it ends exactly the transaction that it has described."""
    fake = FakeCluster(2, has_topic_ids=True)
    fake.create_topic(OUT)
    old = Driver(client=fake.client("old"), sink_id="X", commit_topic="commits", version=2)
    old.plan()
    left = old.prepare(0, OUT, "old")
    new = another(fake, "new")

    def take_over() -> None:
        new.plan()
        new.plans[-1] = replace(new.plans[-1], generation=old.generation)
        new.decide(7, new.prepare(0, OUT, "new"))

    assert isinstance(old.client, FakeClient)
    old.client.before("end_transactions", take_over)
    with pytest.raises(SinkFencedError):
        sweep_of(old)
    assert fake.state(left.transactional_id) is TransactionState.ONGOING
    new.plan()
    assert [value for _, value in fake.committed(OUT)] == [b"new"]


def test_unlisted_transaction_is_left_to_the_next_planning(
    fake: FakeCluster, driver: Driver, client: FakeClient
) -> None:
    entry = driver.prepare(0, OUT, "a")
    fake.unlisted_ids.add(entry.transactional_id)
    assert sweep_of(driver) == ()
    assert fake.state(entry.transactional_id) is TransactionState.ONGOING
    fake.unlisted_ids.clear()
    driver.plan()
    assert fake.state(entry.transactional_id) is ENDED[driver.version]
    assert fake.is_stable(OUT)


def test_transaction_opened_during_the_sweep_is_swept(
    fake: FakeCluster, driver: Driver, client: FakeClient
) -> None:
    first, second = driver.prepare(0, OUT, "a"), driver.prepare(1, OUT, "b")
    fake.unlisted_ids.add(second.transactional_id)
    fencing = {1: "init_producer_id", 2: "end_transactions"}
    client.before(fencing[driver.version], fake.unlisted_ids.clear)
    assert sweep_of(driver) == (first.transactional_id, second.transactional_id)


def test_sweep_ends_while_tasks_keep_writing(
    fake: FakeCluster, driver: Driver, client: FakeClient
) -> None:
    """Zombie tasks may begin again with the same id; the next planning run sweeps them."""
    for _ in range(40):
        client.before("list_transactions", lambda: another(fake, "run-1").prepare(0, OUT, "a"))
    assert set(sweep_of(driver)) == {"X/0/0/0-0"}


def test_sweep_ignores_ids_that_are_not_of_tasks(fake: FakeCluster, driver: Driver) -> None:
    strangers = ["X/0/0/0", "X/a/b/c", "X/0/0/0-9"]
    for stranger in strangers:
        producer = driver.client.init_producer_id(stranger, timeout_ms=1000)
        writer = driver.client.transactional_producer(stranger, producer, driver.version)
        writer.send(rows(OUT, 0, ["a"]))
    assert sweep_of(driver) == ()
    assert states(driver, *strangers) == [TransactionState.ONGOING] * 3


def test_sweep_ignores_ending_transactions(fake: FakeCluster, driver: Driver) -> None:
    entry = driver.prepare(0, OUT, "a")
    fake.holds_markers = True
    driver.commit(entry)
    assert sweep_of(driver) == ()


# --- ACLs ---


def test_missing_describe_acl_is_an_error(
    fake: FakeCluster, driver: Driver, client: FakeClient
) -> None:
    driver.prepare(0, OUT, "a")
    fake.denied_requests = {"list_transactions", "describe_transactions"}
    with pytest.raises(AuthorizationError) as error:
        sweep_of(driver)
    assert error.value.transactional_id == "X"
    assert "DESCRIBE" in error.value.advice


def test_describe_acl_is_checked_with_a_task_id(
    fake: FakeCluster, driver: Driver, client: FakeClient
) -> None:
    sweep_of(driver)
    (asked,) = [r.subject for r in fake.requests if r.name == "describe_transactions"][-1:]
    own, made_up = asked.split(",")
    assert own == "X"
    assert made_up.startswith("X/")
    assert made_up not in fake.ids


# --- the owner ---

COMMITTED = TransactionState.COMPLETE_COMMIT


@pytest.mark.parametrize(
    ("state", "producer_id", "epoch", "version", "expected"),
    [
        (TransactionState.EMPTY, 7, 5, 2, True),
        (TransactionState.EMPTY, 7, 5, 1, True),
        (TransactionState.EMPTY, 7, 5, None, True),
        (COMMITTED, 7, 6, None, False),
        (COMMITTED, 7, 5, 1, True),
        (COMMITTED, 7, 6, 2, True),
        (TransactionState.PREPARE_COMMIT, 7, 6, 2, True),
        # The next owner, which has decided with version 1, or has not decided yet.
        (COMMITTED, 7, 6, 1, False),
        (TransactionState.EMPTY, 7, 6, 2, False),
        (TransactionState.ONGOING, 7, 6, 2, False),
        (TransactionState.COMPLETE_ABORT, 7, 6, 2, False),
        (COMMITTED, 7, 7, 2, False),
        (COMMITTED, 7, 4, 2, False),
        (COMMITTED, 8, 6, 2, False),
        (COMMITTED, 8, 0, 2, False),
        (TransactionState.EMPTY, 8, 5, 2, False),
    ],
)
def test_owner_of_the_sink_id(
    state: TransactionState,
    producer_id: int,
    epoch: int,
    version: TransactionVersion | None,
    expected: bool,
) -> None:
    owner = ProducerIdAndEpoch(producer_id=7, producer_epoch=5)
    assert is_held(_described(state, producer_id, epoch), owner, version) is expected


@pytest.mark.parametrize(
    ("state", "epoch", "expected"),
    [(COMMITTED, 0, True), (TransactionState.EMPTY, 0, False), (COMMITTED, 1, False)],
)
def test_owner_of_the_sink_id_after_the_last_epoch(
    state: TransactionState, epoch: int, expected: bool
) -> None:
    owner = ProducerIdAndEpoch(producer_id=7, producer_epoch=32_766)
    assert is_held(_described(state, 8, epoch), owner, 2) is expected


def _described(state: TransactionState, producer_id: int, epoch: int) -> TransactionDescription:
    return TransactionDescription(
        transactional_id="X",
        state=state,
        producer=ProducerIdAndEpoch(producer_id=producer_id, producer_epoch=epoch),
        timeout_ms=30_000,
        started_ms=None,
        partitions=frozenset(),
    )


def test_last_epoch_of_the_sink_id(fake: FakeCluster, driver: Driver, client: FakeClient) -> None:
    """Every 16,000 batches the sink gets another producer id during a commit."""
    fake.exhaust("X")
    owner = fake.producer_of("X")
    driver.plans[-1] = replace(driver.plans[-1], owner=owner)
    entry, left = driver.prepare(0, OUT, "a"), driver.prepare(1, OUT, "b")
    driver.decide(1, entry)
    spare = {entry.transactional_id}
    found = sweep_of(driver, spare=spare, is_decided=True)
    assert found == (left.transactional_id,)
    driver.plan()
    assert fake.producer_of("X").producer_id != owner.producer_id
    with pytest.raises(SinkFencedError):
        sweep(client, "X", owner, driver.version, is_decided=True)
    assert [value for _, value in fake.committed(OUT)] == [b"a"]
