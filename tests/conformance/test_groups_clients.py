"""Tests of groups of third-party clients: assignments when members join and leave."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import confluent_kafka
import kafka
import pytest

from integration.clusters import Cluster
from tests.conformance.clients import PYTHON_SILENT, load_partitions
from tests.conformance.eventually import eventually

PARTITIONS = 4
REBALANCE_S = 60.0
POLL_MS = 2_000


@pytest.fixture
def groups(one_broker: Cluster) -> Cluster:
    return one_broker


@pytest.fixture
def topic(groups: Cluster, unique_name: Callable[[], str]) -> str:
    name = unique_name()
    groups.create_topic(name, partitions=PARTITIONS)
    return name


def confluent(groups: Cluster, group: str, topic: str, **configs: Any) -> Any:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": groups.bootstrap_servers,
            "log_level": 2,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "heartbeat.interval.ms": 200,
            **configs,
        }
    )
    consumer.subscribe([topic])
    return consumer


def share(consumer: Any) -> set[int]:
    consumer.poll(0.05)
    return {one.partition for one in consumer.assignment()}


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_members_share_a_topic_as_they_join_and_leave(
    groups: Cluster, topic: str, unique_name: Callable[[], str], strategy: str
) -> None:
    group, configs = unique_name(), {"partition.assignment.strategy": strategy}
    one = confluent(groups, group, topic, **configs)
    two = confluent(groups, group, topic, **configs)
    everything = set(range(PARTITIONS))

    def halves() -> bool:
        first, second = share(one), share(two)
        return len(first) == len(second) == 2 and first | second == everything

    eventually(halves, timeout_s=REBALANCE_S)
    two.close()
    eventually(lambda: share(one) == everything, timeout_s=REBALANCE_S)
    one.close()


def test_member_continues_at_the_offset_of_another(
    groups: Cluster, topic: str, unique_name: Callable[[], str]
) -> None:
    group = unique_name()
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": groups.bootstrap_servers, "log_level": 2}
    )
    for number in range(4):
        producer.produce(topic, str(number), partition=0)
    assert producer.flush(30) == 0
    one = confluent(groups, group, topic)
    read: list[Any] = []
    eventually(lambda: _read(one, read) >= 2)
    one.commit(offsets=[confluent_kafka.TopicPartition(topic, 0, 2)], asynchronous=False)
    one.close()
    two = confluent(groups, group, topic)
    again: list[Any] = []
    eventually(lambda: _read(two, again) >= 2)
    two.close()
    assert [message.value() for message in again] == [b"2", b"3"]


def _read(consumer: Any, into: list[Any]) -> int:
    message = consumer.poll(0.05)
    if message is not None and message.error() is None:
        into.append(message)
    return len(into)


@contextmanager
def polled(consumer: kafka.KafkaConsumer) -> Iterator[list[set[int]]]:
    """Poll a consumer in a thread. Yield a list whose last element is its assignment.

    kafka-python joins a group only during a poll, and starts to join again if the poll ends first.
    librdkafka rejoins only if it is polled, too. Therefore one thread cannot poll both.
    """
    assignments: list[set[int]] = [set()]
    is_stopped = threading.Event()

    def poll() -> None:
        while not is_stopped.is_set():
            consumer.poll(timeout_ms=POLL_MS)
            assignments.append({one.partition for one in consumer.assignment()})

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        yield assignments
    finally:
        is_stopped.set()
        thread.join()


def test_different_clients_share_a_topic(
    groups: Cluster, topic: str, unique_name: Callable[[], str]
) -> None:
    group = unique_name()
    # A consumer that is not closed would disturb later tests in its thread.
    with closing(
        kafka.KafkaConsumer(
            topic,
            bootstrap_servers=groups.bootstrap_servers,
            group_id=group,
            heartbeat_interval_ms=200,
            enable_auto_commit=False,
            **PYTHON_SILENT,
        )
    ) as python:
        load_partitions(python, topic)
        with polled(python) as assignments:
            other = confluent(groups, group, topic)

            def halves() -> bool:
                first, second = assignments[-1], share(other)
                return len(first) == len(second) == 2 and not first & second

            eventually(halves, timeout_s=REBALANCE_S)
            other.close()
            eventually(lambda: len(assignments[-1]) == PARTITIONS, timeout_s=REBALANCE_S)
