"""Clusters for tests: `open_cluster("reference" | "kafka" | ..., brokers=3)`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from integration.clusters.base import (
    Cluster,
    ClusterStartError,
    ClusterUnavailableError,
    DirectLinks,
    Links,
    UnsupportedByBackendError,
)
from integration.clusters.java import java_command
from integration.clusters.maven import KAFKA_VERSION, apache_kafka, resolve

if TYPE_CHECKING:
    from integration.clusters.security import Security

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
    security: Security | None = None,
) -> Cluster:
    """Start a cluster of brokers 1 to n and return it.

    The caller closes the cluster or uses it as a context manager.

    `configs` are broker configs, and `racks` maps broker ids to racks. `features` are finalized
    feature versions that differ from the backend's defaults, such as `{"transaction.version": 1}`.
    `links` chooses the advertised addresses of nodes, for example addresses of proxies. With
    `is_measured` (for benchmarks), Kafka's JVMs run with the default options and the default heap
    of Kafka's scripts. Without it, the JVMs are optimized for a fast start. `security` adds secured
    listeners.

    Raises:

    - `ClusterUnavailableError` if this machine does not meet a requirement of the backend
    - `ClusterStartError` if the cluster does not start
    - `UnsupportedByBackendError` if the backend does not support `links` or `security`
    - `ValueError` for an unknown backend
    """
    options: dict[str, Any] = {
        "brokers": brokers,
        "configs": configs,
        "racks": racks,
        "features": features,
    }
    # Backends are imported on demand, so each backend works even if another one is not installed.
    if backend == "reference":
        from integration.clusters.reference import ReferenceCluster  # noqa: PLC0415

        if links is not None:
            raise UnsupportedByBackendError(
                "the reference backend does not support links: use the reference-processes backend"
            )
        return ReferenceCluster(**options, security=security)
    if backend == "reference-processes":
        from integration.clusters.reference_processes import (  # noqa: PLC0415
            ReferenceProcessesCluster,
        )

        return ReferenceProcessesCluster(**options, links=links, security=security)
    if backend == "kafka":
        from integration.clusters.kafka import KafkaCluster  # noqa: PLC0415
        from integration.clusters.kafka_jvm import (  # noqa: PLC0415
            DEFAULT_HEAP_MEGABYTES,
            default_jvm_options,
        )

        if is_measured:
            options["jvm_options"] = default_jvm_options
            options["heap_megabytes"] = DEFAULT_HEAP_MEGABYTES
        return KafkaCluster(**options, links=links, security=security)
    if backend == "testcontainers":
        from integration.clusters.containers import TestcontainersCluster  # noqa: PLC0415

        if security is not None:
            raise UnsupportedByBackendError(
                "the testcontainers backend has no secured listeners: use the kafka backend"
            )
        return TestcontainersCluster(**options, links=links)
    raise ValueError(f"unknown cluster backend {backend!r}; choose from {', '.join(BACKENDS)}")


def prepare(backend: str) -> None:
    """Download and prepare the software that a backend requires.

    The first call may take several minutes. Raises `ClusterUnavailableError` if this machine does
    not meet a requirement of the backend.
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
    """Return the name and version of a backend in one line, without starting it."""
    is_kafka = backend in ("kafka", "testcontainers")
    version = f"Apache Kafka {KAFKA_VERSION}" if is_kafka else "broker_ref"
    return f"{backend} ({version})"
