"""MirrorMaker 2 copies topics and group offsets to another cluster, and is killed in between.

With exactly-once support, the offsets in the target differ from those in the source, because the
target contains transaction markers. So a group continues at the right record in the target only if
its offsets are translated.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

import confluent_kafka
import pytest

from integration.clusters import Cluster
from integration.clusters.maven import KAFKA_CONNECT
from integration.clusters.node_process import NodeProcess
from integration.clusters.topics import grow_topic
from integration.java_programs import java_program, write_properties
from tests.conformance.clients import Confluent
from tests.conformance.eventually import eventually
from tests.conformance.tools.committed import (
    PROGRAM_TIMEOUT_S,
    Values,
    await_count,
    committed_offsets,
    read,
    write,
)
from tests.conftest import ClusterFactory

pytestmark = [
    pytest.mark.slow,
    pytest.mark.full,
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("java_programs"),
]

TOPIC, COPY = "orders", "A.orders"
RETENTION_MS = "86400000"
HALF = 1000
RECORDS_OF_TRANSACTION = 20


@pytest.fixture(scope="module")
def source_and_target(process_cluster_with: ClusterFactory) -> tuple[Cluster, Cluster]:
    configs = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"}
    return process_cluster_with(), process_cluster_with(configs)


def mirror_maker(
    source: Cluster, target: Cluster, directory: Path
) -> AbstractContextManager[NodeProcess]:
    """Start MirrorMaker, which copies `TOPIC` and the offsets of all groups from A to B."""
    settings = {
        "clusters": "A,B",
        "A.bootstrap.servers": source.bootstrap_servers,
        "A.consumer.isolation.level": "read_committed",
        "A.consumer.max.poll.records": str(RECORDS_OF_TRANSACTION),
        "B.bootstrap.servers": target.bootstrap_servers,
        "B.exactly.once.source.support": "enabled",
        # After a kill, MirrorMaker waits until the target has aborted its open transactions.
        "B.producer.transaction.timeout.ms": "5000",
        "B.session.timeout.ms": "6000",
        "B.plugin.discovery": "service_load",
        "A->B.enabled": "true",
        "A->B.topics": TOPIC,
        "B->A.emit.heartbeats.enabled": "false",
        "replication.factor": "1",
        "checkpoints.topic.replication.factor": "1",
        "heartbeats.topic.replication.factor": "1",
        "offset-syncs.topic.replication.factor": "1",
        "config.storage.replication.factor": "1",
        "offset.storage.replication.factor": "1",
        "status.storage.replication.factor": "1",
        "tasks.max": "2",
        # Record the offset of each copied record, so that all offsets can be translated exactly.
        "offset.lag.max": "0",
        "refresh.topics.interval.seconds": "1",
        "refresh.groups.interval.seconds": "1",
        "sync.topic.configs.interval.seconds": "1",
        "emit.checkpoints.interval.seconds": "1",
        "sync.group.offsets.enabled": "true",
        "sync.group.offsets.interval.seconds": "1",
    }
    return java_program(
        "mirror-maker",
        "org.apache.kafka.connect.mirror.MirrorMaker",
        str(write_properties(directory / "mirror-maker.properties", settings)),
        artifacts=(KAFKA_CONNECT,),
        directory=directory,
    )


def records(*, partitions: int, first: int) -> Values:
    return {
        partition: [f"{partition}-{number}" for number in range(first, first + HALF)]
        for partition in range(partitions)
    }


def commit(cluster: Cluster, group: str, offsets: list[int]) -> None:
    """Commit an offset for each partition of `TOPIC`."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": cluster.bootstrap_servers, "log_level": 2, "group.id": group}
    )
    try:
        partitions = [
            confluent_kafka.TopicPartition(TOPIC, partition, offset)
            for partition, offset in enumerate(offsets)
        ]
        consumer.commit(offsets=partitions, asynchronous=False)
    finally:
        consumer.close()


def remaining(cluster: Cluster, group: str, *, partitions: int) -> Values | None:
    """Return the records of the copy that a group has not read, or None without its offsets."""
    offsets = committed_offsets(cluster, group, COPY, partitions=partitions)
    if min(offsets) < 0:
        return None
    return read(cluster, COPY, partitions=partitions, offsets=offsets)


def test_records_configs_and_group_offsets_are_copied(
    source_and_target: tuple[Cluster, Cluster], tmp_path: Path
) -> None:
    source, target = source_and_target
    source.create_topic(TOPIC, partitions=2, configs={"retention.ms": RETENTION_MS})
    first, second = records(partitions=2, first=0), records(partitions=3, first=HALF)
    write(source, TOPIC, first)
    commit(source, "first half", [HALF, HALF])
    with mirror_maker(source, target, tmp_path) as program:
        await_count(target, COPY, 1, partitions=1)
        program.kill()
        assert sum(map(len, read(target, COPY, partitions=2).values())) < 2 * HALF
        program.start()
        eventually(
            lambda: remaining(target, "first half", partitions=2) == {}, timeout_s=PROGRAM_TIMEOUT_S
        )
        assert read(target, COPY, partitions=2) == first

        grow_topic(source.address(1), TOPIC, partitions=3)
        write(source, TOPIC, second)
        commit(source, "everything", [2 * HALF, 2 * HALF, HALF])
        eventually(
            lambda: remaining(target, "everything", partitions=3) == {}, timeout_s=PROGRAM_TIMEOUT_S
        )
        assert remaining(target, "first half", partitions=2) == {0: second[0], 1: second[1]}
        found = read(target, COPY, partitions=3)
        assert found == {0: first[0] + second[0], 1: first[1] + second[1], 2: second[2]}
        assert Confluent(target.bootstrap_servers).configs(COPY)["retention.ms"] == RETENTION_MS
