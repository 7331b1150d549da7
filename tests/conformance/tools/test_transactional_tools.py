"""Tests of Apache Kafka's transaction tools on three brokers.

In the reference cluster each broker is a process.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import confluent_kafka
import pytest

from integration.clusters import Cluster
from integration.clusters.features import finalize, finalized
from integration.kafka_tools import KafkaTools, Output
from integration.raw import RawConnection, request
from tests.conformance.batches import TRANSACTIONAL, batch, values
from tests.conformance.clients import TIMEOUT_S
from tests.conformance.eventually import eventually
from tests.conformance.groups import find_coordinator
from tests.conformance.producers import new_producer_id
from tests.conformance.tools.committed import (
    await_read,
    committed_offsets,
    fill,
    new_topic,
    read,
)
from tests.conformance.transaction_versions import older_transaction_version_in_full
from tests.conformance.wire import only
from tests.conftest import ClusterFactory

pytestmark = [pytest.mark.slow, pytest.mark.sampled, pytest.mark.timeout(400)]

NameFactory = Callable[[], str]
RECORDS = 300
PER_TRANSACTION = 10
COPIER_TIMEOUT_S = 120.0
HOUR_MS = 3_600_000


def copier(source: str, target: str, group: str, transactional_id: str) -> list[str]:
    """Return the arguments of a copier of partition 0.

    It aborts about a third of its transactions.
    """
    return [
        *("--input-topic", source, "--input-partition", "0", "--output-topic", target),
        *("--consumer-group", group, "--transactional-id", transactional_id),
        *("--transaction-size", str(PER_TRANSACTION), "--enable-random-aborts"),
    ]


@older_transaction_version_in_full
def test_copier_with_random_aborts_copies_each_record_once(
    tools: KafkaTools, processes: Cluster, unique_name: NameFactory, transaction_version: int
) -> None:
    source, target = (new_topic(processes, unique_name, partitions=1) for _ in range(2))
    group = unique_name()
    written = fill(processes, source, partitions=1, count=RECORDS)
    output = tools.run("transactional-message-copier", *copier(source, target, group, group))
    assert output.events[-1]["totalProcessed"] == RECORDS
    await_read(processes, target, written, partitions=1)
    assert committed_offsets(processes, group, source, partitions=1) == [RECORDS]
    # A run has 30 or more transactions; one in 200,000 runs aborts none of them.
    assert len(read(processes, target, partitions=1, committed=False)[0]) > RECORDS


@contextmanager
def copiers(tools: KafkaTools, source: str, target: str, group: str) -> Iterator[Callable[[], str]]:
    """Run two copiers in one group.

    The yielded function waits until they end and returns their output.
    """
    started = []
    options = ["--group-mode", "--use-group-metadata", "--transaction-timeout", "10000"]
    for number in range(2):
        arguments = copier(source, target, group, f"{group}-{number}")
        command = tools.command("transactional-message-copier", *arguments, *options)
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, stdout=pipe, stderr=subprocess.STDOUT, text=True))

    def end() -> str:
        deadline_s = time.monotonic() + COPIER_TIMEOUT_S
        output = ""
        for one in started:
            said, _ = one.communicate(timeout=max(deadline_s - time.monotonic(), 1))
            assert one.returncode == 0, said
            output += said
        return output

    try:
        yield end
    finally:
        for one in started:
            one.kill()
            one.wait()
            assert one.stdout is not None
            one.stdout.close()


@pytest.mark.full
@older_transaction_version_in_full
def test_copiers_copy_each_record_once_while_their_coordinator_is_killed(
    tools: KafkaTools, processes: Cluster, unique_name: NameFactory, transaction_version: int
) -> None:
    if len(processes.broker_ids) < 3:
        pytest.skip("a single broker's partitions have no other leader")
    partitions = 4
    source, target = (new_topic(processes, unique_name, partitions=partitions) for _ in range(2))
    written = fill(processes, source, partitions=partitions, count=RECORDS)
    group = unique_name()
    with RawConnection(processes.address(processes.broker_ids[0])) as raw:
        victim = int(only(find_coordinator(raw, group).coordinators).node_id)
    with copiers(tools, source, target, group) as end:
        eventually(
            lambda: any(read(processes, target, partitions=partitions).values()), timeout_s=60
        )
        processes.kill_broker(victim)
        try:
            end()
        finally:
            processes.start_broker(victim)
    await_read(processes, target, written, partitions=partitions)
    offsets = committed_offsets(processes, group, source, partitions=partitions)
    assert offsets == [RECORDS] * partitions


@older_transaction_version_in_full
def test_records_of_a_transactional_load_are_committed(
    tools: KafkaTools, processes: Cluster, unique_name: NameFactory, transaction_version: int
) -> None:
    topic, transactional_id = new_topic(processes, unique_name, partitions=1), unique_name()
    output = tools.run(
        "producer-perf-test",
        *("--topic", topic, "--num-records", str(RECORDS), "--payload-monotonic"),
        *("--throughput", "600", "--transactional-id", transactional_id),
        *("--transaction-duration-ms", "20"),
    )
    assert f"{RECORDS} records sent" in output.stdout
    expected = [str(number) for number in range(RECORDS)]
    await_read(processes, topic, {0: expected}, partitions=1)
    markers = end_offset(processes, topic) - RECORDS
    assert markers >= 2
    (described,) = table(tools.run("transactions", "describe", *of_id(transactional_id)))
    assert described["TransactionState"] == "CompleteCommit"
    # Version 2 bumps the epoch with each transaction, version 1 only in InitProducerId.
    assert int(described["ProducerEpoch"]) == (markers if transaction_version == 2 else 0)


def end_offset(cluster: Cluster, topic: str) -> int:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "log_level": 2,
            "group.id": "ends",
            "isolation.level": "read_uncommitted",
        }
    )
    try:
        partition = confluent_kafka.TopicPartition(topic, 0)
        return int(consumer.get_watermark_offsets(partition, timeout=TIMEOUT_S)[1])
    finally:
        consumer.close()


def of_id(transactional_id: str) -> tuple[str, str]:
    return ("--transactional-id", transactional_id)


def table(output: Output) -> list[dict[str, str]]:
    header, *rows = ([cell.strip() for cell in line.split("\t")] for line in output.lines)
    return [dict(zip(header, row, strict=False)) for row in rows]


@contextmanager
def open_transaction(cluster: Cluster, topic: str, transactional_id: str) -> Iterator[object]:
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "log_level": 2,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": 60_000,
        }
    )
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce(topic, value=b"open", partition=0)
    assert producer.flush(TIMEOUT_S) == 0
    yield producer


@older_transaction_version_in_full
def test_open_transaction_is_found_described_and_aborted(
    tools: KafkaTools, processes: Cluster, unique_name: NameFactory, transaction_version: int
) -> None:
    topic, transactional_id = new_topic(processes, unique_name, partitions=1), unique_name()
    of_partition = ("--topic", topic, "--partition", "0")

    def producer_state() -> dict[str, str]:
        (found,) = table(tools.run("transactions", "describe-producers", *of_partition))
        return found

    with open_transaction(processes, topic, transactional_id):
        listed = table(tools.run("transactions", "list"))
        (found,) = [row for row in listed if row["TransactionalId"] == transactional_id]
        assert found["TransactionState"] == "Ongoing"
        (described,) = table(tools.run("transactions", "describe", *of_id(transactional_id)))
        assert described["CoordinatorId"] == found["Coordinator"]
        assert described["ProducerId"] == found["ProducerId"]
        assert described["TransactionState"] == "Ongoing"
        assert described["TransactionTimeoutMs"] == "60000"
        assert described["TopicPartitions"] == f"{topic}-0"
        state = producer_state()
        assert state["ProducerId"] == found["ProducerId"]
        assert state["ProducerEpoch"] == described["ProducerEpoch"]
        assert state["CurrentTransactionStartOffset"] == "0"
        assert (state["LastSequence"], state["LatestCoordinatorEpoch"]) == ("0", "-1")

        tools.run("transactions", "abort", *of_partition, "--start-offset", "0")
        assert producer_state()["CurrentTransactionStartOffset"] == "None"
        assert end_offset(processes, topic) == 2
        assert read(processes, topic, partitions=1) == {}
        again, status = tools.attempt("transactions", "abort", *of_partition, "--start-offset", "0")
        assert status == 1
        assert "Could not find any open transactions starting at offset 0" in again.stderr


def test_transaction_is_forcibly_terminated_by_its_id(
    tools: KafkaTools, processes: Cluster, unique_name: NameFactory
) -> None:
    topic, transactional_id = new_topic(processes, unique_name, partitions=1), unique_name()
    with open_transaction(processes, topic, transactional_id) as producer:
        assert isinstance(producer, confluent_kafka.Producer)
        tools.run(
            "transactions", "forceTerminateTransaction", "--transactionalId", transactional_id
        )
        assert read(processes, topic, partitions=1) == {}
        with pytest.raises(confluent_kafka.KafkaException) as fenced:
            producer.commit_transaction(TIMEOUT_S)
        assert fenced.value.args[0].fatal()


def test_unknown_transactional_id_is_reported(tools: KafkaTools, unique_name: NameFactory) -> None:
    output, status = tools.attempt("transactions", "describe", *of_id(unique_name()))
    assert status == 1
    assert "the ID could not be found" in output.stderr


@pytest.fixture(scope="module")
def without_verification(cluster_with: ClusterFactory) -> Cluster:
    """Return a cluster without transaction verification, in which a transaction may hang."""
    return cluster_with({"transaction.partition.verification.enable": "false"})


def test_hanging_transaction_is_found_and_aborted(
    without_verification: Cluster, unique_name: NameFactory
) -> None:
    cluster, topic = without_verification, unique_name()
    cluster.create_topic(topic)
    with RawConnection(cluster.address(1)) as raw:
        producer_id = new_producer_id(raw)
        late = batch(
            values("late", timestamp_ms=int(time.time() * 1000) - HOUR_MS),
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
            attributes=TRANSACTIONAL,
        )
        data = {"name": topic, "partition_data": [{"index": 0, "records": late}]}
        response = raw.send(
            request(
                "produce", 11, transactional_id="gone", acks=-1, timeout=30_000, topic_data=[data]
            )
        )
        assert response.responses[0].partition_responses[0].error_code == 0
    fill(cluster, topic, partitions=1, count=1)
    assert read(cluster, topic, partitions=1) == {}
    with KafkaTools(cluster.bootstrap_servers) as tools:

        def hanging() -> list[dict[str, str]]:
            return table(tools.run("transactions", "find-hanging", "--broker-id", "1"))

        (found,) = hanging()
        assert (found["Topic"], found["Partition"]) == (topic, "0")
        assert (found["ProducerId"], found["StartOffset"]) == (str(producer_id), "0")
        of_partition = ("--topic", topic, "--partition", "0")
        tools.run("transactions", "abort", *of_partition, "--start-offset", found["StartOffset"])
        assert hanging() == []
    assert read(cluster, topic, partitions=1) == {0: ["0-0"]}


def test_describe_and_change_features(tools: KafkaTools, processes: Cluster) -> None:
    addresses = [processes.address(broker_id) for broker_id in processes.broker_ids]
    before = finalized(addresses[0])
    feature = "transaction.version"

    def described() -> dict[str, str]:
        for line in tools.run("features", "describe").lines:
            words = line.split()
            if words[1] == feature:
                return dict(zip(words[::2], words[1::2], strict=True))
        raise AssertionError(f"{feature} is not described")

    def becomes(version: int) -> None:
        eventually(lambda: all(finalized(each).get(feature) == version for each in addresses))

    found = described()
    assert (found["SupportedMinVersion:"], found["SupportedMaxVersion:"]) == ("0", "2")
    assert found["FinalizedVersionLevel:"] == "2"
    try:
        tools.run("features", "downgrade", "--feature", f"{feature}=1", "--dry-run")
        tools.run("features", "downgrade", "--feature", f"{feature}=1")
        becomes(1)
        assert described()["FinalizedVersionLevel:"] == "1"
        output, status = tools.attempt("features", "upgrade", "--feature", f"{feature}=3")
        assert status == 1
        assert feature in output.stdout + output.stderr
        tools.run("features", "upgrade", "--feature", f"{feature}=2")
        becomes(2)
    finally:
        finalize(addresses, {feature: before[feature]})
