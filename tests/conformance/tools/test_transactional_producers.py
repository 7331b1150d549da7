"""Tests of the transactional producers of librdkafka and kafka-python on three brokers.

The consumers of both libraries read the records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any, Protocol

import confluent_kafka
import kafka
import kafka.errors
import pytest
from kafka.structs import OffsetAndMetadata

from integration.clusters import Cluster
from tests.conformance.clients import PYTHON_SILENT, TIMEOUT_S
from tests.conformance.tools.committed import (
    await_read,
    committed_offsets,
    fill,
    new_topic,
)
from tests.conformance.transaction_versions import older_transaction_version_in_full

pytestmark = [pytest.mark.slow, pytest.mark.sampled]

NameFactory = Callable[[], str]
PARTITIONS = 3
TRANSACTIONS = 9
TRANSACTION_TIMEOUT_MS = 30_000


class FencedError(Exception):
    """Another producer uses the transactional id."""


class Transactional(Protocol):
    """An initialized transactional producer, and a `read_committed` consumer in a group."""

    def begin(self) -> None: ...

    def write(self, topic: str, partition: int, value: str) -> None: ...

    def commit(self) -> None:
        """Commit the transaction. Raises `FencedError`."""

    def abort(self) -> None: ...

    def read_some(self) -> list[tuple[int, str]]:
        """Return the partition and value of the next records, at least one."""

    def send_offsets(self) -> None:
        """Add the offsets of the consumed records to the transaction."""

    def go_back(self, topic: str) -> None:
        """Seek to the committed offsets."""

    def close(self) -> None: ...


class Confluent:
    """A producer and a consumer of confluent-kafka, which wraps librdkafka."""

    def __init__(self, bootstrap_servers: str, transactional_id: str, source: str | None) -> None:
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "log_level": 2,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
            }
        )
        self._producer.init_transactions(TIMEOUT_S)
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "log_level": 2,
                "group.id": transactional_id,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
            }
        )
        if source is not None:
            self._consumer.subscribe([source])

    def begin(self) -> None:
        self._producer.begin_transaction()

    def write(self, topic: str, partition: int, value: str) -> None:
        self._producer.produce(topic, value=value.encode(), partition=partition)

    def commit(self) -> None:
        try:
            self._producer.commit_transaction(TIMEOUT_S)
        except confluent_kafka.KafkaException as error:
            if error.args[0].fatal():
                raise FencedError from error
            raise

    def abort(self) -> None:
        self._producer.abort_transaction(TIMEOUT_S)

    def read_some(self) -> list[tuple[int, str]]:
        found = self._consumer.consume(20, timeout=1)
        if not found:
            found = self._consumer.consume(1, timeout=TIMEOUT_S)
        assert found, "nothing was read"
        for message in found:
            assert message.error() is None
        return [(m.partition() or 0, (m.value() or b"").decode()) for m in found]

    def send_offsets(self) -> None:
        position = self._consumer.position(self._consumer.assignment())
        read = [one for one in position if one.offset >= 0]
        metadata = self._consumer.consumer_group_metadata()
        self._producer.send_offsets_to_transaction(read, metadata, TIMEOUT_S)

    def go_back(self, topic: str) -> None:
        for found in self._consumer.committed(self._consumer.assignment(), timeout=TIMEOUT_S):
            offset = max(found.offset, 0)
            self._consumer.seek(confluent_kafka.TopicPartition(topic, found.partition, offset))

    def close(self) -> None:
        self._consumer.close()


class KafkaPython:
    """A producer and a consumer of kafka-python, which is written in Python."""

    def __init__(self, bootstrap_servers: str, transactional_id: str, source: str | None) -> None:
        self._producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap_servers,
            transactional_id=transactional_id,
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            **PYTHON_SILENT,
        )
        self._producer.init_transactions()
        self._consumer = kafka.KafkaConsumer(
            *([] if source is None else [source]),
            bootstrap_servers=bootstrap_servers,
            group_id=transactional_id,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            **PYTHON_SILENT,
        )

    def begin(self) -> None:
        self._producer.begin_transaction()

    def write(self, topic: str, partition: int, value: str) -> None:
        self._producer.send(topic, value=value.encode(), partition=partition)

    def commit(self) -> None:
        try:
            self._producer.commit_transaction()
        except (kafka.errors.ProducerFencedError, kafka.errors.InvalidProducerEpochError) as error:
            raise FencedError from error

    def abort(self) -> None:
        self._producer.abort_transaction()

    def read_some(self) -> list[tuple[int, str]]:
        polled = self._consumer.poll(TIMEOUT_S * 1000, max_records=20)
        found = [(r.partition, r.value.decode()) for records in polled.values() for r in records]
        assert found, "nothing was read"
        return found

    def send_offsets(self) -> None:
        offsets: Mapping[Any, Any] = {
            partition: OffsetAndMetadata(self._consumer.position(partition), "", -1)
            for partition in self._consumer.assignment()
        }
        self._producer.send_offsets_to_transaction(offsets, self._consumer.group_metadata())

    def go_back(self, topic: str) -> None:
        for partition in self._consumer.assignment():
            assert partition.topic == topic
            self._consumer.seek(partition, self._consumer.committed(partition) or 0)

    def close(self) -> None:
        self._producer.close(timeout=TIMEOUT_S)
        self._consumer.close()


@pytest.fixture(params=[Confluent, KafkaPython], ids=["confluent-kafka", "kafka-python"])
def producing(
    request: pytest.FixtureRequest, processes: Cluster
) -> Callable[..., closing[Transactional]]:
    """Return a function that creates transactional producers of a third-party client."""

    def make(transactional_id: str, source: str | None = None) -> closing[Transactional]:
        made: Transactional = request.param(processes.bootstrap_servers, transactional_id, source)
        return closing(made)

    return make


Producing = Callable[..., closing[Transactional]]


@older_transaction_version_in_full
def test_committed_records_are_visible_and_aborted_ones_are_not(
    processes: Cluster, producing: Producing, unique_name: NameFactory, transaction_version: int
) -> None:
    topic = new_topic(processes, unique_name, partitions=PARTITIONS)
    expected: dict[int, list[str]] = {partition: [] for partition in range(PARTITIONS)}
    with producing(unique_name()) as producer:
        for number in range(TRANSACTIONS):
            producer.begin()
            values = [f"{number}-{one}" for one in range(5)]
            for partition in range(PARTITIONS):
                for value in values:
                    producer.write(topic, partition, value)
            if number % 3 == 1:
                producer.abort()
                continue
            producer.commit()
            for partition in range(PARTITIONS):
                expected[partition] += values
    await_read(processes, topic, expected, partitions=PARTITIONS)
    with python_reader(processes, topic) as consumer:
        assert read_by_python(consumer, sum(map(len, expected.values()))) == expected


@contextmanager
def python_reader(processes: Cluster, topic: str) -> Iterator[Any]:
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=processes.bootstrap_servers,
        isolation_level="read_committed",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        **PYTHON_SILENT,
    )
    with closing(consumer):
        consumer.assign([kafka.TopicPartition(topic, each) for each in range(PARTITIONS)])
        yield consumer


def read_by_python(consumer: Any, count: int) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {partition: [] for partition in range(PARTITIONS)}
    while sum(map(len, found.values())) < count:
        polled = consumer.poll(TIMEOUT_S * 1000)
        assert polled, f"{found} of {count} records arrived"
        for partition, records in polled.items():
            found[partition.partition] += [record.value.decode() for record in records]
    return found


@older_transaction_version_in_full
def test_consume_transform_produce_writes_each_record_once(
    processes: Cluster, producing: Producing, unique_name: NameFactory, transaction_version: int
) -> None:
    source, target = (new_topic(processes, unique_name, partitions=PARTITIONS) for _ in range(2))
    written = fill(processes, source, partitions=PARTITIONS, count=40)
    group, done, rounds = unique_name(), 0, 0
    with producing(group, source) as producer:
        while done < 40 * PARTITIONS:
            found = producer.read_some()
            producer.begin()
            for partition, value in found:
                producer.write(target, partition, value)
            producer.send_offsets()
            rounds += 1
            if rounds % 2:
                producer.abort()
                producer.go_back(source)
            else:
                producer.commit()
                done += len(found)
    await_read(processes, target, written, partitions=PARTITIONS)
    assert committed_offsets(processes, group, source, partitions=PARTITIONS) == [40] * PARTITIONS


@older_transaction_version_in_full
def test_second_producer_with_the_same_id_fences_the_first(
    processes: Cluster, producing: Producing, unique_name: NameFactory, transaction_version: int
) -> None:
    topic, transactional_id = new_topic(processes, unique_name, partitions=1), unique_name()
    with producing(transactional_id) as first:
        first.begin()
        first.write(topic, 0, "first")
        with producing(transactional_id) as second:
            second.begin()
            second.write(topic, 0, "second")
            with pytest.raises(FencedError):
                first.commit()
            second.commit()
    await_read(processes, topic, {0: ["second"]}, partitions=1)
