"""Tests of committed, aborted and open transactions in a range."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka import Producer

from pyspark_kafka.client.port import KafkaReadClient
from pyspark_kafka.errors import FetchTimeoutError
from pyspark_kafka.kafka.offsets import LATEST, IsolationLevel
from pyspark_kafka.kafka.topics import TopicPartition
from tests.conformance.eventually import eventually
from tests.conftest import TopicFactory
from tests.pyspark_kafka.client.proxy import proxy
from tests.pyspark_kafka.client.records import TIMEOUT_S, Record, producer, reading, write
from tests.pyspark_kafka.client.test_fetch import fetch_range

pytestmark = [pytest.mark.kafka_only, pytest.mark.usefixtures("engine")]

COMMITTED, UNCOMMITTED = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED

Transactional = Callable[[], Producer]


@pytest.fixture
def transactional(bootstrap: str, unique_name: Callable[[], str]) -> Transactional:
    def start() -> Producer:
        one = producer(bootstrap, transactional_id=unique_name())
        one.init_transactions(TIMEOUT_S)
        return one

    return start


def produce(one: Producer, topic: str, values: list[bytes]) -> None:
    for value in values:
        one.produce(topic, value, partition=0)
    assert one.flush(TIMEOUT_S) == 0


def transaction(one: Producer, topic: str, values: list[bytes], *, commit: bool) -> None:
    one.begin_transaction()
    produce(one, topic, values)
    if commit:
        one.commit_transaction(TIMEOUT_S)
    else:
        one.abort_transaction(TIMEOUT_S)


def values(
    client: KafkaReadClient, topic: str, start: int, end: int, isolation_level: IsolationLevel
) -> list[bytes]:
    wanted = fetch_range(topic, start, end)
    batches = client.fetch(wanted, ("value",), isolation_level)
    return [value for batch in batches for value in batch.column("value").to_pylist()]


def ends(client: KafkaReadClient, topic: str) -> tuple[int | None, int | None]:
    partition = TopicPartition(topic, 0)
    last_stable, high_watermark = (
        client.list_offsets({partition: LATEST}, level)[partition]
        for level in (COMMITTED, UNCOMMITTED)
    )
    return last_stable, high_watermark


def is_decided(client: KafkaReadClient, topic: str, end: int) -> None:
    """Wait for the markers, which are written after the response to EndTxn."""
    eventually(lambda: ends(client, topic) == (end, end))


def test_a_committed_transaction_ends_with_its_marker(
    bootstrap: str, topic: TopicFactory, transactional: Transactional
) -> None:
    name = topic()
    transaction(transactional(), name, [b"a", b"b"], commit=True)
    with reading(bootstrap, poll_timeout_ms=10_000) as client:
        is_decided(client, name, 3)
        assert values(client, name, 0, 3, COMMITTED) == [b"a", b"b"]
        assert values(client, name, 2, 3, COMMITTED) == []


def test_aborted_records_are_left_out_and_the_range_still_ends(
    bootstrap: str, topic: TopicFactory, transactional: Transactional
) -> None:
    name = topic()
    one = transactional()
    transaction(one, name, [b"a"], commit=True)
    transaction(one, name, [b"x"] * 20, commit=False)
    transaction(one, name, [b"b"], commit=True)
    transaction(one, name, [b"y"] * 20, commit=False)
    with reading(bootstrap, poll_timeout_ms=10_000) as client:
        is_decided(client, name, 46)
        assert values(client, name, 0, 46, COMMITTED) == [b"a", b"b"]
        assert values(client, name, 5, 20, COMMITTED) == []
        assert values(client, name, 30, 46, COMMITTED) == []
        assert values(client, name, 0, 46, UNCOMMITTED).count(b"x") == 20


def test_reading_past_a_long_aborted_transaction_is_no_standstill(
    bootstrap: str, topic: TopicFactory, transactional: Transactional
) -> None:
    """Fetching the transaction takes longer than `kafkaConsumer.pollTimeoutMs`."""
    name, size, count = topic(), 60_000, 25
    one = transactional()
    one.begin_transaction()
    for _ in range(count):
        produce(one, name, [b"x" * size])  # one batch per record
    one.abort_transaction(TIMEOUT_S)
    with (
        proxy(bootstrap) as between,
        reading(
            between.address,
            poll_timeout_ms=3_000,
            fetch_max_bytes=str(size),
            message_max_bytes=str(size),
            max_partition_fetch_bytes=str(size),
        ) as client,
    ):
        is_decided(client, name, count + 1)
        between.delay_s = 0.15
        assert values(client, name, 0, count + 1, COMMITTED) == []


def test_interleaved_transactions(
    bootstrap: str, topic: TopicFactory, transactional: Transactional
) -> None:
    name = topic()
    kept, dropped = transactional(), transactional()
    kept.begin_transaction()
    dropped.begin_transaction()
    for number in range(10):
        produce(kept, name, [b"k%d" % number])
        produce(dropped, name, [b"d%d" % number])
    dropped.abort_transaction(TIMEOUT_S)
    kept.commit_transaction(TIMEOUT_S)
    with reading(bootstrap, poll_timeout_ms=10_000) as client:
        is_decided(client, name, 22)
        assert values(client, name, 0, 22, COMMITTED) == [b"k%d" % n for n in range(10)]
        assert values(client, name, 7, 13, COMMITTED) == [b"k4", b"k5", b"k6"]


def test_an_open_transaction_holds_the_end_back(
    bootstrap: str, topic: TopicFactory, transactional: Transactional
) -> None:
    name = topic()
    write(bootstrap, name, [Record(value=b"a")])
    one = transactional()
    one.begin_transaction()
    produce(one, name, [b"open"])
    write(bootstrap, name, [Record(value=b"b")])
    with reading(bootstrap, poll_timeout_ms=3_000) as client:
        assert ends(client, name) == (1, 3)
        assert values(client, name, 0, 1, COMMITTED) == [b"a"]
        assert values(client, name, 0, 3, UNCOMMITTED) == [b"a", b"open", b"b"]
        with pytest.raises(
            FetchTimeoutError,
            match=rf"{name}-0\b.*\b3\b.*\b1\b.*\b3\b.*'kafka\.isolation\.level'",
        ):
            values(client, name, 0, 3, COMMITTED)
    one.commit_transaction(TIMEOUT_S)
    with reading(bootstrap, poll_timeout_ms=10_000) as client:
        assert values(client, name, 0, 3, COMMITTED) == [b"a", b"open", b"b"]


def test_waiting_fetch_continues_when_the_transaction_ends(
    bootstrap: str, topic: TopicFactory, transactional: Transactional
) -> None:
    name = topic()
    write(bootstrap, name, [Record(value=b"a")] * 20_000, linger_ms=20)
    one = transactional()
    one.begin_transaction()
    produce(one, name, [b"open"])
    with reading(bootstrap, poll_timeout_ms=30_000) as client:
        reader = client.fetch(fetch_range(name, 0, 20_001), ("value",), COMMITTED)
        count = next(reader).num_rows
        one.commit_transaction(TIMEOUT_S)
        rest = [value for batch in reader for value in batch.column("value").to_pylist()]
    assert count + len(rest) == 20_001
    assert rest[-1] == b"open"
