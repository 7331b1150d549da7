"""Tests of a leader that has no connection to the controller but still has clients."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest
from kio.schema.errors import ErrorCode

import broker_ref
from broker_ref.controller.client import CONTROLLER_ID
from integration.raw import RawConnection
from tests.broker_ref.scenarios.load import FOREIGN, await_all_read, read_all, under_load
from tests.broker_ref.scenarios.replica_files import assert_replicas_agree
from tests.conformance.batches import Record, batch
from tests.conformance.eventually import eventually
from tests.conformance.wire import append, describe_topics, only, produce

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

CONFIGS = {
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "300",
    "replica.lag.time.max.ms": "1000",
    "offsets.topic.num.partitions": "1",
    "default.replication.factor": "3",
}
TOPIC_CONFIGS = {"min.insync.replicas": "2"}
TIMED_OUT_MS = 3_000
FOREIGN_RECORD = Record(value=struct.pack(">q", FOREIGN))
STRAY = batch([FOREIGN_RECORD, FOREIGN_RECORD])
KEPT = batch([FOREIGN_RECORD])


@pytest.fixture
def cluster() -> Iterator[broker_ref.Cluster]:
    opened = broker_ref.Cluster(brokers=3, configs=CONFIGS)
    opened.start()
    try:
        yield opened
    finally:
        opened.close()


def leader_seen_by(cluster: broker_ref.Cluster, broker_id: int) -> int:
    with RawConnection(cluster.address(broker_id)) as raw:
        (partition,) = only(describe_topics(raw, "load").topics).partitions
        return int(partition.leader_id)


def isr_seen_by(cluster: broker_ref.Cluster, broker_id: int) -> set[int]:
    with RawConnection(cluster.address(broker_id)) as raw:
        (partition,) = only(describe_topics(raw, "load").topics).partitions
        return set(partition.isr_nodes)


@pytest.mark.parametrize("also_cut_off_from", ["the controller only", "its followers"])
def test_leader_cut_off_from_the_controller(
    cluster: broker_ref.Cluster, also_cut_off_from: str
) -> None:
    cluster.create_topic("load", configs=TOPIC_CONFIGS)
    old = leader_seen_by(cluster, 1)
    others = [broker_id for broker_id in cluster.broker_ids if broker_id != old]
    with under_load(cluster.bootstrap_servers, "load", 1) as load:
        load.await_more(200)
        peers = [] if also_cut_off_from == "the controller only" else others
        cluster.faults.isolate(old, [CONTROLLER_ID, *peers])
        eventually(lambda: leader_seen_by(cluster, others[0]) in others)
        # The old leader still considers itself the leader, but cannot commit records. A client that
        # is connected only to this broker, as the load may be, gets no metadata with the new
        # leader.
        assert leader_seen_by(cluster, old) == old
        with RawConnection(cluster.address(old)) as raw:
            refused = produce(raw, "load", STRAY, timeout_ms=TIMED_OUT_MS)
        assert refused.error_code is ErrorCode.request_timed_out
        with RawConnection(cluster.address(leader_seen_by(cluster, others[0]))) as raw:
            kept = append(raw, "load", KEPT)
        cluster.faults.heal_all()
        eventually(lambda: isr_seen_by(cluster, others[0]) == set(cluster.broker_ids))
        load.await_more(200)
    await_all_read(load, lambda: read_all(cluster.bootstrap_servers, "load", 1))
    found = read_all(cluster.bootstrap_servers, "load", 1)
    assert [place for place, number in found.items() if number == FOREIGN] == [(0, kept)]
    directories = [cluster.data_directory(broker_id) for broker_id in cluster.broker_ids]
    assert_replicas_agree(directories, "load", {0: len(found)})
