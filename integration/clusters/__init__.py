"""Clusters to test against: `open_cluster("reference" | "reference-processes" | "kafka")`."""

from __future__ import annotations

from collections.abc import Mapping

from integration.clusters.base import Cluster, ClusterFailed, ClusterUnavailable
from integration.clusters.coordinates import KAFKA_VERSION, apache_kafka, resolve
from integration.clusters.java import java_command

__all__ = [
    "BACKENDS",
    "Cluster",
    "ClusterFailed",
    "ClusterUnavailable",
    "describe",
    "open_cluster",
    "prepare",
]

BACKENDS = ("reference", "reference-processes", "kafka")


_NO_RETENTION = {"log.retention.check.interval.ms": str(6 * 60 * 60 * 1000)}
"""Tests write records with timestamps of long ago, and mean to read them."""


def open_cluster(backend: str, *, configs: Mapping[str, str] | None = None) -> Cluster:
    """Start a cluster of one broker, which is broker 1; close it, or use it as a context manager.

    `configs` are broker settings by Kafka's names. Raises `ClusterUnavailable` where this machine
    lacks what the backend needs, `ClusterFailed` where it does not start, `ValueError` for a
    backend that does not exist.
    """
    # Imported where chosen: no backend has to be installed for the others to run.
    if backend == "reference":
        from integration.clusters.reference import ReferenceCluster  # noqa: PLC0415

        return ReferenceCluster(configs={**_NO_RETENTION, **(configs or {})})
    if backend == "reference-processes":
        from integration.clusters.reference_processes import (  # noqa: PLC0415
            ReferenceProcessesCluster,
        )

        return ReferenceProcessesCluster(configs={**_NO_RETENTION, **(configs or {})})
    if backend == "kafka":
        from integration.clusters.kafka import KafkaCluster  # noqa: PLC0415

        return KafkaCluster(configs=configs)
    raise ValueError(f"no cluster backend {backend!r}: choose from {', '.join(BACKENDS)}")


def prepare(backend: str) -> None:
    """Fetch what the backend needs, which may take minutes the first time.

    Raises `ClusterUnavailable` where this machine lacks it.
    """
    if backend == "kafka":
        java_command()
        resolve(apache_kafka())


def describe(backend: str) -> str:
    """Backend and version in one line, without starting anything."""
    version = f"Apache Kafka {KAFKA_VERSION}" if backend == "kafka" else "broker_ref"
    return f"{backend} ({version})"
