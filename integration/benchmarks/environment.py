"""The environment of a run: versions, cores and settings, but nothing that identifies a machine."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping
from importlib import metadata

from integration.benchmarks.connectors import TUNED
from integration.benchmarks.session import MASTER, SETTINGS
from integration.benchmarks.topics import BATCH_RECORDS
from integration.clusters.java import java_command
from integration.clusters.maven import KAFKA_VERSION, SPARK_KAFKA_CONNECTOR

_PACKAGES = ("pyspark", "pyarrow", "confluent-kafka", "aiokafka", "kafka-python")


def environment_facts() -> Mapping[str, str]:
    """Return the versions and settings for the report, by name."""
    found = {
        "Cores": str(os.cpu_count()),
        "Python": platform.python_version(),
        "Java": _java_version(),
        "Broker": f"Apache Kafka {KAFKA_VERSION}, one broker and its controller",
        "Spark's connector": ", ".join(
            coordinate.split(":", 1)[1] for coordinate in SPARK_KAFKA_CONNECTOR.coordinates
        ),
        "Tuned": _settings(TUNED),
        "Spark": f"{MASTER}, {_settings(SETTINGS)}, otherwise default settings",
        "Record batches in the topics": f"at most {BATCH_RECORDS} records, without keys",
    }
    for package in _PACKAGES:
        found[package] = _version(package)
    return found


def _settings(settings: Mapping[str, str]) -> str:
    return ", ".join(f"`{name}={value}`" for name, value in settings.items())


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _java_version() -> str:
    output = subprocess.run(
        [java_command(), "-version"], capture_output=True, text=True, timeout=60, check=False
    )
    parts = output.stderr.split('"')
    return parts[1] if len(parts) > 1 else "unknown"
