"""The `kafka` backend starts, continues after kills and reports missing software."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from integration.clusters import Cluster, ClusterStartError, ClusterUnavailableError, open_cluster
from integration.clusters.maven import Artifacts, resolve
from integration.raw import RawConnection
from tests.conformance.eventually import eventually


@pytest.mark.slow
@pytest.mark.kafka_only
@pytest.mark.timeout(300)  # Kafka restarts slowly, especially on a busy machine.
def test_a_killed_broker_restarts_with_its_topics_on_the_same_port() -> None:
    with open_cluster("kafka") as cluster:
        cluster.create_topic("kept", partitions=3)
        address = cluster.bootstrap_servers
        cluster.kill_broker(1)
        with pytest.raises(ConnectionRefusedError):
            RawConnection(address)
        cluster.start_broker(1)
        assert cluster.bootstrap_servers == address
        with RawConnection(address) as connection:

            def has_its_partitions() -> bool:
                (topic,) = connection.call("metadata", 9, topics=[{"name": "kept"}]).topics
                return len(topic.partitions) == 3

            eventually(has_its_partitions)


@pytest.mark.slow
@pytest.mark.kafka_only
@pytest.mark.timeout(300)
def test_three_brokers_serve_without_any_one_node() -> None:
    quick = {"broker.session.timeout.ms": "9000", "broker.heartbeat.interval.ms": "500"}
    with open_cluster("kafka", brokers=3, configs=quick, racks={2: "b"}) as cluster:
        assert cluster.broker_ids == (1, 2, 3)
        assert [cluster.address(i) for i in (1, 2, 3)] == cluster.bootstrap_servers.split(",")
        cluster.create_topic("kept", assignment=[[1, 2, 3], [2, 3, 1], [3, 1, 2]])
        assert leaders_in_metadata(cluster, broker_id=1) == {1, 2, 3}
        cluster.kill_broker(1)
        eventually(lambda: leaders_in_metadata(cluster, broker_id=2) == {2, 3}, timeout_s=60)
        cluster.create_topic("while-one-is-gone", replication_factor=2)
        cluster.start_broker(1)
        cluster.stop_controller()
        assert leaders_in_metadata(cluster, broker_id=1) == {2, 3}
        cluster.start_controller()
        cluster.create_topic("by-hand", assignment=[[3, 1], [1, 2]])
        assert leaders_in_metadata(cluster, broker_id=2, topic="by-hand") == {3, 1}
        cluster.pause_broker(3)
        eventually(lambda: 3 not in leaders_in_metadata(cluster, broker_id=1), timeout_s=60)
        cluster.resume_broker(3)
        assert (cluster.data_directory(1) / "by-hand-0").is_dir()


def leaders_in_metadata(cluster: Cluster, *, broker_id: int, topic: str = "kept") -> set[int]:
    """Return the leaders of a topic's partitions in the metadata of the broker `broker_id`."""
    with RawConnection(cluster.address(broker_id)) as connection:
        (found,) = connection.call("metadata", 9, topics=[{"name": topic}]).topics
        return {partition.leader_id for partition in found.partitions}


@pytest.mark.slow
@pytest.mark.kafka_only
def test_a_broker_that_does_not_start_shows_the_end_of_its_log() -> None:
    with pytest.raises(ClusterStartError, match=r"log\.retention\.bytes"):
        open_cluster("kafka", configs={"log.retention.bytes": "many"})


def test_without_java_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ClusterUnavailableError, match=r"\bJRE\b.*\b17\b"):
        open_cluster("kafka")


def test_an_old_java_is_rejected(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    java = tmp_path / "bin" / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ClusterUnavailableError, match=r"\b17\b.*\b11\b"):
        open_cluster("kafka")


_NOWHERE = Artifacts(
    name="nowhere", coordinates=("org.example.nowhere:nothing:1",), transitive=False
)


def test_without_maven_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ClusterUnavailableError, match="Maven"):
        resolve(_NOWHERE, cache=tmp_path)


def test_a_failed_download_leaves_no_complete_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _fake_maven(monkeypatch, tmp_path, "printf '\\033[0m[ERROR] no route\\n' ; exit 1")
    cache = tmp_path / "cache"
    with pytest.raises(ClusterUnavailableError, match=r"\bnowhere\b.*\bno route\b"):
        resolve(_NOWHERE, cache=cache)
    assert [entry.name for entry in cache.iterdir()] == ["nowhere.lock"]


def test_jars_are_downloaded_again_only_for_new_coordinates(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls = tmp_path / "calls"
    script = f'echo x >> {calls}; for w in "$@"; do case $w in -DoutputDirectory=*) '
    script += "touch ${w#-DoutputDirectory=}/a.jar;; esac; done"
    _fake_maven(monkeypatch, tmp_path, script)
    cache = tmp_path / "cache"
    assert [jar.name for jar in resolve(_NOWHERE, cache=cache)] == ["a.jar"]
    assert resolve(_NOWHERE, cache=cache) == [cache / "nowhere" / "a.jar"]
    assert calls.read_text() == "x\n"
    changed = Artifacts(name="nowhere", coordinates=("org.example:b:2",), transitive=False)
    resolve(changed, cache=cache)
    assert calls.read_text() == "x\nx\n"


def test_parallel_runs_download_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    _fake_maven(monkeypatch, tmp_path, f"echo x >> {calls}")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: resolve(_NOWHERE, cache=tmp_path / "cache"), range(8)))
    assert calls.read_text() == "x\n"


def _fake_maven(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str) -> None:
    maven = tmp_path / "mvn"
    maven.write_text(f"#!/bin/sh\n{script}\n")
    maven.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")


def test_an_unknown_backend_is_rejected_with_the_choices() -> None:
    with pytest.raises(ValueError, match="reference, reference-processes, kafka"):
        open_cluster("rabbit")
