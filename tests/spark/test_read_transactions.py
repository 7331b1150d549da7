"""Reads of committed, aborted and open transactions with both isolation levels.

These are the records of the topic by offset, where c and a are the control records of a commit and
an abort:

    0 1 2 3 4 5 6 7 8 9 10 11 12
    A B C c x y a p z a D  E

A to E and x to z are transactional. The transaction of D and E is open.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import IsolationLevel, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from tests.conformance.eventually import eventually
from tests.conftest import TopicFactory
from tests.spark.conftest import Produce, Reader
from tests.spark.streams import StreamRunner

pytestmark = [pytest.mark.spark, pytest.mark.kafka_only, pytest.mark.timeout(240)]

Transactional = Callable[[], Producer]


@pytest.fixture
def transactional(bootstrap: str, unique_name: Callable[[], str]) -> Iterator[Transactional]:
    """Return a function that creates transactional producers and initializes them."""
    producers: list[Producer] = []

    def producer() -> Producer:
        producers.append(
            Producer(
                {
                    "bootstrap.servers": bootstrap,
                    "log_level": 2,
                    "transactional.id": unique_name(),
                    "transaction.timeout.ms": 120_000,
                    "linger.ms": 0,
                }
            )
        )
        producers[-1].init_transactions(30)
        return producers[-1]

    yield producer
    for opened in producers:
        opened.purge()
        opened.flush(5)


def send(producer: Producer, topic: str, values: str) -> None:
    """Write one batch and wait until the broker acknowledges it."""
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(30) == 0


def last_stable_offset(admin: AdminClient, topic: str) -> int:
    partition = TopicPartition(topic, 0)
    found = admin.list_offsets(
        {partition: OffsetSpec.latest()},  # type: ignore[no-untyped-call]
        isolation_level=IsolationLevel.READ_COMMITTED,
    )
    return int(found[partition].result(30).offset)


def await_last_stable_offset(bootstrap: str, topic: str, expected: int) -> None:
    """Wait for control records, which the coordinator writes after the commit returns."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    eventually(lambda: last_stable_offset(admin, topic) == expected)


@pytest.fixture
def open_transaction(
    topic: TopicFactory, produce: Produce, transactional: Transactional, bootstrap: str
) -> tuple[str, Producer]:
    """Return the name of the topic with these records and the producer of its open transaction."""
    name = topic()
    for values, commits, end in (("ABC", True, 4), ("xy", False, 7)):
        producer = transactional()
        producer.begin_transaction()
        send(producer, name, values)
        (producer.commit_transaction if commits else producer.abort_transaction)(30)
        await_last_stable_offset(bootstrap, name, end)
    produce(name, ["p"])
    producer = transactional()
    producer.begin_transaction()
    send(producer, name, "z")
    producer.abort_transaction(30)
    await_last_stable_offset(bootstrap, name, 10)
    producer = transactional()
    producer.begin_transaction()
    send(producer, name, "DE")
    return name, producer


def rows(frame: DataFrame) -> list[tuple[int, str]]:
    return sorted((row.offset, row.value.decode()) for row in frame.collect())


COMMITTED = [(0, "A"), (1, "B"), (2, "C"), (7, "p")]
ALL = sorted([*COMMITTED, (4, "x"), (5, "y"), (8, "z"), (10, "D"), (11, "E")])


def test_both_isolation_levels(read: Reader, open_transaction: tuple[str, Producer]) -> None:
    name, producer = open_transaction
    assert rows(read(subscribe=name)) == COMMITTED
    assert rows(read(subscribe=name, **{"kafka.isolation.level": "read_uncommitted"})) == ALL
    producer.commit_transaction(30)


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        pytest.param(3, 4, [], id="only-a-control-record"),
        pytest.param(2, 4, [(2, "C")], id="ends-with-a-control-record"),
        pytest.param(4, 7, [], id="only-an-aborted-transaction"),
        pytest.param(5, 8, [(7, "p")], id="begins-inside-an-aborted-batch"),
        pytest.param(1, 3, [(1, "B"), (2, "C")], id="begins-inside-a-batch"),
        pytest.param(7, 10, [(7, "p")], id="ends-with-aborted-and-control-records"),
    ],
)
def test_ranges_that_end_without_a_record_end_without_a_wait(
    read: Reader,
    open_transaction: tuple[str, Producer],
    start: int,
    end: int,
    expected: list[tuple[int, str]],
) -> None:
    name, _ = open_transaction
    frame = read(
        subscribe=name,
        startingOffsets=f'{{"{name}":{{"0":{start}}}}}',
        endingOffsets=f'{{"{name}":{{"0":{end}}}}}',
    )
    started = time.monotonic()
    assert rows(frame) == expected
    assert time.monotonic() - started < 60, "the read waited for a record that does not exist"


def test_an_end_after_the_last_stable_offset(
    read: Reader, open_transaction: tuple[str, Producer], bootstrap: str
) -> None:
    name, producer = open_transaction
    options = {
        "subscribe": name,
        "endingOffsets": f'{{"{name}":{{"0":12}}}}',
        "kafkaConsumer.pollTimeoutMs": "1500",
    }
    with pytest.raises(
        PySparkException,
        match=rf"OffsetError: .*{name}-0\b.*\b12\b.*isolation\.level",
    ):
        read(**options).collect()
    producer.commit_transaction(30)
    await_last_stable_offset(bootstrap, name, 13)
    assert rows(read(**options)) == [*COMMITTED, (10, "D"), (11, "E")]


def test_a_stream_waits_for_the_end_of_a_transaction(
    streams: StreamRunner, open_transaction: tuple[str, Producer], bootstrap: str
) -> None:
    name, producer = open_transaction
    options = {"subscribe": name, "startingOffsets": "earliest"}
    streams.available_now(**options)
    assert streams.offsets(0) == {name: {"0": 10}}
    assert streams.values == ["A", "B", "C", "p"]
    producer.abort_transaction(30)
    await_last_stable_offset(bootstrap, name, 13)
    streams.available_now(**options)
    assert streams.offsets(1) == {name: {"0": 13}}
    assert streams.values == ["A", "B", "C", "p"]


def test_a_checkpoint_of_a_read_uncommitted_stream(
    streams: StreamRunner, open_transaction: tuple[str, Producer]
) -> None:
    name, producer = open_transaction
    options = {"subscribe": name, "startingOffsets": "earliest"}
    streams.available_now(**options, **{"kafka.isolation.level": "read_uncommitted"})
    assert streams.offsets(0) == {name: {"0": 12}}
    (streams.checkpoint / "commits" / "0").unlink()
    (streams.checkpoint / "commits" / ".0.crc").unlink()
    with pytest.raises(
        PySparkException, match=rf"OffsetError: .*{name}-0 .*kafka\.isolation\.level"
    ):
        streams.available_now(**options, **{"kafkaConsumer.pollTimeoutMs": "1000"})
    producer.commit_transaction(30)
    streams.available_now(**options)
    assert streams.values == ["A", "B", "C", "p", "D", "E"]


def test_a_stream_after_the_last_stable_offset_continues(
    streams: StreamRunner, open_transaction: tuple[str, Producer], bootstrap: str
) -> None:
    name, producer = open_transaction
    options = {"subscribe": name, "startingOffsets": "earliest"}
    streams.available_now(**options, **{"kafka.isolation.level": "read_uncommitted"})
    before = list(streams.values)
    streams.available_now(**options)
    producer.commit_transaction(30)
    await_last_stable_offset(bootstrap, name, 13)
    streams.available_now(**options)
    assert streams.values == before, "a record was read twice"
