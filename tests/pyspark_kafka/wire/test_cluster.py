"""Tests of the wire client with a cluster: Apache Kafka or the reference broker."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from confluent_kafka import Producer
from kio.schema.errors import ErrorCode

from integration.clusters import Cluster
from integration.raw import RawConnection
from pyspark_kafka.errors import UnknownTopicOrPartitionError
from pyspark_kafka.kafka.offsets import EARLIEST, LATEST, AtTimestamp, IsolationLevel
from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.wire.cluster_queries import ClusterQueries
from pyspark_kafka.wire.connection import wait_any
from pyspark_kafka.wire.coordinators import CoordinatorKey
from pyspark_kafka.wire.dialer import Dialer
from pyspark_kafka.wire.fetch import (
    FetchedPartition,
    FetchLimits,
    FetchPartition,
    fetch_request,
    fetch_version,
)
from pyspark_kafka.wire.retry import Clock
from pyspark_kafka.wire.router import Router
from pyspark_kafka.wire.transport import Address
from pyspark_kafka.wire.versions import SUPPORTED_VERSIONS, Api
from tests.conftest import TopicFactory
from tests.pyspark_kafka.client.records import Record, producer, put

UNCOMMITTED = IsolationLevel.READ_UNCOMMITTED
COMMITTED = IsolationLevel.READ_COMMITTED
CLOCK = Clock()
SESSIONS = {"broker.session.timeout.ms": "2500", "broker.heartbeat.interval.ms": "250"}


def soon() -> float:
    return time.monotonic() + 30.0


def cluster_queries(bootstrap_servers: str) -> ClusterQueries:
    addresses = [Address.parse(text) for text in bootstrap_servers.split(",")]
    return ClusterQueries(
        router=Router(addresses, Dialer(client_id="wire-tests", clock=CLOCK)),
        bootstrap_servers=bootstrap_servers,
        retry_interval_s=0.1,
    )


@pytest.fixture
def queries(bootstrap: str) -> Iterator[ClusterQueries]:
    found = cluster_queries(bootstrap)
    yield found
    found.router.close()


@pytest.fixture
def filled(bootstrap: str, topic: TopicFactory) -> str:
    """Return a topic with two partitions.

    One has records at 1000, 2000 and 3000 ms, and the other is empty.
    """
    name = topic(partitions=2)
    records = [Record(value=b"v%d" % i, timestamp_ms=i * 1000) for i in (1, 2, 3)]
    put(producer(bootstrap), name, records)
    return name


def fetch_partition(router: Router, partition: TopicPartition, offset: int = 0) -> FetchPartition:
    router.topics([partition.topic], deadline=soon())
    return FetchPartition(
        topic_partition=partition,
        topic_id=router.metadata.topics[partition.topic].topic_id,
        fetch_offset=offset,
        partition_bytes_max=1_000_000,
        current_leader_epoch=router.leader(partition).leader_epoch,
    )


def fetch(
    router: Router, one: FetchPartition, isolation_level: IsolationLevel, version: int
) -> FetchedPartition:
    connection = router.connection(router.leader(one.topic_partition).broker, deadline=soon())
    limits = FetchLimits(isolation_level=isolation_level, wait_ms_max=100)
    request = fetch_request(version, limits, [one])
    response = connection.call(request, deadline=soon())
    assert response.error_code is ErrorCode.none
    (found,) = response.partitions
    return found


def test_topics(queries: ClusterQueries, filled: str) -> None:
    assert filled in queries.list_topics()
    assert "__consumer_offsets" not in queries.list_topics()
    described = queries.describe_topics([filled, "no-such-topic"])
    assert described.keys() == {filled}
    assert described[filled].partitions == (0, 1)
    assert len(described[filled].topic_id or "") == 22
    assert "no-such-topic" not in queries.list_topics()  # no request has created a topic


def test_offsets(queries: ClusterQueries, filled: str) -> None:
    partitions = [TopicPartition(filled, 0), TopicPartition(filled, 1)]
    for level in (COMMITTED, UNCOMMITTED):
        assert queries.list_offsets(dict.fromkeys(partitions, EARLIEST), level) == {
            partitions[0]: 0,
            partitions[1]: 0,
        }
        assert queries.list_offsets(dict.fromkeys(partitions, LATEST), level) == {
            partitions[0]: 3,
            partitions[1]: 0,
        }
    for timestamp_ms, offset in ((0, 0), (1001, 1), (3000, 2), (3001, None)):
        at = AtTimestamp(timestamp_ms=timestamp_ms)
        found = queries.list_offsets({partitions[0]: at}, COMMITTED)
        assert found == {partitions[0]: offset}


def test_unknown_topics_and_partitions_are_errors(queries: ClusterQueries, filled: str) -> None:
    for missing in (TopicPartition(filled, 2), TopicPartition("no-such-topic", 0)):
        with pytest.raises(UnknownTopicOrPartitionError) as caught:
            queries.list_offsets({missing: LATEST}, COMMITTED)
        assert (caught.value.topic, caught.value.partition) == (missing.topic, missing.partition)


def test_committed_offsets(
    queries: ClusterQueries, filled: str, raw: RawConnection, unique_name: Callable[[], str]
) -> None:
    group_id = unique_name()
    partitions = [TopicPartition(filled, 0), TopicPartition(filled, 1)]
    assert queries.committed_offsets(group_id, partitions) == dict.fromkeys(partitions)
    offsets = [{"partition_index": 0, "committed_offset": 2, "committed_metadata": ""}]
    coordinator = queries.router.coordinator(CoordinatorKey.group(group_id), deadline=soon())
    with RawConnection(str(coordinator.address)) as connection:
        connection.call(
            "offset_commit",
            7,
            group_id=group_id,
            generation_id_or_member_epoch=-1,
            topics=[{"name": filled, "partitions": offsets}],
        )
    found = queries.committed_offsets(group_id, partitions)
    assert found == {partitions[0]: 2, partitions[1]: None}


@pytest.mark.parametrize(
    "version", range(SUPPORTED_VERSIONS[Api.FETCH].first, SUPPORTED_VERSIONS[Api.FETCH].last + 1)
)
def test_fetch_in_every_version(queries: ClusterQueries, filled: str, version: int) -> None:
    one = fetch_partition(queries.router, TopicPartition(filled, 0))
    found = fetch(queries.router, one, COMMITTED, version)
    assert found.error_code is ErrorCode.none
    assert (found.high_watermark, found.last_stable_offset) == (3, 3)
    assert found.aborted == ()
    for value in (b"v1", b"v2", b"v3"):
        assert value in bytes(found.records)
    empty = fetch(
        queries.router, fetch_partition(queries.router, one.topic_partition, 3), COMMITTED, version
    )
    assert bytes(empty.records) == b""
    after_end = fetch_partition(queries.router, one.topic_partition, 4)
    response = fetch(queries.router, after_end, COMMITTED, version)
    assert response.error_code is ErrorCode.offset_out_of_range


def test_fetches_are_pipelined(queries: ClusterQueries, filled: str) -> None:
    router = queries.router
    ones = [fetch_partition(router, TopicPartition(filled, 0), offset) for offset in (0, 1, 2)]
    connection = router.connection(router.leader(ones[0].topic_partition).broker, deadline=soon())
    version = fetch_version(connection.versions.choose(Api.FETCH), ones)
    limits = FetchLimits(isolation_level=UNCOMMITTED)
    in_flight_requests = [
        connection.send(fetch_request(version, limits, [one]), deadline=soon()) for one in ones
    ]
    left = list(in_flight_requests)
    while left:
        done = wait_any(left, deadline=soon(), clock=CLOCK)
        assert done
        left = [pending for pending in left if pending not in done]
    assert all(pending.result().partitions[0].high_watermark == 3 for pending in in_flight_requests)


@pytest.mark.kafka_only
def test_fetch_returns_aborted_transactions(
    queries: ClusterQueries, bootstrap: str, topic: TopicFactory, unique_name: Callable[[], str]
) -> None:
    name = topic()
    put(producer(bootstrap), name, [Record(value=b"before")])
    transactional = Producer(
        {
            "bootstrap.servers": bootstrap,
            "log_level": 2,
            "transactional.id": unique_name(),
            "linger.ms": 0,
        }
    )
    transactional.init_transactions(30)
    transactional.begin_transaction()
    transactional.produce(name, value=b"dropped", partition=0)
    transactional.flush(30)
    partition = TopicPartition(name, 0)
    assert queries.list_offsets({partition: LATEST}, COMMITTED) == {partition: 1}
    assert queries.list_offsets({partition: LATEST}, UNCOMMITTED) == {partition: 2}
    transactional.abort_transaction(30)
    deadline = soon()
    while queries.list_offsets({partition: LATEST}, COMMITTED) != {partition: 3}:
        assert time.monotonic() < deadline
    version = SUPPORTED_VERSIONS[Api.FETCH].last
    committed = fetch(
        queries.router, fetch_partition(queries.router, partition), COMMITTED, version
    )
    assert committed.aborted is not None
    assert [one.first_offset for one in committed.aborted] == [1]
    plain = fetch(queries.router, fetch_partition(queries.router, partition), UNCOMMITTED, version)
    assert plain.aborted is None


def test_an_unknown_leader_epoch_is_an_error(queries: ClusterQueries, filled: str) -> None:
    one = fetch_partition(queries.router, TopicPartition(filled, 0))
    future = dataclasses.replace(one, current_leader_epoch=one.current_leader_epoch + 1)
    response = fetch(queries.router, future, COMMITTED, SUPPORTED_VERSIONS[Api.FETCH].last)
    assert response.error_code is ErrorCode.unknown_leader_epoch


@pytest.mark.slow
def test_queries_succeed_while_brokers_die(
    cluster_with: Callable[..., Cluster], unique_name: Callable[[], str]
) -> None:
    three = cluster_with(SESSIONS, brokers=3)
    name = unique_name()
    three.create_topic(name, partitions=6, replication_factor=3)
    partitions = [TopicPartition(name, index) for index in range(6)]
    queries = cluster_queries(three.bootstrap_servers)
    latest = dict.fromkeys(partitions, LATEST)
    group_id = unique_name()
    with closing(queries.router):

        def call() -> None:
            assert queries.list_offsets(latest, COMMITTED) == dict.fromkeys(partitions, 0)
            assert queries.committed_offsets(group_id, partitions) == dict.fromkeys(partitions)
            assert name in queries.list_topics()

        call()
        coordinator = queries.router.coordinator(
            CoordinatorKey.group(group_id), deadline=soon()
        ).broker_id
        three.kill_broker(coordinator)
        call()
        three.start_broker(coordinator)
        paused = queries.router.leader(partitions[0]).broker.broker_id
        three.pause_broker(paused)
        try:
            call()
        finally:
            three.resume_broker(paused)
