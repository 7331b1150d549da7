"""Find a suitable Java installation."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from integration.clusters.base import ClusterUnavailableError

JAVA_VERSION_MIN = 17
"""The minimum version for Apache Kafka 4 brokers (KIP-1013)."""


def java_command() -> str:
    """Return the path of a suitable `java`.

    Raises `ClusterUnavailableError` with installation instructions if no suitable Java is found.
    """
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / "java").exists():
        java: str | None = str(Path(home) / "bin" / "java")
    else:
        java = shutil.which("java")
    if java is None:
        raise ClusterUnavailableError(
            f"Apache Kafka requires Java, which was not found. Install a JDK or JRE, version "
            f"{JAVA_VERSION_MIN} or newer."
        )
    version = java_version(java)
    if version is not None and version < JAVA_VERSION_MIN:
        raise ClusterUnavailableError(
            f"Apache Kafka requires Java {JAVA_VERSION_MIN} or newer, but {java} is Java "
            f"{version}. "
            f"Install Java {JAVA_VERSION_MIN}, or set JAVA_HOME to its directory."
        )
    return java


def java_version(java: str) -> int | None:
    """Return the feature release of `java` (8, 11, 17, ...), or None if it is unknown."""
    done = subprocess.run(
        [java, "-version"], capture_output=True, text=True, timeout=60, check=False
    )
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr)
    return int(found.group(1)) if found else None
