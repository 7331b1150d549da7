"""A Kafka Streams job with exactly_once_v2, while an instance and a broker are killed.

The job counts words, so it has a repartition topic, a changelog topic and a transaction for each
commit. It emits every count, so a word that occurs n times has exactly the counts 1 to n.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

from integration.clusters import Cluster
from integration.clusters.maven import KAFKA_STREAMS
from integration.clusters.node_process import NodeProcess
from integration.java_programs import java_program, write_properties
from integration.raw import RawConnection
from tests.conformance.eventually import eventually
from tests.conformance.groups import find_coordinator
from tests.conformance.tools.committed import PROGRAM_TIMEOUT_S, await_count, read_records, write
from tests.conformance.wire import only
from tests.conftest import ClusterFactory

pytestmark = [
    pytest.mark.slow,
    pytest.mark.full,
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("java_programs"),
]

PROGRAM = Path(__file__).parent / "WordCount.java"
APPLICATION, INPUT, OUTPUT = "word-count", "words", "counts"
PARTITIONS = 4
WORDS = [f"word-{number}" for number in range(20)]
ROUNDS = 250
"""How often the test writes each word to each partition."""


@pytest.fixture(scope="module")
def brokers(process_cluster_with: ClusterFactory) -> Cluster:
    """Return three brokers that detect failures and abort expired transactions quickly.

    An election must be faster than the transaction timeout, so that the job keeps its transactions.
    """
    configs = {
        "broker.heartbeat.interval.ms": "500",
        "broker.session.timeout.ms": "4000",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    }
    cluster = process_cluster_with(configs, brokers=3)
    for topic in (INPUT, OUTPUT):
        cluster.create_topic(topic, partitions=PARTITIONS, replication_factor=3)
    return cluster


@contextmanager
def two_instances(cluster: Cluster, directory: Path) -> Iterator[list[NodeProcess]]:
    """Start two instances of the job, and wait until each has tasks."""
    settings = write_properties(
        directory / "streams.properties",
        {"bootstrap.servers": cluster.bootstrap_servers, "session.timeout.ms": "6000"},
    )
    with ExitStack() as stack:
        instances = []
        for name in ("instance-1", "instance-2"):
            arguments = (str(settings), INPUT, OUTPUT, str(directory / name))
            program = java_program(
                name, PROGRAM, *arguments, artifacts=(KAFKA_STREAMS,), directory=directory
            )
            instances.append(stack.enter_context(program))
        eventually(
            lambda: len(tasks := tasks_of_members(cluster)) == 2 and all(tasks),
            timeout_s=PROGRAM_TIMEOUT_S,
        )
        yield instances


def tasks_of_members(cluster: Cluster) -> list[int]:
    """Return the number of partitions that each instance consumes."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 2})
    try:
        group = admin.describe_consumer_groups([APPLICATION])[APPLICATION].result()
    except confluent_kafka.KafkaException:
        return []
    return [len(member.assignment.topic_partitions) for member in group.members]


def test_counts_are_exact_while_an_instance_and_the_coordinator_are_killed(
    brokers: Cluster, tmp_path: Path
) -> None:
    words = dict.fromkeys(range(PARTITIONS), WORDS * ROUNDS)
    half = PARTITIONS * ROUNDS * len(WORDS)
    with two_instances(brokers, tmp_path) as instances:
        write(brokers, INPUT, words)
        await_count(brokers, OUTPUT, 1, partitions=PARTITIONS)
        instances[0].kill()
        instances[0].start()
        await_count(brokers, OUTPUT, half, partitions=PARTITIONS)

        write(brokers, INPUT, words)
        await_count(brokers, OUTPUT, half + 1, partitions=PARTITIONS)
        with RawConnection(brokers.address(1)) as raw:
            victim = int(only(find_coordinator(raw, APPLICATION).coordinators).node_id)
        brokers.kill_broker(victim)
        await_count(brokers, OUTPUT, 2 * half, partitions=PARTITIONS)
        brokers.start_broker(victim)

    counts = defaultdict(list)
    for records in read_records(brokers, OUTPUT, partitions=PARTITIONS).values():
        for word, count in records:
            counts[word].append(int(count))
    expected = list(range(1, 2 * PARTITIONS * ROUNDS + 1))
    assert counts == dict.fromkeys(WORDS, expected)
