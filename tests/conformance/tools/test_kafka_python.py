"""Tests of kafka-python on three brokers: produce, consume in a group, administration."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import kafka
import kafka.errors
import pytest
from kafka.admin import ConfigResource, KafkaAdminClient

from integration.clusters import Cluster
from tests.conformance.clients import PYTHON_SILENT, TIMEOUT_S, load_partitions
from tests.conformance.eventually import eventually
from tests.conformance.wire import partitions_led

pytestmark = pytest.mark.slow

PARTITIONS = 6
RECORDS = 300
REBALANCE_S = 60.0
POLL_MS = 500
"""Enough for a step of a rebalance on a busy machine."""


@pytest.fixture
def admin(processes: Cluster) -> Iterator[Any]:
    client = KafkaAdminClient(bootstrap_servers=processes.bootstrap_servers)
    yield client
    client.close()


@pytest.fixture
def topic(admin: Any, processes: Cluster, unique_name: Callable[[], str], replicas: int) -> str:
    name = unique_name()
    options = {"num_partitions": PARTITIONS, "replication_factor": replicas}
    admin.create_topics({name: options})
    # A consumer gets no partitions if its broker does not have the topic in its metadata.
    addresses = [processes.address(broker_id) for broker_id in processes.broker_ids]
    eventually(lambda: all(partitions_led(address, name) == PARTITIONS for address in addresses))
    return name


def leaders(admin: Any, topic: str) -> set[int]:
    (described,) = admin.describe_topics([topic])
    return {partition["leader_id"] for partition in described["partitions"]}


def produce(processes: Cluster, topic: str) -> set[bytes]:
    producer = kafka.KafkaProducer(
        bootstrap_servers=processes.bootstrap_servers,
        acks="all",
        enable_idempotence=True,
        **PYTHON_SILENT,
    )
    values = {f"value {number}".encode() for number in range(RECORDS)}
    try:
        sent = [producer.send(topic, key=value, value=value) for value in sorted(values)]
        for future in sent:
            future.get(TIMEOUT_S)
    finally:
        producer.close()
    return values


@contextmanager
def member(processes: Cluster, topic: str, group: str) -> Iterator[Any]:
    consumer = kafka.KafkaConsumer(
        topic,
        bootstrap_servers=processes.bootstrap_servers,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=10_000,
        **PYTHON_SILENT,
    )
    try:
        load_partitions(consumer, topic)
        yield consumer
    finally:
        consumer.close()


def poll(consumer: Any) -> set[bytes]:
    polled = consumer.poll(POLL_MS)
    return {record.value for records in polled.values() for record in records}


def test_group_consumes_the_produced_records(
    processes: Cluster, topic: str, unique_name: Callable[[], str]
) -> None:
    values, group = produce(processes, topic), unique_name()
    seen: set[bytes] = set()
    with member(processes, topic, group) as first:

        def all_seen() -> bool:
            seen.update(poll(first))
            return seen == values

        eventually(all_seen)
        first.commit()
        with member(processes, topic, group) as second, ThreadPoolExecutor(1) as thread:

            def shared() -> bool:
                # Both members must poll at the same time for a rebalance to complete soon.
                polled = thread.submit(poll, second)
                again = poll(first) | polled.result()
                assert not again, "committed records were read again"
                shares = [len(first.assignment()), len(second.assignment())]
                return shares == [PARTITIONS // 2, PARTITIONS // 2]

            eventually(shared, timeout_s=REBALANCE_S)
            assert not first.assignment() & second.assignment()
        eventually(
            lambda: not poll(first) and len(first.assignment()) == PARTITIONS,
            timeout_s=REBALANCE_S,
        )


def test_group_administration(
    processes: Cluster, admin: Any, topic: str, unique_name: Callable[[], str]
) -> None:
    values, group = produce(processes, topic), unique_name()
    seen: set[bytes] = set()
    with member(processes, topic, group) as consumer:

        def all_seen() -> bool:
            seen.update(poll(consumer))
            return seen == values

        eventually(all_seen)
        consumer.commit()
        (described,) = admin.describe_groups([group]).values()
        assert described["group_state"] == "Stable"
        assert len(described["members"]) == 1
        with pytest.raises(kafka.errors.KafkaError, match="NonEmptyGroup"):
            raise_errors(admin.delete_groups([group]))
    assert group in {listed["group_id"] for listed in admin.list_groups()}
    offsets = admin.list_group_offsets({group: None})[group]
    assert sum(found.offset for found in offsets.values()) == RECORDS
    raise_errors(admin.delete_groups([group]))
    assert group not in {listed["group_id"] for listed in admin.list_groups()}


def raise_errors(result: Any) -> None:
    for error in result.values():
        if error != "OK" and error is not None:
            raise kafka.errors.KafkaError(str(error))


def test_topic_administration(admin: Any, topic: str, replicas: int) -> None:
    assert topic in admin.list_topics()
    assert leaders(admin, topic) == set(range(1, replicas + 1))
    admin.create_partitions({topic: PARTITIONS + 1})
    eventually(lambda: len(admin.describe_topics([topic])[0]["partitions"]) == PARTITIONS + 1)
    resource = ConfigResource("TOPIC", topic, {"retention.ms": "60000"})
    admin.alter_configs([resource])

    def retention() -> str:
        found = admin.describe_configs([ConfigResource("TOPIC", topic)], config_filter="all")
        ((_, entries),) = next(iter(found.values())).items()
        return str(entries["retention.ms"]["value"])

    eventually(lambda: retention() == "60000")
    admin.delete_topics([topic])
    eventually(lambda: topic not in admin.list_topics())


def test_delete_records_and_list_offsets(processes: Cluster, admin: Any, topic: str) -> None:
    produce(processes, topic)
    consumer = kafka.KafkaConsumer(bootstrap_servers=processes.bootstrap_servers, **PYTHON_SILENT)
    partitions = [kafka.TopicPartition(topic, number) for number in range(PARTITIONS)]
    try:
        ends = consumer.end_offsets(partitions)
        assert sum(ends.values()) == RECORDS
        admin.delete_records(dict(ends))
        assert consumer.beginning_offsets(partitions) == ends
    finally:
        consumer.close()
