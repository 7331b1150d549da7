"""Tests of planning, which commits or aborts all earlier batches of its own sink only."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
from kio.schema.errors import ErrorCode

from pyspark_kafka.errors import (
    AuthorizationError,
    BrokerUnreachableError,
    CommitTopicError,
    EarlierJobCommittedError,
    KafkaError,
    OptionError,
    OutcomeUnknownError,
    ProducerFencedError,
    RowsLostError,
    SinkFencedError,
)
from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.kafka.transactions import TransactionState
from pyspark_kafka.sink.exactly_once.decisions import Entry, QueryState, SinkState
from pyspark_kafka.sink.exactly_once.planning import plan
from pyspark_kafka.sink.exactly_once.roll_forward import roll_forward
from pyspark_kafka.sink.exactly_once.sweep import sweep
from tests.conftest import ClusterFactory
from tests.pyspark_kafka.sink.exactly_once.conftest import Setting
from tests.pyspark_kafka.sink.exactly_once.drivers import Driver, totals
from tests.pyspark_kafka.sink.exactly_once.fake_client import FakeClient
from tests.pyspark_kafka.sink.exactly_once.fake_cluster import FakeCluster
from tests.pyspark_kafka.sink.exactly_once.worlds import RealWorld

OUT = "out"
COMMITS = "commits"


def of(
    fake: FakeCluster, run: str = "run-1", *, sink_id: str = "X", query_id: str = "query"
) -> Driver:
    """Return a driver on a fake cluster that has the topic `out` with two partitions."""
    if OUT not in fake.topics:
        fake.create_topic(OUT, 2)
    return Driver(
        client=fake.client(run),
        sink_id=sink_id,
        run=run,
        query_id=query_id,
        commit_topic=COMMITS,
        version=fake.transaction_version,
    )


def asked_by(driver: Driver) -> list[str]:
    assert isinstance(driver.client, FakeClient)
    return driver.client.asked()


def seen(fake: FakeCluster, topic: str = OUT) -> list[str]:
    return sorted((value or b"").decode() for _, value in fake.committed(topic))


def is_finished(driver: Driver) -> bool:
    return driver.topic.read().queries[driver.query_id].is_finished


# --- on every cluster ---


def test_planning_finishes_a_decided_batch(setting: Setting) -> None:
    topic = setting.world.topic(2)
    old, new = setting.driver("old"), setting.driver("new")
    assert old.plan().last == {}
    entries = [old.prepare(0, topic, "a", to=(0, 1)), old.prepare(1, topic, "b", "c")]
    decision = old.decide(7, *entries)
    left = old.prepare(2, topic, "undecided")
    assert setting.world.committed(topic) == []
    found = new.plan()
    assert setting.world.committed(topic) == [b"a", b"a", b"b", b"c"]
    last = found.last["query"]
    assert (last.number, last.batch_id) == (1, 7) == (decision.number, decision.batch_id)
    assert (last.lost, last.totals_of_lost) == (frozenset(), {})
    assert is_finished(new)
    (listed,) = [
        one
        for one in new.client.list_transactions(f"{setting.sink_id}/")
        if one.transactional_id == left.transactional_id
    ]
    assert listed.state is not TransactionState.ONGOING
    assert new.plan().last == found.last


def test_planning_aborts_an_undecided_batch(setting: Setting) -> None:
    topic = setting.world.topic()
    old, new = setting.driver("old"), setting.driver("new")
    old.plan()
    old.prepare(0, topic, "a")
    old.write_decision(old.decision(7))
    assert new.plan().last == {}
    assert setting.world.committed(topic) == []
    # No later request of the old driver can decide a batch.
    assert old.end(old.sink_id, old.owner) is not ErrorCode.none
    with pytest.raises(KafkaError):
        old.write_decision(old.decision(8))
    assert new.plan().last == {}


def test_plan_names_lost_rows_until_they_are_written_again(setting: Setting) -> None:
    topic = setting.world.topic()
    old, new = setting.driver("old"), setting.driver("new")
    old.plan()
    kept, lost = old.prepare(0, topic, "kept"), old.prepare(5, topic, "lost", "lost")
    old.end(lost.transactional_id, lost.producer, is_commit=False)
    old.decide(7, kept, lost)
    for _ in range(2):
        last = new.plan().last["query"]
        assert last.lost == {5}
        assert last.totals_of_lost == {5: totals(["lost", "lost"])}
        assert not is_finished(new)
    again = new.prepare(5, topic, "lost", "lost")
    new.decide(7, kept, again, number=2)
    last = new.plan().last["query"]
    assert (last.number, last.lost) == (2, frozenset())
    assert is_finished(new)
    assert setting.world.committed(topic) == [b"kept", b"lost", b"lost"]


def test_planning_does_not_touch_a_sink_with_the_same_prefix(setting: Setting) -> None:
    mine, theirs = setting.world.topic(), setting.world.topic()
    neighbour, driver = setting.driver(sink_id=f"{setting.sink_id}2"), setting.driver()
    neighbour.plan()
    undecided = neighbour.prepare(0, theirs, "undecided")
    driver.plan()
    driver.decide(1, driver.prepare(0, mine, "mine"))
    driver.plan()
    decision = neighbour.decide(1, undecided)
    driver.plan()
    assert setting.world.committed(mine) == [b"mine"]
    assert setting.world.committed(theirs) == []
    assert neighbour.topic.read().queries["query"].decision == decision
    assert neighbour.plan().last["query"].batch_id == 1
    assert setting.world.committed(theirs) == [b"undecided"]


def test_planning_finishes_batches_of_other_queries_of_the_sink(setting: Setting) -> None:
    topic = setting.world.topic()
    one, two = setting.driver(query_id="one"), setting.driver("run-2", query_id="two")
    one.plan()
    one.decide(3, one.prepare(0, topic, "a"))
    two.plan()
    two.decide(0, two.prepare(0, topic, "b"))
    last = one.plan().last
    assert {query: each.batch_id for query, each in last.items()} == {"one": 3, "two": 0}
    assert setting.world.committed(topic) == [b"a", b"b"]
    assert is_finished(one)
    assert is_finished(two)


def test_old_driver_finishes_its_decision_while_a_new_owner_writes(setting: Setting) -> None:
    """A late roll forward, mark or sweep has the same effect as an early one."""
    topic = setting.world.topic()
    old, new = setting.driver("old"), setting.driver("new")
    old.plan()
    first = old.prepare(0, topic, "first")
    decision = old.decide(1, first)
    new.plan()
    second = new.prepare(0, topic, "second")
    assert roll_forward(old.client, QueryState(decision=decision)) == ()
    new.decide(2, second, number=2)
    old.mark_finished(decision)
    for is_decided in (False, True):
        with pytest.raises(SinkFencedError):
            sweep(old.client, old.sink_id, old.owner, old.version, is_decided=is_decided)
    # The late mark belongs to decision 1, so decision 2 still needs a roll forward.
    assert not is_finished(new)
    assert setting.world.committed(topic) == [b"first"]
    assert new.plan().last["query"].number == 2
    assert is_finished(new)
    assert setting.world.committed(topic) == [b"first", b"second"]
    assert roll_forward(old.client, QueryState(decision=decision)) == ()


def test_commit_topic_with_retention_is_refused_before_fencing(setting: Setting) -> None:
    driver = setting.driver()
    driver.client.create_topic(
        setting.commit_topic,
        partition_count=1,
        replication_factor=1,
        config={"cleanup.policy": "delete"},
    )
    with pytest.raises(CommitTopicError, match=r"cleanup\.policy\b.*'delete'"):
        driver.plan()
    assert driver.client.describe_transactions([driver.sink_id]) == {}


def test_many_decisions(setting: Setting) -> None:
    topic = setting.world.topic()
    driver = setting.driver()
    for number in range(1, 8):
        found = driver.plan()
        assert {each.number for each in found.last.values()} == ({number - 1} - {0})
        driver.decide(number, driver.prepare(0, topic, f"{number}", slot=number), number=number)
    driver.plan()
    assert setting.world.committed(topic) == [f"{number}".encode() for number in range(1, 8)]


# --- numbers of requests ---


def test_planning_without_work_sends_few_requests(fake: FakeCluster) -> None:
    driver = of(fake)
    driver.plan()
    driver.decide(1, driver.prepare(0, OUT, "a"))
    driver.plan()
    before = len(asked_by(driver))
    driver.plan()
    requests = asked_by(driver)[before:]
    assert len(requests) <= (8 if fake.has_topic_ids else 12), requests
    assert "end_transactions" not in requests
    assert requests.count("produce") == 1  # to the leader of the commit topic, before reading


def test_unfinished_decision_is_committed_in_one_request(fake: FakeCluster) -> None:
    driver = of(fake)
    driver.plan()
    driver.decide(1, *[driver.prepare(n, OUT, f"{n}") for n in range(50)])
    before = len(asked_by(driver))
    driver.plan()
    requests = asked_by(driver)[before:]
    assert requests.count("end_transactions") == 1
    assert len(requests) <= 11 + 5, requests
    assert len(seen(fake)) == 50


def test_finished_job_leaves_no_records(fake: FakeCluster) -> None:
    job = of(fake, query_id="job")
    job.plan(is_single_job=True)
    decision = job.decide(None, *[job.prepare(n, OUT, f"{n}") for n in range(2)])
    roll_forward(job.client, QueryState(decision=decision), is_new=True)
    job.delete(decision)
    other = of(fake, query_id="other")
    assert other.plan(is_single_job=True).last == {}
    assert other.topic.read().obsolete == ()
    # A late driver of the job finds nothing to do and changes nothing.
    job.delete(decision)
    assert other.plan(is_single_job=True).last == {}
    assert seen(fake) == ["0", "1"]


@pytest.mark.parametrize("has_stream_between", [False, True])
def test_job_that_stopped_after_its_decision_is_reported_once(
    fake: FakeCluster, has_stream_between: bool
) -> None:
    """The scheduler starts the job again, which would write its rows a second time."""
    jobs = [of(fake, f"run-{n}", query_id=f"job-{n}") for n in range(3)]
    jobs[0].plan(is_single_job=True)
    jobs[0].decide(None, jobs[0].prepare(0, OUT, "a", "b"))
    if has_stream_between:
        of(fake, "stream", query_id="stream").plan()
        assert seen(fake) == ["a", "b"]
    with pytest.raises(EarlierJobCommittedError) as caught:
        jobs[1].plan(is_single_job=True)
    assert caught.value.transactional_id == "X"
    assert "2 rows of run run-0" in caught.value.what
    assert has_stream_between or f"{OUT}-0" in caught.value.what
    assert seen(fake) == ["a", "b"]
    assert jobs[2].plan(is_single_job=True).last == {}
    assert jobs[2].topic.read() == SinkState(forgotten_number=0, queries={})


@pytest.mark.parametrize("is_lost_after_write", [False, True])
def test_job_is_reported_after_a_failed_planning_run(
    fake: FakeCluster, is_lost_after_write: bool
) -> None:
    """A failure of the sweep deletes nothing. A failure of the deletion does not hide the job."""
    jobs = [of(fake, f"run-{n}", query_id=f"job-{n}") for n in range(3)]
    jobs[0].plan(is_single_job=True)
    jobs[0].decide(None, jobs[0].prepare(0, OUT, "a"))
    assert isinstance(jobs[1].client, FakeClient)
    if is_lost_after_write:
        lose = partial(jobs[1].client.lose_response, "flush")
        jobs[1].client.before("list_transactions", lose)
    else:
        jobs[1].client.fail("list_transactions", BrokerUnreachableError("the network"))
        with pytest.raises(BrokerUnreachableError):
            jobs[1].plan(is_single_job=True)
        assert set(jobs[2].topic.read().queries) == {"job-0"}
    with pytest.raises(EarlierJobCommittedError):
        jobs[1].plan(is_single_job=True)
    assert jobs[2].plan(is_single_job=True).last == {}
    assert seen(fake) == ["a"]


@pytest.mark.parametrize("is_expired", [False, True])
def test_job_with_lost_rows_stops_later_jobs_only(fake: FakeCluster, is_expired: bool) -> None:
    job = of(fake, query_id="job")
    job.plan(is_single_job=True)
    entry = job.prepare(0, OUT, "a")
    fake.advance(10_000_000)
    job.decide(None, entry)
    if is_expired:
        fake.expire(entry.transactional_id)
        fake.log(TopicPartition(OUT, 0)).delete_before(fake.log(TopicPartition(OUT, 0)).end)
    for _ in range(2):
        last = of(fake, query_id="stream").plan().last["job"]
        assert (last.lost == {0}, last.unknown is not None) == (not is_expired, is_expired)
        with pytest.raises(OutcomeUnknownError if is_expired else RowsLostError) as caught:
            of(fake, query_id="job-2").plan(is_single_job=True)
        assert "--accept-loss" in caught.value.advice
    # Another job that stopped after its decision is still reported later.
    other = of(fake, query_id="job-3")
    other.plan()
    other.decide(None, other.prepare(0, OUT, "b"))
    with pytest.raises(OutcomeUnknownError if is_expired else RowsLostError):
        of(fake, query_id="job-4").plan(is_single_job=True)
    assert set(other.topic.read().queries) == {"job", "job-3"}


# --- checks of the brokers ---


@pytest.mark.parametrize(("limit", "is_refused"), [("119999", True), ("120000", False)])
def test_timeout_above_the_brokers_limit(fake: FakeCluster, limit: str, is_refused: bool) -> None:
    driver = of(fake)
    assert fake.broker_config is not None
    fake.broker_config["transaction.max.timeout.ms"] = limit
    if not is_refused:
        driver.plan()
        return
    with pytest.raises(OptionError, match=r"120000 ms.*119999 ms") as caught:
        driver.plan()
    assert caught.value.option == "transactionTimeout"
    assert "X" not in fake.ids


def test_every_timeout_is_checked(fake: FakeCluster) -> None:
    """Spark plans all queries of a driver in one process."""
    driver = of(fake)
    assert fake.broker_config is not None
    fake.broker_config["transaction.max.timeout.ms"] = "120000"
    driver.plan()
    driver.plan()
    with pytest.raises(OptionError, match="120001 ms"):
        plan(driver.client, replace(driver.options, transaction_timeout_ms=120_001))


def test_short_timeout_applies_to_decisions(fake: FakeCluster) -> None:
    """Otherwise a broker with a small maximum timeout would reject the sink's id."""
    driver = of(fake)
    plan(driver.client, replace(driver.options, transaction_timeout_ms=1_000))
    assert driver.client.describe_transactions(["X"])["X"].timeout_ms == 1_000


def test_refused_broker_config_is_requested_once() -> None:
    fake = FakeCluster(2, has_topic_ids=True)
    fake.broker_config = None
    driver = of(fake)
    for _ in range(3):
        driver.plan()
    # The first planning creates the topic and does not know its topic id yet.
    assert asked_by(driver).count("broker_config") == 2


@pytest.mark.parametrize("value", ["true", "false", None])
def test_missing_partition_verification_is_a_warning(
    fake: FakeCluster, value: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    name = "transaction.partition.verification.enable"
    fake.broker_config = {} if value is None else {name: value}
    of(fake).plan()
    assert (name in caplog.text) is (value != "true")


# --- unknown outcomes ---


def expired(fake: FakeCluster) -> tuple[Driver, Entry]:
    """Return the driver of another query whose transactional id has expired."""
    other = of(fake, "other", query_id="other")
    other.plan()
    entry = other.prepare(0, OUT, "a")
    other.decide(1, entry)
    other.commit(entry)
    fake.expire(entry.transactional_id)
    return other, entry


def test_unknown_outcome_stops_only_its_query(
    fake: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """The decision of that query is kept, and its transactions are not swept."""
    other, entry = expired(fake)
    fake.log(TopicPartition(OUT, 0)).delete_before(2)
    driver = of(fake)
    for _ in range(2):
        planned = driver.plan().last["other"]
        assert planned.unknown is not None
        assert re.search(r"(?i)decision 1\b.*\bother\b", planned.unknown.what)
        assert "python -m pyspark_kafka transactions --id=X" in planned.unknown.advice
        assert planned.unknown.what in caplog.text
    other.mark_finished(other.decision(1, entry))
    assert driver.plan().last["other"].unknown is None


def test_expired_outcome_is_looked_up_once() -> None:
    """Each look-up reads logs to their ends."""
    fake = FakeCluster(2, has_topic_ids=True)
    expired(fake)
    fake.log(TopicPartition(OUT, 0)).delete_before(2)
    driver = of(fake)
    driver.plan()
    client = fake.client("later")
    assert plan(client, driver.options).last["other"].unknown is not None
    assert "end_transactions" not in client.asked()


def test_unreadable_outcome_is_looked_up_again(fake: FakeCluster) -> None:
    """Once the ACL is granted, no other step is needed."""
    expired(fake)
    driver, client = of(fake), fake.client("without ACL")
    refusal = AuthorizationError("TOPIC_AUTHORIZATION_FAILED")
    client.before("describe_transactions", lambda: client.fail("read_log", refusal))
    unknown = plan(client, driver.options).last["other"].unknown
    assert unknown is not None
    assert "READ" in unknown.advice
    assert driver.plan().last["other"].unknown is None


def test_interrupted_roll_forward_stops_planning(
    fake: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds for the decision of any query, which the next start completes."""
    monkeypatch.setattr("pyspark_kafka.sink.exactly_once.roll_forward._BACKOFFS_S", ())
    other, driver = of(fake, "other", query_id="other"), of(fake)
    other.plan()
    other.decide(1, other.prepare(0, OUT, "a"))
    client = fake.client("failing")
    client.fail("end_transactions", BrokerUnreachableError("nobody answers"))
    with pytest.raises(OutcomeUnknownError) as caught:
        plan(client, driver.options)
    assert caught.value.transactional_id == "X"
    assert driver.plan().last["other"].unknown is None


def test_lost_rows_of_one_query_do_not_stop_another(fake: FakeCluster) -> None:
    one, two = of(fake, "one", query_id="one"), of(fake, "two", query_id="two")
    one.plan()
    entry = one.prepare(3, OUT, "a")
    fake.advance(10_000_000)
    one.decide(1, entry)
    for number in (1, 2):
        assert two.plan().last["one"].lost == {3}
        two.decide(number, two.prepare(0, OUT, f"{number}"), number=number)
    two.plan()
    assert seen(fake) == ["1", "2"]
    assert one.plan().last["one"].lost == {3}


# --- kills and concurrent requests ---


def crashed(fake: FakeCluster) -> tuple[Driver, Driver]:
    """Return a driver that died after its decision, with an undecided task, and its successor."""
    old, new = of(fake, "old"), of(fake, "new")
    old.plan()
    entries = [old.prepare(n, OUT, f"{n}") for n in range(2)]
    old.prepare(2, OUT, "undecided")
    old.decide(1, *entries)
    return old, new


def requests_of_a_planning() -> int:
    _, new = crashed(FakeCluster(2))
    new.plan()
    return len(asked_by(new))


REQUESTS = requests_of_a_planning()


@pytest.mark.parametrize("number", range(1, REQUESTS + 1))
@pytest.mark.parametrize("is_done", [True, False], ids=["done", "not-done"])
def test_planning_killed_anywhere_can_be_repeated(
    fake: FakeCluster, number: int, is_done: bool
) -> None:
    _, new = crashed(fake)
    assert isinstance(new.client, FakeClient)
    if is_done:
        new.client.lose_response(number)
    else:
        new.client.fail(number, BrokerUnreachableError("killed"))
    try:
        new.plan()
    except KafkaError:
        pass
    except OutcomeUnknownError as error:
        assert isinstance(error.__cause__, KafkaError)  # noqa: PT017
    last = of(fake, "last")
    assert last.plan().last["query"].lost == frozenset()
    assert seen(fake) == ["0", "1"]
    assert fake.is_stable(OUT)
    assert is_finished(last)


@pytest.mark.parametrize("number", range(1, REQUESTS + 1))
def test_overtaken_planning_is_harmless(fake: FakeCluster, number: int) -> None:
    """A newer owner writes and decides a whole batch between the requests of the planning."""
    _, zombie = crashed(fake)
    new = of(fake, "newest")

    def take_over() -> None:
        found = new.plan().last["query"]
        new.decide(2, new.prepare(0, OUT, "next"), number=found.number + 1)

    assert isinstance(zombie.client, FakeClient)
    zombie.client.before(number, take_over)
    try:
        zombie.plan()
    except SinkFencedError:
        pass
    else:
        if new.plans:
            # The old driver fenced the id again before it detected the newer owner.
            assert zombie.owner == fake.producer_of("X")
        else:  # With topic ids, planning sends fewer requests.
            take_over()
    last = new.plan().last["query"]
    assert (last.number, last.lost) == (2, frozenset())
    assert seen(fake) == ["0", "1", "next"]
    assert fake.is_stable(OUT)


@pytest.mark.parametrize("number", range(1, REQUESTS + 1))
def test_concurrent_plannings_have_one_owner(fake: FakeCluster, number: int) -> None:
    _, one = crashed(fake)
    two = of(fake, "two")
    assert isinstance(one.client, FakeClient)
    one.client.before(number, two.plan)
    try:
        one.plan()
    except SinkFencedError:
        winner, loser = two, None
    else:
        winner, loser = one, two
        if not two.plans:  # With topic ids, planning sends fewer requests.
            two.plan()
            winner, loser = two, one
    if loser is not None and loser.owner != winner.owner:
        with pytest.raises(ProducerFencedError):
            loser.write_decision(loser.decision(9, number=2))
    winner.decide(2, winner.prepare(0, OUT, "next"), number=2)
    winner.plan()
    assert seen(fake) == ["0", "1", "next"]


def test_reused_task_id_is_not_the_decided_transaction(fake: FakeCluster) -> None:
    """A task may reuse an id only after the finished mark.

    A late roll forward then finds the id with another transaction.
    """
    old, new = of(fake, "run"), of(fake, "run")
    old.plan()
    entry = old.prepare(0, OUT, "first")
    decision = old.decide(1, entry)
    new.plan()
    again = new.prepare(0, OUT, "second", generation=old.generation)
    assert again.transactional_id == entry.transactional_id
    assert roll_forward(old.client, QueryState(decision=decision)) == ()
    assert seen(fake) == ["first"]
    new.decide(2, again, number=2)
    new.plan()
    assert seen(fake) == ["first", "second"]


def test_planning_at_the_last_epochs(fake: FakeCluster) -> None:
    """16,000 batches use up a producer id of the sink and of its tasks."""
    driver = of(fake)
    for number in range(1, 6):
        driver.plan()
        if number == 3:
            for name in fake.ids:
                fake.exhaust(name)
            driver.plan()
        entries = [driver.prepare(n, OUT, f"{number}-{n}") for n in range(2)]
        driver.decide(number, *entries, number=number)
        if number == 4:
            for name in ("X",):
                fake.exhaust(name)
    driver.plan()
    assert len(seen(fake)) == 10
    assert fake.is_stable(OUT)


# --- failing brokers ---


@pytest.mark.slow
def test_planning_while_coordinators_and_leaders_move(
    cluster_with: ClusterFactory, unique_name: Callable[[], str]
) -> None:
    """Planning continues when coordinators and leaders of the commit topic move."""
    cluster = cluster_with(
        {
            "transaction.state.log.replication.factor": "3",
            "transaction.state.log.min.isr": "2",
            "transaction.state.log.num.partitions": "6",
            "offsets.topic.replication.factor": "3",
        },
        brokers=3,
    )
    name = unique_name()
    cluster.create_topic(name, partitions=3, replication_factor=3)

    world = RealWorld(cluster.bootstrap_servers, lambda: name, unique_name)
    sink_id, commit_topic = unique_name(), unique_name()
    for number, gone in enumerate(cluster.broker_ids, start=1):
        with world.client("old") as client:
            old = Driver(
                client=client,
                sink_id=sink_id,
                commit_topic=commit_topic,
                version=client.transaction_version(),
            )
            old.plan()
            entries = [
                old.prepare(n, name, f"{number}-{n}", slot=number, to=(n,)) for n in range(3)
            ]
            old.prepare(7, name, "undecided", slot=number)
            old.decide(number, *entries, number=number)
            cluster.stop_broker(gone)
            with world.client("new") as another:
                last = replace(old, client=another, plans=[]).plan().last["query"]
            assert (last.number, last.lost) == (number, frozenset())
            # The client with outdated metadata finds the new brokers, too.
            assert old.plan().last["query"].number == number
        cluster.start_broker(gone)
