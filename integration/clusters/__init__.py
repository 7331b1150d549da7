"""Clusters to test against: `open_cluster("reference" | "kafka" | ..., brokers=3)`."""

from __future__ import annotations

from collections.abc import Mapping

from integration.clusters.base import (
    Cluster,
    ClusterFailed,
    ClusterUnavailable,
    DirectLinks,
    Links,
    NotOfThisBackend,
)
from integration.clusters.coordinates import KAFKA_VERSION, apache_kafka, resolve
from integration.clusters.java import java_command

__all__ = [
    "BACKENDS",
    "Cluster",
    "ClusterFailed",
    "ClusterUnavailable",
    "DirectLinks",
    "Links",
    "NotOfThisBackend",
    "describe",
    "open_cluster",
    "prepare",
]

BACKENDS = ("reference", "reference-processes", "kafka", "testcontainers")


def open_cluster(
    backend: str,
    *,
    brokers: int = 1,
    configs: Mapping[str, str] | None = None,
    racks: Mapping[int, str] | None = None,
    features: Mapping[str, int] | None = None,
    links: Links | None = None,
    is_measured: bool = False,
) -> Cluster:
    """Start a cluster of brokers 1 to n; close it, or use it as a context manager.

    `configs` are broker settings by Kafka's names, `racks` the rack of each broker that has one,
    `features` what it finalizes at other versions than the backend does by itself, such as
    `{"transaction.version": 1}`, `links` the addresses that nodes are known by (proxies, for
    example). `is_measured` is for benchmarks: Kafka's JVMs then run as users' do, where they else
    start soon and never run fast. Raises `ClusterUnavailable` where this machine lacks what the
    backend needs, `ClusterFailed` where it does not start, `NotOfThisBackend` for links where nodes
    are no processes, `ValueError` for a backend that does not exist.
    """
    # Imported where chosen: no backend has to be installed for the others to run.
    if backend == "reference":
        from integration.clusters.reference import ReferenceCluster  # noqa: PLC0415

        if links is not None:
            raise NotOfThisBackend("reference has no links to replace: use reference-processes")
        return ReferenceCluster(brokers=brokers, configs=configs, racks=racks, features=features)
    if backend == "reference-processes":
        from integration.clusters.reference_processes import (  # noqa: PLC0415
            ReferenceProcessesCluster,
        )

        return ReferenceProcessesCluster(
            brokers=brokers, configs=configs, racks=racks, features=features, links=links
        )
    if backend == "kafka":
        from integration.clusters.kafka import KafkaCluster  # noqa: PLC0415
        from integration.clusters.kafka_jvm import lives_long  # noqa: PLC0415

        return KafkaCluster(
            brokers=brokers,
            configs=configs,
            racks=racks,
            features=features,
            links=links,
            jvm_options=lives_long if is_measured else None,
        )
    if backend == "testcontainers":
        from integration.clusters.containers import TestcontainersCluster  # noqa: PLC0415

        return TestcontainersCluster(
            brokers=brokers, configs=configs, racks=racks, features=features, links=links
        )
    raise ValueError(f"no cluster backend {backend!r}: choose from {', '.join(BACKENDS)}")


def prepare(backend: str) -> None:
    """Fetch and make what the backend needs, which may take minutes the first time.

    Raises `ClusterUnavailable` where this machine lacks it.
    """
    if backend == "kafka":
        from integration.clusters.kafka import class_archives  # noqa: PLC0415

        java_command()
        resolve(apache_kafka())
        class_archives()
    elif backend == "testcontainers":
        from integration.clusters.containers import require_docker  # noqa: PLC0415

        require_docker()


def describe(backend: str) -> str:
    """Backend and version in one line, without starting anything."""
    is_kafka = backend in ("kafka", "testcontainers")
    version = f"Apache Kafka {KAFKA_VERSION}" if is_kafka else "broker_ref"
    return f"{backend} ({version})"
