"""Clusters for tests: `open_cluster("reference" | "kafka" | ..., brokers=3)`."""

from __future__ import annotations

from collections.abc import Mapping

from integration.clusters.base import (
    Cluster,
    ClusterStartError,
    ClusterUnavailableError,
    DirectLinks,
    Links,
    UnsupportedByBackendError,
)
from integration.clusters.coordinates import KAFKA_VERSION, apache_kafka, resolve
from integration.clusters.java import java_command

__all__ = [
    "BACKENDS",
    "Cluster",
    "ClusterStartError",
    "ClusterUnavailableError",
    "DirectLinks",
    "Links",
    "UnsupportedByBackendError",
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

    `configs` are broker configs, `racks` the racks of brokers by id, `features` the finalized
    feature versions that differ from the backend's defaults, such as `{"transaction.version": 1}`,
    and `links` the advertised addresses of nodes (for example proxies). `is_measured` is for
    benchmarks: Kafka's JVMs then run as in production, while they otherwise optimize for a fast
    start. Raise `ClusterUnavailableError` if this machine lacks what the backend needs,
    `ClusterStartError` if the cluster does not start, `UnsupportedByBackendError` for links if
    nodes are not processes, `ValueError` for an unknown backend.
    """
    # Imported on demand: a backend that is not installed must not break the others.
    if backend == "reference":
        from integration.clusters.reference import ReferenceCluster  # noqa: PLC0415

        if links is not None:
            raise UnsupportedByBackendError(
                "the backend reference does not support links: use reference-processes"
            )
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
    raise ValueError(f"unknown cluster backend {backend!r}: choose from {', '.join(BACKENDS)}")


def prepare(backend: str) -> None:
    """Fetch and prepare what the backend needs, which may take minutes the first time.

    Raise `ClusterUnavailableError` if this machine lacks it.
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
    """Return backend and version in one line, without a start."""
    is_kafka = backend in ("kafka", "testcontainers")
    version = f"Apache Kafka {KAFKA_VERSION}" if is_kafka else "broker_ref"
    return f"{backend} ({version})"
