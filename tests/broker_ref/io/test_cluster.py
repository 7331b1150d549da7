"""Tests of `broker_ref.Cluster` as used by other Python projects."""

from __future__ import annotations

import gc
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path

import confluent_kafka
import kafka
import pytest
from kio.schema.errors import ErrorCode

import broker_ref
from broker_ref.faults import Match
from broker_ref.io import cluster as cluster_module
from broker_ref.io.admin import CreateTopicError
from broker_ref.io.cluster import Cluster, ClusterError
from broker_ref.io.settings import BrokerStartError

REGISTRATION = 62


def consume(cluster: Cluster, topic: str, count: int) -> list[bytes | None]:
    """Return the first `count` values of a topic's partition 0, with kafka-python."""
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=cluster.bootstrap_servers, consumer_timeout_ms=20_000
    )
    try:
        partition = kafka.TopicPartition(topic, 0)
        consumer.assign([partition])
        consumer.seek_to_beginning(partition)
        return [message.value for _, message in zip(range(count), consumer, strict=False)]
    finally:
        consumer.close()


def open_descriptors() -> int:
    return len(list(Path("/dev/fd").iterdir()))


def produce(cluster: Cluster, topic: str, *values: bytes) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": cluster.bootstrap_servers, "log_level": 2}
    )
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(20) == 0


def test_a_record_survives_a_restart() -> None:
    with broker_ref.Cluster() as cluster:
        address = cluster.bootstrap_servers
        cluster.create_topic("events", configs={"retention.ms": "60000"})
        produce(cluster, "events", b"one", b"two")
        assert consume(cluster, "events", 2) == [b"one", b"two"]
        cluster.stop_broker(1)
        host, _, port = address.partition(":")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, int(port)))
        cluster.start_broker(1)
        assert cluster.bootstrap_servers == address
        produce(cluster, "events", b"three")
        assert consume(cluster, "events", 3) == [b"one", b"two", b"three"]


def test_a_data_directory_can_be_reopened(tmp_path: Path) -> None:
    with Cluster(data=tmp_path) as cluster:
        produce(cluster, "kept", b"one")
    with Cluster(data=str(tmp_path)) as cluster:
        assert consume(cluster, "kept", 1) == [b"one"]


def test_close_leaves_no_thread_socket_file_or_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    threads, files = threading.active_count(), open_descriptors()
    cluster = Cluster().start()
    host, _, port = cluster.bootstrap_servers.partition(":")
    with socket.create_connection((host, int(port))):
        cluster.create_topic("temporary")
        assert list(tmp_path.iterdir())
        cluster.close()
        cluster.close()
    gc.collect()
    assert list(tmp_path.iterdir()) == []
    assert threading.active_count() == threads
    assert open_descriptors() == files


def test_a_failed_start_is_raised_and_leaves_nothing(tmp_path: Path) -> None:
    threads = threading.active_count()
    with (
        pytest.raises(BrokerStartError, match=r"num\.partitions"),
        Cluster(data=tmp_path, configs={"num.partitions": "0"}),
    ):
        pass
    assert threading.active_count() == threads


def test_a_different_node_id_in_the_configs_is_rejected() -> None:
    with (
        pytest.raises(BrokerStartError, match=r"'node\.id'"),
        Cluster(configs={"node.id": "5"}),
    ):
        pass


@pytest.mark.slow
def test_a_start_that_takes_too_long_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(2, data=tmp_path)
    registers = Match(api_keys=frozenset({REGISTRATION}), sender_id=2)
    with monkeypatch.context() as patched, cluster.faults.hold(registers) as held:
        patched.setattr(cluster_module, "_CALL_TIMEOUT_SECONDS", 3.0)
        with pytest.raises(TimeoutError):
            cluster.start()
    assert held.hits
    with Cluster(2, data=tmp_path):
        pass


def test_a_directory_in_use_is_rejected(tmp_path: Path) -> None:
    with (
        Cluster(data=tmp_path),
        pytest.raises(BrokerStartError, match=re.escape(str(tmp_path))),
        Cluster(data=tmp_path),
    ):
        pass


def test_a_port_in_use_is_rejected() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(BrokerStartError, match=f"127.0.0.1:{port}"),
            Cluster(port=port),
        ):
            pass


def test_a_rejected_topic_is_an_error_with_its_reason() -> None:
    with Cluster() as cluster:
        with pytest.raises(CreateTopicError, match="'no spaces'") as invalid:
            cluster.create_topic("no spaces")
        assert invalid.value.error_code is ErrorCode.invalid_topic_exception
        cluster.create_topic("twice", partitions=3)
        with pytest.raises(CreateTopicError, match="'twice'") as repeated:
            cluster.create_topic("twice")
        assert repeated.value.error_code is ErrorCode.topic_already_exists


def test_misuse_raises_cluster_error() -> None:
    with pytest.raises(ClusterError, match=r"\b0\b"):
        Cluster(0)
    cluster = Cluster()
    with pytest.raises(ClusterError, match=r"start\(\)"):
        cluster.create_topic("too-early")
    with cluster:
        with pytest.raises(ClusterError):
            cluster.start()
        with pytest.raises(ClusterError, match=r"(?i)broker 1\b"):
            cluster.start_broker(1)
        with pytest.raises(ClusterError, match=r"(?i)broker 2\b"):
            cluster.stop_broker(2)
        with pytest.raises(ClusterError, match="controller"):
            cluster.start_controller()
        cluster.stop_broker(1)
        with pytest.raises(ClusterError, match=r"(?i)broker 1\b"):
            cluster.stop_broker(1)
        with pytest.raises(ClusterError, match=r"(?i)broker 1\b"):
            cluster.pause_broker(1)
        with pytest.raises(ClusterError, match="too-late"):
            cluster.create_topic("too-late")
        cluster.stop_controller()
        with pytest.raises(ClusterError, match="controller"):
            cluster.kill_controller()


def test_the_pytest_plugin_does_not_import_the_broker() -> None:
    script = (
        "import sys, pytest; before = set(sys.modules); import broker_ref.pytest_plugin;"
        "print(sorted(set(sys.modules) - before))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=30
    )
    assert loaded.stdout.strip() == "['broker_ref', 'broker_ref.pytest_plugin']"


def test_the_package_has_no_other_names() -> None:
    with pytest.raises(AttributeError, match="Clutser"):
        broker_ref.Clutser  # noqa: B018
