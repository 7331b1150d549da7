"""Tests of topics, offsets and groups with the port `KafkaClient`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka import TopicPartition as RdTopicPartition
from confluent_kafka.admin import AdminClient

from integration.clusters import Cluster
from pyspark_kafka.client.port import KafkaReadClient
from pyspark_kafka.errors import BrokerUnreachableError, UnknownTopicOrPartitionError
from pyspark_kafka.kafka.offsets import EARLIEST, LATEST, AtTimestamp, IsolationLevel
from pyspark_kafka.kafka.topics import TopicPartition
from tests.conftest import TopicFactory
from tests.pyspark_kafka.client.records import TIMEOUT_S, Record, reading, write

pytestmark = pytest.mark.usefixtures("engine")

COMMITTED = IsolationLevel.READ_COMMITTED


def commit(bootstrap: str, group_id: str, offsets: dict[TopicPartition, int]) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})
    rd = [RdTopicPartition(p.topic, p.partition, offset) for p, offset in offsets.items()]
    (future,) = admin.alter_consumer_group_offsets(
        [ConsumerGroupTopicPartitions(group_id, rd)]
    ).values()
    future.result(TIMEOUT_S)


@pytest.fixture
def client(bootstrap: str) -> Iterator[KafkaReadClient]:
    with reading(bootstrap) as opened:
        yield opened


def test_topics_are_listed_without_internal_ones(
    client: KafkaReadClient, bootstrap: str, topic: TopicFactory
) -> None:
    name = topic()
    commit(bootstrap, "makes-the-offsets-topic", {TopicPartition(name, 0): 0})
    internal = client.describe_topics(["__consumer_offsets"])
    assert internal["__consumer_offsets"].is_internal
    listed = client.list_topics()
    assert name in listed
    assert "__consumer_offsets" not in listed


def test_a_topic_is_described_by_id_and_partitions(
    client: KafkaReadClient, topic: TopicFactory
) -> None:
    first, second = topic(partitions=3), topic()
    described = client.describe_topics([first, second])
    assert described[first].name == first
    assert described[first].partitions == (0, 1, 2)
    assert not described[first].is_internal
    assert described[second].partitions == (0,)
    assert described[first].topic_id is not None
    assert described[first].topic_id != described[second].topic_id


def test_describing_a_topic_does_not_create_it(
    client: KafkaReadClient, unique_name: Callable[[], str]
) -> None:
    name = unique_name()
    assert client.describe_topics([name]) == {}
    with pytest.raises(UnknownTopicOrPartitionError, match=name):
        client.list_offsets({TopicPartition(name, 0): LATEST}, COMMITTED)
    assert client.describe_topics([name]) == {}
    assert name not in client.list_topics()


def test_offsets(client: KafkaReadClient, bootstrap: str, topic: TopicFactory) -> None:
    name = topic(partitions=2)
    times = [1_700_000_000_000, 1_700_000_001_000, 1_700_000_002_000]
    write(bootstrap, name, [Record(value=b"v", timestamp_ms=at) for at in times])
    full, empty = TopicPartition(name, 0), TopicPartition(name, 1)
    assert client.list_offsets({full: EARLIEST, empty: EARLIEST}, COMMITTED) == {full: 0, empty: 0}
    assert client.list_offsets({full: LATEST, empty: LATEST}, COMMITTED) == {full: 3, empty: 0}
    between, after = AtTimestamp(timestamp_ms=times[0] + 1), AtTimestamp(timestamp_ms=times[2] + 1)
    assert client.list_offsets({full: between, empty: between}, COMMITTED) == {full: 1, empty: None}
    assert client.list_offsets({full: after}, COMMITTED) == {full: None}


def test_empty_queries_return_empty_results(client: KafkaReadClient) -> None:
    assert client.describe_topics([]) == {}
    assert client.list_offsets({}, COMMITTED) == {}
    assert client.committed_offsets("any", []) == {}


def test_missing_partition_is_an_error(client: KafkaReadClient, topic: TopicFactory) -> None:
    name = topic(partitions=2)
    queries = {TopicPartition(name, 0): LATEST, TopicPartition(name, 7): LATEST}
    with pytest.raises(UnknownTopicOrPartitionError) as caught:
        client.list_offsets(queries, COMMITTED)
    assert (caught.value.topic, caught.value.partition) == (name, 7)


def test_committed_offsets_come_back(
    client: KafkaReadClient, bootstrap: str, topic: TopicFactory, unique_name: Callable[[], str]
) -> None:
    name, group = topic(partitions=2), unique_name()
    first, second = TopicPartition(name, 0), TopicPartition(name, 1)
    assert client.committed_offsets(group, [first]) == {first: None}
    commit(bootstrap, group, {first: 7})
    assert client.committed_offsets(group, [first, second]) == {first: 7, second: None}
    commit(bootstrap, group, {first: 3})
    assert client.committed_offsets(group, [first]) == {first: 3}


def test_no_broker_is_an_error_in_time_that_names_the_address() -> None:
    with (
        reading("127.0.0.1:1", default_api_timeout_ms="1000") as client,
        pytest.raises(BrokerUnreachableError, match=r"127\.0\.0\.1:1\b.*\b1 s\b.*refused"),
    ):
        client.describe_topics(["any"])


def test_no_such_host_is_an_error_in_time_that_names_it() -> None:
    with (
        reading("no-such-host.invalid:9092", default_api_timeout_ms="1000") as client,
        pytest.raises(BrokerUnreachableError, match=r"no-such-host\.invalid:9092"),
    ):
        client.list_topics()


def test_request_to_a_stopped_broker_is_retried(
    cluster_with: Callable[[], Cluster],
) -> None:
    cluster = cluster_with()
    cluster.create_topic("there")
    with reading(cluster.bootstrap_servers) as client:
        assert "there" in client.list_topics()
        cluster.stop_broker(1)
        cluster.start_broker(1)
        assert "there" in client.describe_topics(["there"])
