"""Tests that other clients read the offsets that each engine commits to a group."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as RdTopicPartition

from pyspark_kafka.client.port import KafkaReadClient
from pyspark_kafka.errors import BrokerUnreachableError, KafkaError
from pyspark_kafka.kafka.topics import TopicPartition
from tests.conformance.eventually import eventually
from tests.conftest import TopicFactory
from tests.pyspark_kafka.client.records import reading

pytestmark = pytest.mark.usefixtures("engine")


@pytest.fixture
def client(engine: str, bootstrap: str) -> Iterator[KafkaReadClient]:
    with reading(bootstrap) as opened:
        yield opened


def seen(bootstrap: str, group: str, *partitions: TopicPartition) -> dict[TopicPartition, int]:
    """Return the offsets that confluent-kafka finds; negative without a commit."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "log_level": 2, "group.id": group})
    try:
        found = consumer.committed([RdTopicPartition(p.topic, p.partition) for p in partitions], 30)
    finally:
        consumer.close()
    return {TopicPartition(p.topic, p.partition): p.offset for p in found}


def test_committed_offsets_are_visible_to_others(
    client: KafkaReadClient, bootstrap: str, topic: TopicFactory, unique_name: Callable[[], str]
) -> None:
    one, other, group = topic(partitions=2), topic(), unique_name()
    first, second, third = (
        TopicPartition(one, 0),
        TopicPartition(one, 1),
        TopicPartition(other, 0),
    )
    client.commit_offsets(group, {first: 5, third: 0})
    assert seen(bootstrap, group, first, second, third) == {first: 5, second: -1001, third: 0}
    client.commit_offsets(group, {first: 4, second: 9})
    assert seen(bootstrap, group, first, second, third) == {first: 4, second: 9, third: 0}
    assert client.committed_offsets(group, [first, second]) == {first: 4, second: 9}
    client.commit_offsets(group, {})


def test_a_group_with_members_is_theirs(
    client: KafkaReadClient, bootstrap: str, topic: TopicFactory, unique_name: Callable[[], str]
) -> None:
    partition, group = TopicPartition(topic(), 0), unique_name()
    member = Consumer({"bootstrap.servers": bootstrap, "log_level": 2, "group.id": group})
    member.subscribe([partition.topic])
    try:

        def has_joined() -> bool:
            member.poll(0.1)
            return bool(member.assignment())

        eventually(has_joined)
        with pytest.raises(KafkaError, match=group):
            client.commit_offsets(group, {partition: 3})
    finally:
        member.close()
    assert seen(bootstrap, group, partition) == {partition: -1001}


@pytest.mark.slow
def test_no_broker_is_an_error_in_time(engine: str) -> None:
    with (
        reading("127.0.0.1:1", default_api_timeout_ms="1000") as client,
        pytest.raises(BrokerUnreachableError, match=r"127.0.0.1:1"),
    ):
        client.commit_offsets("g", {TopicPartition("t", 0): 3})
