"""Tests of the state that a broker keeps when it stops or is killed, and starts again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pytest
from kio.schema.errors import ErrorCode

from integration.clusters import Cluster
from integration.raw import RawConnection
from tests.conformance.batches import NOW_MS, Record, batch, parse, values
from tests.conformance.eventually import eventually
from tests.conformance.groups import await_coordinator, commit, committed
from tests.conformance.nodes import SESSION_TIMEOUT_MS
from tests.conformance.producers import Producer
from tests.conformance.wire import (
    EARLIEST,
    LATEST,
    append,
    describe_topics,
    fetch,
    list_offset,
    only,
    produce,
    topic_id,
)

pytestmark = pytest.mark.slow

ClusterFactory = Callable[[Mapping[str, str] | None], Cluster]
CONFIGS = {"max.message.bytes": "2000"}


@pytest.fixture(scope="module")
def own_cluster(cluster_with: ClusterFactory) -> Cluster:
    return cluster_with({"broker.session.timeout.ms": str(SESSION_TIMEOUT_MS)})


@pytest.fixture
def connected(own_cluster: Cluster) -> Iterator[RawConnection]:
    with RawConnection(own_cluster.bootstrap_servers) as connection:
        yield connection


def stop(cluster: Cluster) -> None:
    cluster.stop_broker(1)


def kill(cluster: Cluster) -> None:
    cluster.kill_broker(1)


@pytest.mark.parametrize("end", [stop, kill])
def test_acknowledged_state_survives_a_restart(
    own_cluster: Cluster,
    connected: RawConnection,
    unique_name: Callable[[], str],
    end: Callable[[Cluster], None],
) -> None:
    name, group = unique_name(), unique_name()
    own_cluster.create_topic(name, partitions=3, configs=CONFIGS)
    identifier = topic_id(connected, name)
    append(connected, name, batch(values("a", "b", "c")))
    append(connected, name, batch(values("d", timestamp_ms=NOW_MS + 50)))
    many = [f"{number}" for number in range(200)]
    for value in many:
        append(connected, name, batch(values(value)), partition=2)
    producer = Producer(connected, name, partition=1)
    for sequence in range(5):
        producer.accepted(sequence)
    partition = {"partition_index": 0, "offset": 1}
    deleted = connected.call(
        "delete_records", 2, timeout=30_000, topics=[{"name": name, "partitions": [partition]}]
    )
    assert only(only(deleted.topics).partitions).low_watermark == 1
    await_coordinator(connected, group)
    assert commit(connected, group, name, 3, metadata="m", leader_epoch=0) == ErrorCode.none

    end(own_cluster)
    own_cluster.start_broker(1)

    with RawConnection(own_cluster.bootstrap_servers) as raw:
        eventually(lambda: list_offset(raw, name, LATEST).error_code == ErrorCode.none)
        eventually(lambda: list_offset(raw, name, LATEST, partition=1).offset == 5)
        eventually(lambda: list_offset(raw, name, LATEST, partition=2).offset == len(many))
        found = only(describe_topics(raw, name).topics)
        assert (found.topic_id, len(found.partitions)) == (identifier, 3)
        # Kafka checkpoints log start offsets once a minute and on a clean shutdown.
        starts = {1} if end is stop else {0, 1}
        assert list_offset(raw, name, EARLIEST).offset in starts
        _check_log(raw, name)
        stored = parse(fetch(raw, name, partition=2).records)
        assert [r.value for b in stored for r in b.records] == [v.encode() for v in many]
        _check_producer(raw, producer)
        await_coordinator(raw, group)
        assert committed(raw, group, name) == [(3, "m", 0)]


def _check_log(raw: RawConnection, name: str) -> None:
    assert list_offset(raw, name, LATEST).offset == 4
    assert list_offset(raw, name, NOW_MS + 1).offset == 3
    read = [
        record.value for found in parse(fetch(raw, name, 1).records) for record in found.records
    ]
    assert read == [b"a", b"b", b"c", b"d"]
    # The topic has the configs with which it was created.
    too_large = batch([Record(value=b"x" * 2000)])
    assert produce_error(raw, name, too_large) == ErrorCode.message_too_large
    assert append(raw, name, batch(values("e"))) == 4


def produce_error(raw: RawConnection, name: str, records: bytes) -> ErrorCode:
    code = produce(raw, name, records).error_code
    assert isinstance(code, ErrorCode)
    return code


def _check_producer(raw: RawConnection, producer: Producer) -> None:
    """Check duplicate detection, the next sequence, and that a new producer id is different."""
    again = Producer(raw, producer.topic, partition=1)
    assert again.producer_id != producer.producer_id
    again.producer_id = producer.producer_id
    assert again.accepted(4) == 4
    for sequence in range(4):
        # A producer snapshot contains only the last batch, so the broker may not know older ones.
        response = again.send(sequence)
        known = response.error_code == ErrorCode.none and response.base_offset == sequence
        assert known or response.error_code == ErrorCode.out_of_order_sequence_number
    assert again.send(6).error_code == ErrorCode.out_of_order_sequence_number
    assert again.accepted(5) == 5
    assert again.end() == 6


def test_older_leader_epoch_is_fenced(own_cluster: Cluster, unique_name: Callable[[], str]) -> None:
    name = unique_name()
    own_cluster.create_topic(name)
    with RawConnection(own_cluster.bootstrap_servers) as raw:
        append(raw, name, batch(values("a")))
    own_cluster.stop_broker(1)
    own_cluster.start_broker(1)
    with RawConnection(own_cluster.bootstrap_servers) as raw:
        eventually(lambda: list_offset(raw, name, LATEST).error_code == ErrorCode.none)
        partition = only(only(describe_topics(raw, name).topics).partitions)
        assert partition.leader_epoch > 0
        for epoch, error_code in (
            (-1, ErrorCode.none),
            (0, ErrorCode.fenced_leader_epoch),
            (partition.leader_epoch, ErrorCode.none),
            (partition.leader_epoch + 1, ErrorCode.unknown_leader_epoch),
        ):
            assert fetch(raw, name, current_leader_epoch=epoch).error_code == error_code
            found = list_offset(raw, name, LATEST, leader_epoch=epoch)
            assert found.error_code == error_code
        append(raw, name, batch(values("b")))
        epochs = [found.leader_epoch for found in parse(fetch(raw, name).records)]
        assert epochs == [0, partition.leader_epoch]
