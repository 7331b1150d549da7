"""Tests of the commit topic: creation, checks, and reads despite open transactions."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest

from pyspark_kafka.columns import PRODUCE_SCHEMA
from pyspark_kafka.errors import (
    AuthorizationError,
    CommitTopicError,
    DeliveryError,
)
from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.records.partitioning import partition_of_key
from pyspark_kafka.sink.exactly_once.commit_log import read_commit_log
from pyspark_kafka.sink.exactly_once.commit_topic import (
    CHUNK_BYTES_MAX,
    PARTITIONS,
    CommitTopic,
    SinkNotRegisteredError,
)
from pyspark_kafka.sink.exactly_once.decisions import (
    QueryState,
    SinkState,
    finishing_records,
    key_prefix,
    registration,
    to_records,
)
from tests.pyspark_kafka.sink.exactly_once.conftest import Setting
from tests.pyspark_kafka.sink.exactly_once.drivers import Driver
from tests.pyspark_kafka.sink.exactly_once.fake_client import FakeClient
from tests.pyspark_kafka.sink.exactly_once.fake_cluster import FakeCluster
from tests.pyspark_kafka.sink.exactly_once.fake_log import FakeLog
from tests.pyspark_kafka.sink.exactly_once.runs import neighbour_of

NAME = "__spark_commits"
SOUND = {"cleanup.policy": "compact", "min.insync.replicas": "2"}


def ensure(client: FakeClient) -> None:
    CommitTopic(client, NAME, "X").ensure()


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Callable[[], str]:
    caplog.set_level(logging.WARNING)
    return lambda: "\n".join(record.getMessage() for record in caplog.records)


# --- creation and checks ---


@pytest.mark.parametrize(
    ("brokers", "replicas", "in_sync"), [(1, 1, "1"), (2, 2, "2"), (3, 3, "2"), (12, 3, "2")]
)
def test_topic_is_created_for_the_brokers_of_the_cluster(
    brokers: int, replicas: int, in_sync: str, warnings: Callable[[], str]
) -> None:
    cluster = FakeCluster(broker_count=brokers)
    ensure(cluster.client())
    made = cluster.topic(NAME)
    assert len(made.logs) == PARTITIONS
    assert made.replication_factor == replicas
    assert made.config["min.insync.replicas"] == in_sync
    assert made.config["cleanup.policy"] == "compact"
    assert made.config["unclean.leader.election.enable"] == "false"
    assert bool(re.search(rf"\b{replicas}\b.*\b3 replicas\b", warnings())) is (replicas < 3)


def test_created_topic_passes_the_check(
    fake: FakeCluster, client: FakeClient, warnings: Callable[[], str]
) -> None:
    ensure(client)
    ensure(client)
    assert client.asked().count("create_topic") == 1
    assert not warnings()


def test_topic_is_checked_once_per_process() -> None:
    """A new topic with the same name is checked again."""
    cluster = FakeCluster(has_topic_ids=True)
    client = cluster.client()
    cluster.create_topic(NAME, config=SOUND)
    topic = CommitTopic(client, NAME, "X")
    assert topic.ensure()
    assert not topic.ensure()
    assert not CommitTopic(client, NAME, "X").ensure()
    assert client.asked().count("topic_config") == 1
    cluster.create_topic(NAME, config=SOUND | {"cleanup.policy": "delete"})
    for _ in range(2):
        with pytest.raises(CommitTopicError):
            ensure(client)


def test_topic_that_another_query_creates_is_checked(fake: FakeCluster, client: FakeClient) -> None:
    client.before("create_topic", lambda: fake.create_topic(NAME, config={}))
    with pytest.raises(CommitTopicError, match=r"cleanup\.policy"):
        ensure(client)


@pytest.mark.parametrize(
    ("config", "facts"),
    [
        ({"cleanup.policy": "delete"}, r"cleanup\.policy\b.*'delete'"),
        ({"cleanup.policy": "compact,delete"}, r"cleanup\.policy\b.*'compact,delete'"),
        ({"unclean.leader.election.enable": "true"}, r"unclean\.leader\.election\.enable"),
        ({"max.message.bytes": "65535"}, r"max\.message\.bytes\b.*\b65535\b"),
        ({"segment.bytes": "20000"}, r"segment\.bytes\b.*\b20000\b"),
        ({"delete.retention.ms": "599999"}, r"delete\.retention\.ms\b.*\b599999\b"),
    ],
)
def test_topic_that_could_lose_decisions_is_refused(
    fake: FakeCluster, client: FakeClient, config: dict[str, str], facts: str
) -> None:
    fake.create_topic(NAME, config={**SOUND, **config})
    with pytest.raises(CommitTopicError, match=facts) as caught:
        ensure(client)
    assert (caught.value.option, caught.value.topic) == ("commitTopic", NAME)


@pytest.mark.parametrize(
    ("brokers", "replicas", "in_sync", "warned"),
    [
        (3, 3, "2", False),
        (3, 2, "2", True),
        (3, 3, "1", True),
        (1, 1, "1", False),
        (2, 2, "2", False),
        (2, 1, "1", True),
        (9, 3, "3", False),
    ],
)
def test_too_few_replicas_are_a_warning(
    brokers: int, replicas: int, in_sync: str, warned: bool, warnings: Callable[[], str]
) -> None:
    cluster = FakeCluster(broker_count=brokers)
    config = {**SOUND, "min.insync.replicas": in_sync}
    cluster.create_topic(NAME, replication_factor=replicas, config=config)
    ensure(cluster.client())
    facts = rf"\b{replicas}\b.*\bmin\.insync\.replicas\b.*\b{in_sync}\b"
    assert bool(re.search(facts, warnings())) is warned


@pytest.mark.parametrize(
    ("request_name", "advice"),
    [("create_topic", "kafka-topics.sh --create"), ("topic_config", "DESCRIBE_CONFIGS")],
)
def test_missing_acl_is_reported(
    fake: FakeCluster, client: FakeClient, request_name: str, advice: str
) -> None:
    if request_name == "topic_config":
        fake.create_topic(NAME, config=SOUND)
    client.fail(request_name, AuthorizationError("TOPIC_AUTHORIZATION_FAILED"))
    with pytest.raises(CommitTopicError) as error:
        ensure(client)
    assert error.value.topic == NAME
    assert advice in error.value.advice
    assert "TOPIC_AUTHORIZATION_FAILED" in str(error.value)


def test_damaged_records_can_be_removed(fake: FakeCluster, client: FakeClient) -> None:
    ensure(client)
    topic = CommitTopic(client, NAME, "X")
    topic.write_plain(
        [
            (b'["X","query","decision",4,0]', b"?"),
            (b'["X","query","finished",3]', b"?"),
            (b'["X","query","unheard of"]', b"?"),
            (b'["X","registered"]', b"?"),
        ]
    )
    with pytest.raises(CommitTopicError):
        topic.read()
    topic.write_plain(topic.removal())
    assert topic.read() == SinkState(forgotten_number=4, queries={})
    assert topic.removal() == [registration("X", forgotten_number=4)]


def test_chunk_fits_into_the_smallest_allowed_message(
    fake: FakeCluster, client: FakeClient
) -> None:
    fake.create_topic(NAME, config={**SOUND, "max.message.bytes": "65536"})
    ensure(client)
    writer = Driver(client=client, sink_id="X" * 200, commit_topic=NAME, query_id="q" * 100)
    topic = writer.topic
    fake.create_topic("out")
    entries = [writer.prepare(partition, "out", "a") for partition in range(1000)]
    records = to_records(writer.decision(1, *entries), chunk_bytes_max=topic.chunk_bytes_max)
    assert CHUNK_BYTES_MAX - 80 < max(len(value) for _, value in records) <= CHUNK_BYTES_MAX
    topic.write_plain([registration("X" * 200), *records])
    assert CommitTopic(client, NAME, "X" * 200).read().queries["q" * 100].decision.entries == tuple(
        entries
    )


# --- reads ---


def test_decisions_are_read_as_written(setting: Setting) -> None:
    driver = setting.driver()
    assert driver.plan().last == {}
    out = setting.world.topic(2)
    entry = driver.prepare(0, out, "a", "b", to=(0, 1))
    assert entry.last_offsets == {TopicPartition(out, 0): 1, TopicPartition(out, 1): 1}
    decision = driver.decide(7, entry)
    driver.client.init_producer_id(driver.sink_id, timeout_ms=30_000)
    (state,) = driver.topic.read().queries.values()
    assert state.decision == decision
    assert not state.is_finished
    driver.mark_finished(decision)
    (state,) = driver.topic.read().queries.values()
    assert state.is_finished


def test_other_queries_open_transactions_do_not_hide_decisions(setting: Setting) -> None:
    """The last stable offset of the topic is before our decisions."""
    driver, other = setting.driver(), setting.driver(sink_id=neighbour_of(setting.sink_id))
    other.plan()
    other.write_decision(other.decision(1))
    driver.plan()
    mine = driver.decide(1)
    driver.client.init_producer_id(driver.sink_id, timeout_ms=30_000)
    assert driver.topic.read().queries["query"].decision == mine
    # The decision of the other driver is not committed yet, so it does not count.
    assert other.topic.read().queries == {}
    other.end(other.sink_id, other.owner)
    other.client.init_producer_id(other.sink_id, timeout_ms=30_000)
    assert other.topic.read().queries["query"].decision == other.decision(1)


def test_aborted_decision_is_ignored(setting: Setting) -> None:
    driver = setting.driver()
    driver.plan()
    first = driver.decide(1)
    driver.plan()
    driver.write_decision(driver.decision(2, number=2))
    driver.client.init_producer_id(driver.sink_id, timeout_ms=30_000)
    (state,) = driver.topic.read().queries.values()
    assert state.decision == first


def test_all_queries_of_a_sink_are_read(setting: Setting) -> None:
    one, two = setting.driver(query_id="one"), setting.driver(query_id="two")
    one.plan()
    one.decide(5)
    two.plan()
    two.decide(1)
    two.plan()
    found = two.topic.read().queries
    assert {name: state.decision.batch_id for name, state in found.items()} == {"one": 5, "two": 1}


def test_compacted_topic_reads_the_same(fake: FakeCluster, client: FakeClient) -> None:
    drivers = [
        Driver(
            client=client,
            sink_id=sink_id,
            commit_topic=NAME,
            query_id=q,
            version=fake.transaction_version,
        )
        for sink_id in ("X", "X2")
        for q in ("a", "b")
    ]
    for number in range(1, 4):
        for driver in drivers:
            driver.plan()
            driver.decide(number, number=number)
    before = {sink_id: CommitTopic(client, NAME, sink_id).read().queries for sink_id in ("X", "X2")}
    log = fake.log(drivers[0].topic.partition)
    count = len(log.batches)
    log.compact()
    assert len(log.batches) < count
    assert {
        sink_id: CommitTopic(client, NAME, sink_id).read().queries for sink_id in ("X", "X2")
    } == before
    log.compact(keeps_markers=True)
    drivers[0].plan()
    assert drivers[0].plans[-1].last["b"].batch_id == 3


def test_missing_topic_is_an_error(client: FakeClient) -> None:
    with pytest.raises(SinkNotRegisteredError):
        CommitTopic(client, NAME, "X").read()


def test_damaged_record_is_reported_with_its_offset(fake: FakeCluster, client: FakeClient) -> None:
    ensure(client)
    topic = CommitTopic(client, NAME, "X")
    topic.write_plain([(b"of others", b"?")] * 4)
    topic.write_plain([(b'["X","query","decision",1,0]', b"?")])
    with pytest.raises(CommitTopicError) as error:
        topic.read()
    text = str(error.value)
    assert (error.value.topic, error.value.transactional_id) == (NAME, "X")
    assert '["X","query","decision",1,0]' in text
    assert "4 to 4" in text
    assert "transactions --id=X" in text


def test_missing_chunk_is_reported_with_the_topic(fake: FakeCluster, client: FakeClient) -> None:
    ensure(client)
    driver = Driver(client=client, sink_id="X", commit_topic=NAME)
    records = to_records(driver.decision(1), chunk_bytes_max=150)
    CommitTopic(client, NAME, "X").write_plain(records[:-1])
    key = records[-1][0]
    assert key is not None
    with pytest.raises(CommitTopicError, match=re.escape(key.decode())) as caught:
        CommitTopic(client, NAME, "X").read()
    assert (caught.value.topic, caught.value.transactional_id) == (NAME, "X")


def test_finished_mark_may_precede_the_markers_of_its_decision(
    fake: FakeCluster, client: FakeClient
) -> None:
    """A reader that has not fenced the sink does not read decision 2, but its finished record."""
    driver = Driver(client=client, sink_id="X", commit_topic=NAME, version=fake.transaction_version)
    driver.plan()
    driver.decide(1)
    driver.plan()
    fake.holds_markers = True
    driver.write_decision(driver.decision(2, number=2))
    driver.end("X", driver.owner)
    driver.mark_finished(driver.decision(2, number=2))
    (state,) = driver.topic.read().queries.values()
    assert (state.decision.number, state.is_finished) == (2, True)
    fake.write_markers()
    (state,) = driver.topic.read().queries.values()
    assert (state.decision.number, state.is_finished) == (2, True)


@pytest.mark.parametrize("read", [CommitTopic.read_latest, CommitTopic.removal])
def test_current_leader_acknowledges_a_record_before_the_read(
    client: FakeClient, read: Callable[[CommitTopic], object]
) -> None:
    """Otherwise a leader that has been replaced could return its old end of the log."""
    topic = CommitTopic(client, NAME, "X")
    topic.ensure()
    topic.register()
    earlier = len(client.asked())
    read(topic)
    asked = client.asked()[earlier:]
    assert asked.index("produce") < asked.index("list_offsets")


# --- writes and removals ---


def test_removal_removes_all_records_of_the_sink(setting: Setting) -> None:
    driver, other = setting.driver(), setting.driver(sink_id=f"{setting.sink_id}2")
    for each in (driver, other):
        each.plan()
        each.mark_finished(each.decide(1))
        each.plan()
        each.decide(2, number=2)
        each.plan()
    kept = other.topic.read()
    driver.topic.write_plain(driver.topic.removal())
    assert driver.topic.read() == SinkState(forgotten_number=2, queries={})
    assert driver.plan().last == {}
    assert driver.plans[-1].last_number("query") == 2
    assert other.topic.read() == kept


@pytest.mark.parametrize("how", ["deleted", "emptied", "other-topic", "more-partitions"])
def test_sink_whose_records_are_missing_is_refused(fake: FakeCluster, how: str) -> None:
    """Otherwise a decided batch would be written again, without any sign of it."""
    fake.create_topic("out")
    fake.create_topic(NAME, 1, config=SOUND)
    driver, again = (
        Driver(
            client=fake.client(), sink_id="X", commit_topic=NAME, version=fake.transaction_version
        )
        for _ in range(2)
    )
    driver.plan()
    entry = driver.prepare(0, "out", "a")
    driver.commit(entry)
    driver.mark_finished(driver.decide(1, entry))
    match how:
        case "deleted":
            del fake.topics[NAME]
        case "emptied":
            log = fake.log(TopicPartition(NAME, 0))
            log.delete_before(log.end)
        case "other-topic":
            again.commit_topic = "other"
        case _:
            logs = fake.topic(NAME).logs
            while partition_of_key(b"X", len(logs)) == 0:
                logs.append(FakeLog())
    for _ in range(2):
        with pytest.raises(SinkNotRegisteredError) as caught:
            again.plan()
        assert caught.value.transactional_id == "X"
        assert "--forget --accept-loss" in caught.value.advice


def test_start_that_stopped_before_its_first_transaction_is_repeated(setting: Setting) -> None:
    """The sink is registered, and the transaction coordinator does not know it."""
    driver = setting.driver()
    driver.topic.ensure()
    driver.topic.write_plain([registration(driver.sink_id)])
    assert setting.driver("run-2").plan().last == {}


def test_simultaneous_first_starts(fake: FakeCluster) -> None:
    """Another process registers the sink and begins after this process has found nothing."""
    other = Driver(
        client=fake.client(), sink_id="X", commit_topic=NAME, version=fake.transaction_version
    )
    client = fake.client()
    client.before("describe_transactions", other.plan)
    driver = Driver(client=client, sink_id="X", commit_topic=NAME, version=fake.transaction_version)
    assert driver.plan().last == {}


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 100])
def test_rows_have_the_produce_schema(client: FakeClient, count: int) -> None:
    records = [(b"k" * n, None if n % 3 == 1 else b"v" * n) for n in range(count)]
    rows = CommitTopic(client, NAME, "X", partition=258).rows(records)
    rows.validate(full=True)
    assert rows.schema.names == ["key", "value", "topic", "partition"]
    assert all(rows.schema.field(name) == PRODUCE_SCHEMA.field(name) for name in rows.schema.names)
    assert rows.to_pylist() == [
        {"key": key, "value": value, "topic": NAME, "partition": 258} for key, value in records
    ]


def test_rows_are_built_without_pandas() -> None:
    """Importing pandas takes longer than a whole planning."""
    code = (
        "import sys\n"
        "from pyspark_kafka.sink.exactly_once.planning import CommitTopic\n"
        "CommitTopic(None, 'name', 'X', partition=0).rows([(b'k', b'v'), (b'k', None)])\n"
        "assert 'pandas' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_finished_decision_leaves_one_small_record(setting: Setting) -> None:
    """The topic does not grow with the number of batches or of tasks."""
    driver, out = setting.driver(), setting.world.topic()
    decision = driver.decision(0)
    for number in range(1, 4):
        driver.plan()
        entries = [driver.prepare(n, out, "a") for n in range(number)]
        decision = driver.decide(number, *entries, number=number)
        for entry in entries:
            driver.commit(entry)
        driver.mark_finished(decision)
    (state,) = driver.topic.read().queries.values()
    assert (state.decision, state.is_finished) == (replace(decision, entries=()), True)
    finished, *_ = finishing_records(QueryState(decision=decision))
    found = read_commit_log(driver.client, driver.topic.partition, key_prefix(driver.sink_id))
    stored = {key: value for batch in found.decided for key, value in batch.records}
    assert {key: value for key, value in stored.items() if value is not None} == dict(
        [registration(driver.sink_id), finished]
    )
    assert driver.plan().last_number("query") == 3


def test_job_is_readable_after_each_record_of_its_deletion(
    fake: FakeCluster, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process may die between two record batches."""
    monkeypatch.setattr(CommitTopic, "chunk_bytes_max", 500)
    fake.create_topic("out", 1)
    job = Driver(client=client, sink_id="X", commit_topic=NAME)
    job.plan(is_single_job=True)
    decision = job.decide(None, *[job.prepare(n, "out", "a") for n in range(3)])
    written: list[tuple[bytes, bytes | None]] = []
    with monkeypatch.context() as patch:
        patch.setattr(CommitTopic, "write_plain", lambda _, records: written.extend(records))
        job.delete(decision)
    assert sum(b"decision" in key for key, _ in written) > 1
    for number, record in enumerate(written, start=1):
        job.topic.write_plain([record])
        assert len(job.topic.read().queries) == (number < len(written))
    assert job.topic.read().obsolete == ()


def test_failed_mark_aborts_its_producer(fake: FakeCluster, client: FakeClient) -> None:
    ensure(client)
    client.fail("flush", DeliveryError("no"))
    driver = Driver(client=client, sink_id="X", commit_topic=NAME)
    with pytest.raises(DeliveryError):
        driver.mark_finished(driver.decision(1, number=3))
    assert client.producers[-1].is_aborted


def test_write_without_records_sends_no_request(client: FakeClient) -> None:
    CommitTopic(client, NAME, "X").write_plain([])
    assert client.asked() == []
