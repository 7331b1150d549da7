"""Download of the Java artifacts that tests and benchmarks use.

This is the only module with Maven coordinates. `resolve` downloads a set of JARs to `.cache/`,
which Git ignores. Invariant: a directory of JARs with its final name is complete, because the JARs
are downloaded to a temporary directory, which is renamed after the download. Only one process at a
time downloads a set of JARs.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from integration.clusters.base import ClusterUnavailableError

CACHE = Path(__file__).resolve().parents[2] / ".cache"
KAFKA_VERSION = os.environ.get("KAFKA_VERSION", "4.3.0")
"""The version of Apache Kafka that tests and benchmarks run.

The environment variable with the same name selects a different version.
"""
RESOLVE_TIMEOUT_S = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifacts:
    """A set of JARs. `coordinates` have the form `group:artifact:version`."""

    name: str
    coordinates: tuple[str, ...]
    transitive: bool


def apache_kafka(version: str = KAFKA_VERSION) -> Artifacts:
    """Return the artifacts of a broker, its tools and a logging backend.

    Kafka's own artifacts do not include a logging backend.
    """
    return Artifacts(
        name=f"kafka-{version}",
        coordinates=(
            f"org.apache.kafka:kafka_2.13:{version}",
            f"org.apache.kafka:kafka-tools:{version}",
            "org.apache.logging.log4j:log4j-core:2.24.3",
            "org.apache.logging.log4j:log4j-slf4j-impl:2.24.3",
        ),
        transitive=True,
    )


KAFKA_STREAMS = Artifacts(
    name=f"kafka-streams-{KAFKA_VERSION}",
    # Most dependencies are already in `apache_kafka`. RocksDB (70 MB) is not needed for jobs that
    # keep their state in memory.
    coordinates=(f"org.apache.kafka:kafka-streams:{KAFKA_VERSION}",),
    transitive=False,
)

KAFKA_CONNECT = Artifacts(
    name=f"kafka-connect-{KAFKA_VERSION}",
    # The runtime of Kafka Connect and all other dependencies are already in `apache_kafka`.
    coordinates=(
        f"org.apache.kafka:connect-file:{KAFKA_VERSION}",
        f"org.apache.kafka:connect-mirror:{KAFKA_VERSION}",
        f"org.apache.kafka:connect-mirror-client:{KAFKA_VERSION}",
    ),
    transitive=False,
)

SPARK_KAFKA_CONNECTOR = Artifacts(
    name="spark-sql-kafka-4.2.0",
    # Dependencies are not downloaded, because Spark's own JARs include them.
    coordinates=(
        "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
        "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
        "org.apache.commons:commons-pool2:2.12.0",
        "org.apache.kafka:kafka-clients:4.1.0",
    ),
    transitive=False,
)


def resolve(artifacts: Artifacts, *, cache: Path = CACHE) -> list[Path]:
    """Return the sorted paths of the JARs of `artifacts`. Download missing JARs with Maven.

    Raises `ClusterUnavailableError` if Maven is missing or the download fails.
    """
    directory = cache / artifacts.name
    pom = _pom(artifacts)
    if not _is_complete(directory, pom):
        cache.mkdir(parents=True, exist_ok=True)
        with locked(cache / f"{artifacts.name}.lock"):
            if not _is_complete(directory, pom):
                _fetch(artifacts, pom, directory)
    return sorted(directory.glob("*.jar"))


def _is_complete(directory: Path, pom: str) -> bool:
    try:
        return (directory / "pom.xml").read_text() == pom
    except FileNotFoundError:
        return False


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a file lock that excludes other processes on this machine."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch(artifacts: Artifacts, pom: str, directory: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise ClusterUnavailableError(
            f"{artifacts.name} is downloaded with Maven, but there is no `mvn` on the PATH. "
            "Install Maven 3.8 or newer, with Java 17 or newer."
        )
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=f"{artifacts.name}-") as scratch:
        fetched = Path(scratch) / "jars"
        fetched.mkdir()
        (fetched / "pom.xml").write_text(pom)
        _run_maven(maven, artifacts, fetched)
        if directory.exists():
            shutil.rmtree(directory)
        fetched.rename(directory)


def _run_maven(maven: str, artifacts: Artifacts, directory: Path) -> None:
    command = [
        maven,
        "--batch-mode",
        "--quiet",
        f"--file={directory / 'pom.xml'}",
        "dependency:copy-dependencies",
        f"-DoutputDirectory={directory}",
        "-DincludeScope=runtime",
    ]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=RESOLVE_TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "MAVEN_OPTS": os.environ.get("MAVEN_OPTS", "-Xmx256m")},
        )
    except subprocess.TimeoutExpired:
        raise ClusterUnavailableError(
            f"Maven did not download {artifacts.name} within {RESOLVE_TIMEOUT_S} s. Check the "
            "network or the mirror in your Maven settings."
        ) from None
    if done.returncode != 0:
        raise ClusterUnavailableError(
            f"Maven could not download {artifacts.name} "
            f"({_first_error(done.stdout + done.stderr)}). Check the network or the mirror in your "
            "Maven settings."
        )


def _first_error(output: str) -> str:
    """Return the first non-empty line of Maven's output.

    Long lines are shortened. Colors and markers are removed.
    """
    for line in re.sub(r"\x1b\[[0-9;]*m", "", output).splitlines():
        text = re.sub(r"^\[\w+\]\s*", "", line).strip()
        if text:
            return text[:300]
    return "Maven printed no reason"


def _pom(artifacts: Artifacts) -> str:
    # Dependencies of Spark's connector are excluded, because not all of them can be resolved.
    exclusion = "<exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion>"
    exclusions = "" if artifacts.transitive else f"<exclusions>{exclusion}</exclusions>"
    dependencies = []
    for coordinate in artifacts.coordinates:
        group, artifact, version = map(escape, coordinate.split(":"))
        dependencies.append(
            f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
            f"<version>{version}</version>{exclusions}</dependency>"
        )
    return (
        "<project><modelVersion>4.0.0</modelVersion><groupId>pyspark-kafka</groupId>"
        f"<artifactId>{escape(artifacts.name)}</artifactId><version>1</version>"
        "<packaging>pom</packaging>\n<dependencies>\n"
        + "\n".join(dependencies)
        + "\n</dependencies></project>\n"
    )
