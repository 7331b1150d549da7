"""The Java artifacts of tests and benchmarks, and their download.

Purpose: the only module with Maven coordinates; `resolve` downloads a set of JARs to `.cache/`,
which Git ignores. Invariant: a directory with its final name is complete (JARs are downloaded next
to it and the directory is renamed), and one process at a time downloads a set. What it must not
know: what the JARs are for, and which registry serves them (the user's Maven settings do).
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
KAFKA_VERSION = "4.3.0"
RESOLVE_TIMEOUT_S = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifacts:
    """A set of JARs; `coordinates` are `group:artifact:version`."""

    name: str
    coordinates: tuple[str, ...]
    transitive: bool


def apache_kafka(version: str = KAFKA_VERSION) -> Artifacts:
    """A broker with its tools, and a logging backend (Kafka's artifacts have none)."""
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


SPARK_KAFKA_CONNECTOR = Artifacts(
    name="spark-sql-kafka-4.2.0",
    # Without dependencies, since Spark's own JARs provide them.
    coordinates=(
        "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
        "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
        "org.apache.commons:commons-pool2:2.12.0",
        "org.apache.kafka:kafka-clients:4.1.0",
    ),
    transitive=False,
)


def resolve(artifacts: Artifacts, *, cache: Path = CACHE) -> list[Path]:
    """Return the JARs of `artifacts`, sorted; download missing ones with Maven.

    Raise `ClusterUnavailableError` if Maven is missing or the download fails.
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
    """Hold a lock file that excludes the other processes of this machine."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch(artifacts: Artifacts, pom: str, directory: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise ClusterUnavailableError(
            f"{artifacts.name} is fetched with Maven, and there is no `mvn`: install Maven 3.8 "
            "or newer, with Java 17 or newer."
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
            f"Maven did not fetch {artifacts.name} within {RESOLVE_TIMEOUT_S} s: check the network "
            "or the mirror in your Maven settings."
        ) from None
    if done.returncode != 0:
        raise ClusterUnavailableError(
            f"Maven could not fetch {artifacts.name} ({_first_error(done.stdout + done.stderr)}): "
            "check the network or the mirror in your Maven settings."
        )


def _first_error(output: str) -> str:
    """Return the first informative line of Maven's output, shortened, without
    colours and markers.
    """
    for line in re.sub(r"\x1b\[[0-9;]*m", "", output).splitlines():
        text = re.sub(r"^\[\w+\]\s*", "", line).strip()
        if text:
            return text[:300]
    return "it gave no reason"


def _pom(artifacts: Artifacts) -> str:
    # Excluded from resolution, since not all dependencies of Spark's connector resolve.
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
