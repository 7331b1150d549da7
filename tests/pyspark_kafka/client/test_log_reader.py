"""Tests of reads of the raw log, with aborted records and markers of any producer."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as RdTopicPartition
from confluent_kafka.admin import AdminClient

from pyspark_kafka.client.factory import open_client, open_transactional_client
from pyspark_kafka.client.transactional_port import TransactionalClient
from pyspark_kafka.errors import OffsetOutOfRangeError, UnknownTopicOrPartitionError
from pyspark_kafka.kafka.log import LogBatch
from pyspark_kafka.kafka.offsets import EARLIEST, LATEST, IsolationLevel
from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.kafka.transactions import TransactionResult
from tests.conformance.eventually import eventually
from tests.conftest import TopicFactory
from tests.pyspark_kafka.client.records import Record, options, producer, put, rows

UNCOMMITTED = IsolationLevel.READ_UNCOMMITTED
TIMEOUT_S = 30


def opened(bootstrap: str, *, poll_timeout_ms: int = 30_000) -> TransactionalClient:
    return open_transactional_client(
        options(bootstrap, engine="native", poll_timeout_ms=poll_timeout_ms)
    )


@pytest.fixture
def client(bootstrap: str) -> Iterator[TransactionalClient]:
    with opened(bootstrap) as made:
        yield made


@pytest.fixture
def transaction(bootstrap: str, unique_name: Callable[[], str]) -> Callable[..., Producer]:
    """Return a function that writes values in a transaction and leaves it open."""

    def begin(topic: str, *values: bytes) -> Producer:
        one = producer(bootstrap, transactional_id=unique_name())
        one.init_transactions(TIMEOUT_S)
        one.begin_transaction()
        for value in values:
            one.produce(topic, key=b"key", value=value, partition=0)
        one.flush(TIMEOUT_S)
        return one

    return begin


def end_of(client: TransactionalClient, topic: str) -> int:
    partition = TopicPartition(topic, 0)
    found = client.list_offsets({partition: LATEST}, UNCOMMITTED)[partition]
    assert found is not None
    return found


def await_end(client: TransactionalClient, topic: str, offset: int) -> None:
    """Wait for the markers, which are written after the response to EndTxn."""
    eventually(lambda: end_of(client, topic) == offset)


def log(client: TransactionalClient, topic: str, start: int = 0, end: int = -1) -> list[LogBatch]:
    end = end if end >= 0 else end_of(client, topic)
    return list(client.read_log(TopicPartition(topic, 0), start, end))


def values(batches: list[LogBatch]) -> list[bytes | None]:
    return [value for one in batches for _, value in one.records]


def test_read_log_returns_all_batches(
    client: TransactionalClient,
    topic: TopicFactory,
    bootstrap: str,
    transaction: Callable[..., Producer],
) -> None:
    name = topic()
    committed = transaction(name, b"committed")
    hanging = transaction(name, b"open")
    aborted = transaction(name, b"aborted")
    put(producer(bootstrap), name, [Record(value=b"plain")])
    committed.commit_transaction(TIMEOUT_S)
    await_end(client, name, 5)
    aborted.abort_transaction(TIMEOUT_S)
    await_end(client, name, 6)
    found = log(client, name)
    assert values(found) == [b"committed", b"open", b"aborted", b"plain"]
    assert [(one.is_transactional, one.ends_with) for one in found] == [
        (True, None),
        (True, None),
        (True, None),
        (False, None),
        (True, TransactionResult.COMMIT),
        (True, TransactionResult.ABORT),
    ]
    data, markers = found[:4], found[4:]
    assert [one.producer.producer_id for one in markers] == [
        data[0].producer.producer_id,
        data[2].producer.producer_id,
    ]
    assert [(one.base_offset, one.last_offset) for one in found] == [(o, o) for o in range(6)]
    assert data[0].records[0] == (b"key", b"committed")
    hanging.abort_transaction(TIMEOUT_S)
    await_end(client, name, 7)
    last = log(client, name)[-1]
    assert (last.producer.producer_id, last.ends_with) == (
        found[1].producer.producer_id,
        TransactionResult.ABORT,
    )


def test_the_first_marker_behind_an_offset(
    client: TransactionalClient, topic: TopicFactory, bootstrap: str, unique_name: Callable[[], str]
) -> None:
    """The log contains the outcome of a transaction whose coordinator state has expired."""
    name = topic()
    one = producer(bootstrap, transactional_id=unique_name())
    one.init_transactions(TIMEOUT_S)
    last_offsets = []
    for is_commit in (True, False, True):
        one.begin_transaction()
        one.produce(name, b"v" * 1000, partition=0)
        one.flush(TIMEOUT_S)
        last_offsets.append(end_of(client, name) - 1)
        if is_commit:
            one.commit_transaction(TIMEOUT_S)
        else:
            one.abort_transaction(TIMEOUT_S)
    await_end(client, name, 6)
    found = []
    for last_offset in last_offsets:
        batches = client.read_log(TopicPartition(name, 0), last_offset + 1, end_of(client, name))
        found.append(next(one.ends_with for one in batches if one.ends_with is not None))
    assert found == [TransactionResult.COMMIT, TransactionResult.ABORT, TransactionResult.COMMIT]


def test_ranges_begin_and_end_within_batches(
    client: TransactionalClient, topic: TopicFactory, bootstrap: str
) -> None:
    name = topic()
    put(
        producer(bootstrap, linger_ms=1_000, batch_num_messages=10),
        name,
        [Record(value=b"%d" % i) for i in range(30)],
    )
    whole = log(client, name)
    assert len(whole) < 30
    assert values(whole) == [b"%d" % i for i in range(30)]
    found = log(client, name, 12, 21)
    expected = [one for one in whole if one.last_offset >= 12 and one.base_offset < 21]
    assert [one.base_offset for one in found] == [one.base_offset for one in expected]
    assert log(client, name, 5, 5) == []


def test_a_log_of_many_fetches(
    client: TransactionalClient, topic: TopicFactory, bootstrap: str
) -> None:
    name = topic(**{"max.message.bytes": "2000000"})
    large = [Record(value=b"%d" % i + bytes(900_000)) for i in range(25)]
    put(producer(bootstrap, message_max_bytes=2_000_000), name, large)
    found = values(log(client, name))
    assert [(value or b"")[:2].rstrip(b"\0") for value in found] == [b"%d" % i for i in range(25)]


def test_read_log_starts_at_the_log_start_offset(
    client: TransactionalClient, topic: TopicFactory, bootstrap: str
) -> None:
    name = topic()
    one = producer(bootstrap)
    for i in range(6):
        put(one, name, [Record(value=b"%d" % i)])
    delete(bootstrap, name, 4)
    assert client.list_offsets({TopicPartition(name, 0): EARLIEST}, UNCOMMITTED) == {
        TopicPartition(name, 0): 4
    }
    assert values(log(client, name)) == [b"4", b"5"]
    assert values(log(client, name, 2, 5)) == [b"4"]
    assert log(client, name, 0, 3) == []


def delete(bootstrap: str, topic: str, before: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})
    (future,) = admin.delete_records([RdTopicPartition(topic, 0, before)]).values()
    future.result(TIMEOUT_S)


def test_records_deleted_during_read_log_are_an_error(
    client: TransactionalClient, topic: TopicFactory, bootstrap: str
) -> None:
    name = topic(**{"max.message.bytes": "2000000"})
    large = [Record(value=bytes(1_000_000)) for _ in range(30)]
    put(producer(bootstrap, message_max_bytes=2_000_000), name, large)
    batches = client.read_log(TopicPartition(name, 0), 0, end_of(client, name))
    assert next(batches).base_offset == 0
    delete(bootstrap, name, 29)
    with pytest.raises(OffsetOutOfRangeError, match=rf"{name}-0\b.*\b29\b"):
        list(batches)


def test_read_log_waits_for_the_high_watermark(bootstrap: str, topic: TopicFactory) -> None:
    name = topic()
    put(producer(bootstrap), name, [Record(value=b"v")])
    with opened(bootstrap, poll_timeout_ms=1_000) as client:
        batches = client.read_log(TopicPartition(name, 0), 0, 2)
        assert values([next(batches)]) == [b"v"]
        with pytest.raises(OffsetOutOfRangeError, match=f"{name}-0 .*1 to 2"):
            list(batches)
        with pytest.raises(OffsetOutOfRangeError, match=f"{name}-0 .*5 to 9"):
            log(client, name, 5, 9)


def test_a_topic_that_does_not_exist(
    client: TransactionalClient, unique_name: Callable[[], str]
) -> None:
    name = unique_name()
    with pytest.raises(UnknownTopicOrPartitionError, match=name):
        log(client, name, 0, 1)


@pytest.mark.parametrize(("linger_ms", "sizes"), [("60000", [1, 3]), ("0", [1, 1, 1, 1])])
def test_rows_of_a_native_producer_wait_for_linger_ms(
    linger_ms: str,
    sizes: list[int],
    client: TransactionalClient,
    bootstrap: str,
    topic: TopicFactory,
) -> None:
    name = topic()
    wanted = options(bootstrap, engine="native", linger_ms=linger_ms)
    with open_client(wanted, role="producer") as writes:
        one = writes.producer()
        one.send(rows(name, [b"0"]))
        one.flush()  # From now on, the producer knows the topic and does not have to wait for it.
        for value in (b"1", b"2", b"3"):
            one.send(rows(name, [value]))
        one.flush()
        one.close()
    assert [len(batch.records) for batch in log(client, name)] == sizes
