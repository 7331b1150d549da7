"""The `testcontainers` backend without Docker: the calls that it makes to containers."""

from __future__ import annotations

import builtins
from collections.abc import Iterable
from typing import Any

import pytest

from integration.clusters import (
    ClusterStartError,
    ClusterUnavailableError,
    UnsupportedByBackendError,
    node_cluster,
    open_cluster,
    topics,
)
from integration.clusters import containers as backend
from integration.clusters import features as features_of
from integration.clusters.containers import (
    CLIENT_PORT,
    ContainerSpec,
    TestcontainersCluster,
    environment_name,
)


class Recorded:
    """A container that records calls and does nothing."""

    def __init__(self, spec: ContainerSpec, calls: list[tuple[str, str]]) -> None:
        self.spec = spec
        self._calls = calls
        self._status = "created"

    def _note(self, call: str, status: str) -> None:
        self._calls.append((self.spec.hostname, call))
        self._status = status

    def start(self) -> None:
        self._note("start", "running")

    def signal(self, name: str) -> None:
        self._note(name, "exited" if name == "SIGKILL" else "running")

    def stop(self, timeout_s: int) -> None:
        self._note("stop", "exited")

    def pause(self) -> None:
        self._note("pause", "paused")

    def unpause(self) -> None:
        self._note("unpause", "running")

    def status(self) -> str:
        return self._status

    def logs(self) -> str:
        return f"log of {self.spec.hostname}"

    def remove(self) -> None:
        self._note("remove", "removed")


class Recorder:
    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.made: list[Recorded] = []

    def create(self, spec: ContainerSpec) -> Recorded:
        self.made.append(Recorded(spec, self.calls))
        return self.made[-1]

    def close(self) -> None:
        self.calls.append(("network", "remove"))

    def of(self, hostname: str) -> list[str]:
        return [call for name, call in self.calls if name == hostname]


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def awaited(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collect the addresses that the cluster waits for. All brokers are ready immediately."""
    calls: list[str] = []

    def ready(address: str, *, broker_ids: Iterable[int], **_: Any) -> None:
        calls.append(f"{address} {sorted(broker_ids)}")

    monkeypatch.setattr(topics, "await_brokers", ready)
    return calls


def test_clients_connect_by_loopback_and_nodes_by_name(
    recorder: Recorder, awaited: list[str]
) -> None:
    cluster = TestcontainersCluster(
        brokers=3, racks={2: "b"}, configs={"num.partitions": "4"}, containers=recorder
    )
    specs = {one.spec.hostname: one.spec for one in recorder.made}
    assert list(specs) == ["controller", "broker-1", "broker-2", "broker-3"]
    assert {spec.image for spec in specs.values()} == {"apache/kafka:4.3.0"}
    assert len({spec.environment["CLUSTER_ID"] for spec in specs.values()}) == 1
    second = specs["broker-2"]
    assert cluster.address(2) == f"127.0.0.1:{second.ports[CLIENT_PORT]}"
    assert second.environment["KAFKA_ADVERTISED_LISTENERS"] == (
        f"CLIENT://{cluster.address(2)},BROKER://broker-2:19092"
    )
    assert second.environment["KAFKA_BROKER_RACK"] == "b"
    assert second.environment["KAFKA_NUM_PARTITIONS"] == "4"
    assert second.environment["KAFKA_CONTROLLER_QUORUM_VOTERS"] == "3000@controller:9093"
    assert second.environment["KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR"] == "3"
    assert specs["controller"].ports == {}
    assert cluster.bootstrap_servers == ",".join(cluster.address(i) for i in (1, 2, 3))
    assert awaited == [f"{cluster.address(i)} [1, 2, 3]" for i in (1, 2, 3)]
    cluster.close()


def test_features_are_finalized_when_the_brokers_serve(
    recorder: Recorder, awaited: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[list[str], dict[str, int]]] = []
    refuses = False

    def finalize(addresses: list[str], features: dict[str, int]) -> None:
        assert len(awaited) == 2
        if refuses:
            raise features_of.FeatureUpdateError
        calls.append((addresses, features))

    monkeypatch.setattr(features_of, "finalize", finalize)
    wanted = {"transaction.version": 1}
    with TestcontainersCluster(brokers=2, features=wanted, containers=recorder) as cluster:
        assert calls == [([cluster.address(1), cluster.address(2)], wanted)]
    awaited.clear()
    recorder.calls.clear()
    refuses = True
    with pytest.raises(features_of.FeatureUpdateError):
        TestcontainersCluster(brokers=2, features=wanted, containers=recorder)
    assert recorder.calls[-1] == ("network", "remove")


def test_docker_stops_kills_and_pauses_a_broker(recorder: Recorder, awaited: list[str]) -> None:
    with TestcontainersCluster(brokers=2, containers=recorder) as cluster:
        cluster.kill_broker(1)
        with pytest.raises(ValueError, match=r"(?i)broker 1\b"):
            cluster.stop_broker(1)
        cluster.start_broker(1)
        cluster.pause_broker(2)
        with pytest.raises(UnsupportedByBackendError, match=r"(?i)broker 2\b"):
            cluster.kill_broker(2)
        cluster.resume_broker(2)
        cluster.stop_broker(2)
        assert "log of broker-2" in cluster.logs()
        with pytest.raises(UnsupportedByBackendError, match="kafka"):
            cluster.data_directory(1)
    assert recorder.of("broker-1") == [
        *("start", "SIGKILL", "stop"),
        *("start", "SIGTERM", "stop", "remove"),
    ]
    assert recorder.of("broker-2") == ["start", "pause", "unpause", "stop", "remove"]
    assert recorder.calls[-1] == ("network", "remove")


def test_a_node_that_exits_fails_the_start_with_its_log_and_is_removed(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_cluster, "START_TIMEOUT_S", 5)
    monkeypatch.setattr(Recorded, "status", lambda _: "exited")
    with pytest.raises(ClusterStartError, match=r"\bbroker-1\b"):
        TestcontainersCluster(containers=recorder)
    assert recorder.of("broker-1")[-1] == "remove"
    assert recorder.calls[-1] == ("network", "remove")


def test_configs_are_passed_as_environment_variables() -> None:
    assert environment_name("log.dirs") == "KAFKA_LOG_DIRS"
    assert environment_name("a-b.c_d") == "KAFKA_A___B_C__D"


def test_without_the_package_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    imported = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "docker":
            raise ImportError("No module named 'docker'")
        return imported(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ClusterUnavailableError, match="testcontainers"):
        open_cluster("testcontainers")


def test_without_docker_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("docker")
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:9")
    with pytest.raises(ClusterUnavailableError, match="Docker"):
        backend.require_docker()
