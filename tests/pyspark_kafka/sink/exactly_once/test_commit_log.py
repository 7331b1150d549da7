"""Tests of the cached reads of the commit log, which are used while they are valid."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from pyspark_kafka.errors import BrokerUnreachableError
from pyspark_kafka.kafka.log import LogBatch
from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.kafka.transactions import ProducerIdAndEpoch, TransactionResult
from pyspark_kafka.sink.exactly_once import commit_log
from pyspark_kafka.sink.exactly_once.commit_log import Record, read_commit_log
from pyspark_kafka.sink.exactly_once.commit_topic import CommitTopic
from pyspark_kafka.sink.exactly_once.decisions import key_prefix
from tests.pyspark_kafka.sink.exactly_once.drivers import Driver
from tests.pyspark_kafka.sink.exactly_once.fake_client import FakeClient
from tests.pyspark_kafka.sink.exactly_once.fake_cluster import FakeCluster
from tests.pyspark_kafka.sink.exactly_once.fake_log import FakeLog

NAME = "commits"
PARTITION = TopicPartition(NAME, 0)
MINE = key_prefix("X")


class Reader:
    def __init__(self) -> None:
        self.cluster = FakeCluster(2, has_topic_ids=True)
        self.cluster.create_topic(NAME)
        self.client = _Counting(self.cluster)

    @property
    def log(self) -> FakeLog:
        return self.cluster.log(PARTITION)

    def read(self) -> list[Record]:
        topic_id = self.cluster.topic(NAME).topic_id
        found = read_commit_log(self.client, PARTITION, MINE, topic_id=topic_id)
        return [record for batch in found.decided for record in batch.records]

    def read_all(self) -> list[Record]:
        found = read_commit_log(self.client, PARTITION, MINE)
        return [record for batch in found.decided for record in batch.records]

    def given(self) -> int:
        """Return the number of batches that were read since the last call."""
        count, self.client.batch_count = self.client.batch_count, 0
        return count


class _Counting(FakeClient):
    def __init__(self, cluster: FakeCluster) -> None:
        super().__init__(cluster, "reader")
        self.batch_count = 0
        self.fails_after: int | None = None

    def read_log(
        self, partition: TopicPartition, start_offset: int, end_offset: int
    ) -> Iterator[LogBatch]:
        for batch in super().read_log(partition, start_offset, end_offset):
            if self.fails_after is not None and self.batch_count >= self.fails_after:
                self.fails_after = None
                raise BrokerUnreachableError("gone")
            self.batch_count += 1
            yield batch


@pytest.fixture
def reader() -> Reader:
    return Reader()


def producer(producer_id: int, epoch: int = 0) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(producer_id=producer_id, producer_epoch=epoch)


def record(name: str, value: str | None = "v", *, sink_id: str = "X") -> Record:
    return f'["{sink_id}","{name}"]'.encode(), None if value is None else value.encode()


def test_only_new_batches_are_read(reader: Reader) -> None:
    for n in range(5):
        reader.log.append(producer(1), [record(f"{n}")])
    assert len(reader.read()) == 5
    assert reader.given() == 5
    reader.log.append(producer(1), [record("5")])
    assert [key for key, _ in reader.read()] == [record(f"{n}")[0] for n in range(6)]
    assert reader.given() == 2  # the last batch again, and the new batch
    reader.read()
    assert reader.given() == 1


def test_planning_continues_the_last_read() -> None:
    cluster = FakeCluster(2, has_topic_ids=True)
    client = _Counting(cluster)
    driver = Driver(client=client, sink_id="X", commit_topic=NAME)
    for number in range(1, 30):
        assert driver.plan().last.keys() == ({"query"} if number > 1 else set())
        driver.decide(number, number=number)
    client.batch_count = 0
    assert driver.plan().last["query"].number == 29
    assert client.batch_count == 5  # last batch, new decision, its marker, mark, leader check


def test_every_sink_has_its_own_read_position(reader: Reader) -> None:
    reader.log.append(producer(1), [record("a"), record("b", sink_id="X2")])
    reader.read()
    topic_id = reader.cluster.topic(NAME).topic_id
    found = read_commit_log(reader.client, PARTITION, key_prefix("X2"), topic_id=topic_id)
    assert [list(batch.records) for batch in found.decided] == [[record("b", sink_id="X2")]]
    assert reader.read() == [record("a")]


def test_open_batch_is_decided_by_a_later_read(reader: Reader) -> None:
    reader.log.append(producer(1), [record("kept", "old"), record("gone", "old")])
    reader.log.append(producer(7), [record("kept", "new")], transactional=True)
    reader.log.append(producer(8), [record("gone", "new")], transactional=True)
    for _ in range(2):
        assert reader.read() == [record("kept", "old"), record("gone", "old")]
    reader.log.append(producer(8, 1), transactional=True, verdict=TransactionResult.ABORT)
    reader.read()
    reader.log.append(producer(7, 1), transactional=True, verdict=TransactionResult.COMMIT)
    assert reader.read() == [record("gone", "old"), record("kept", "new")]


def test_removed_records_stay_removed(reader: Reader) -> None:
    reader.log.append(producer(7), [record("a"), record("b")], transactional=True)
    reader.log.append(producer(1), [record("a", None)])
    reader.read()
    reader.log.append(producer(7, 1), transactional=True, verdict=TransactionResult.COMMIT)
    assert reader.read() == [record("b")]
    reader.log.append(producer(1), [record("b", None), record("c")])
    assert reader.read() == [record("c")]
    assert reader.read() == [record("c")]


def test_recreated_topic_is_read_again(reader: Reader) -> None:
    reader.log.append(producer(1), [record("old")])
    reader.read()
    reader.cluster.create_topic(NAME)
    reader.log.append(producer(1), [record("new")])
    assert reader.read() == [record("new")]


@pytest.mark.parametrize("grows_to", [0, 1, 2, 3, 5])
def test_truncated_log_is_read_again(reader: Reader, grows_to: int) -> None:
    """An unclean election or a lost disk truncates the log, which may then grow again."""
    for n in range(3):
        reader.log.append(producer(1), [record(f"{n}", "before")])
    reader.read()
    log = reader.log
    log.batches, log.end = log.batches[:1], 1
    for n in range(1, 1 + grows_to):
        log.append(producer(1), [record(f"{n}", "after")])
    expected = [record("0", "before")]
    expected += [record(f"{n}", "after") for n in range(1, 1 + grows_to)]
    assert reader.read() == expected
    assert reader.read() == expected


def test_compacted_log_is_read_again(reader: Reader) -> None:
    reader.log.append(producer(1), [record("a", "1"), record("b", "1")])
    reader.log.append(producer(1), [record("a", "2")])
    reader.read()
    reader.log.append(producer(1), [record("a", "3")])
    reader.log.compact()
    assert reader.read() == [record("b", "1"), record("a", "3")]
    reader.given()
    assert reader.read() == [record("b", "1"), record("a", "3")]
    assert reader.given() == 1


@pytest.mark.parametrize("count", range(4))
def test_failed_read_is_not_kept(reader: Reader, count: int) -> None:
    reader.log.append(producer(1), [record("a")])
    reader.read()
    reader.log.append(producer(7), [record("b")], transactional=True)
    reader.log.append(producer(7, 1), transactional=True, verdict=TransactionResult.COMMIT)
    reader.log.append(producer(1), [record("c")])
    reader.given()
    reader.client.fails_after = count
    with pytest.raises(BrokerUnreachableError):
        reader.read()
    assert reader.read() == [record("a"), record("b"), record("c")]


def test_without_topic_id_everything_is_read_again(reader: Reader) -> None:
    reader.cluster.has_topic_ids = False
    reader.cluster.create_topic(NAME)
    for _ in range(3):
        reader.log.append(producer(1), [record("a")])
    for _ in range(2):
        reader.read()
        assert reader.given() == 3


@pytest.mark.parametrize("number", range(40))
def test_incremental_and_full_reads_agree(number: int) -> None:
    """The history contains writes, decisions, removals, compaction and truncation."""
    draw, reader = Random(number), Reader()
    writers = {n: producer(100 + n) for n in range(3)}
    opened: set[int] = set()
    for step in range(60):
        who, log = draw.randrange(3), reader.log
        names = [record(draw.choice("abcd"), draw.choice([f"{step}", f"{step}", None]))]
        names.append(record("other", sink_id="X2"))
        match draw.randrange(8):
            case 0 | 1:
                log.append(producer(1), names)
            case 2 | 3 | 4 if who not in opened:
                log.append(writers[who], names, transactional=True)
                opened.add(who)
            case 5 | 6 if who in opened:
                writers[who] = producer(100 + who, writers[who].producer_epoch + 1)
                verdict = draw.choice(list(TransactionResult))
                log.append(writers[who], transactional=True, verdict=verdict)
                opened.remove(who)
            case 7:
                log.compact()
        if draw.random() < 0.5:
            assert dict(_values(reader.read())) == dict(_values(reader.read_all()))


def _values(records: list[Record]) -> list[tuple[bytes | None, bytes]]:
    """Return the last record of each key, unless a tombstone removed it."""
    last = dict(records)
    return [(key, value) for key, value in last.items() if value is not None]


def test_decision_is_the_same_in_incremental_and_full_reads() -> None:
    cluster = FakeCluster(2, has_topic_ids=True)
    client = cluster.client()
    driver = Driver(client=client, sink_id="X", commit_topic=NAME)
    for number in range(1, 6):
        driver.plan()
        decision = driver.decide(number, number=number)
        topic = CommitTopic(client, NAME, "X")
        cold = topic.read()
        topic.ensure()
        assert topic.read() == cold
        driver.mark_finished(decision)


def test_old_read_is_not_kept(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tombstone may have been written and compacted away since the last read."""
    for n in range(5):
        reader.log.append(producer(1), [record(f"{n}")])
    reader.read()
    reader.read()
    assert reader.given() == 5 + 1
    monkeypatch.setattr(commit_log, "_FRESH_S", 0.0)
    reader.read()
    assert reader.given() == 5
