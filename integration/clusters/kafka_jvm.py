"""JVM options for Kafka nodes: the JVM's defaults, or options for a fast start.

The options depend on the role of the node, `controller` or `broker`. Invariant: a JVM that cannot
use the CDS archive starts without it.

A broker that runs for one test spends most of its time loading and compiling Kafka's classes. With
the options for a fast start, it compiles less and loads the classes from a CDS archive (application
class-data sharing, JEP 310 and JEP 350). Benchmarks use the JVM's defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

JvmOptions = Callable[[str], Sequence[str]]

DEFAULT_HEAP_MEGABYTES: Final = 1024
"""The heap of a node that `kafka-server-start.sh` starts."""

_QUICK: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


def default_jvm_options(role: str) -> Sequence[str]:  # noqa: ARG001
    """Return no options, so the JVM's defaults apply."""
    return ()


def fast_start_jvm_options(archives: Path) -> JvmOptions:
    """Return options for a fast start, with the CDS archive of the role if the archive exists."""

    def options(role: str) -> Sequence[str]:
        archive = _archive(archives, role)
        return (*_QUICK, f"-XX:SharedArchiveFile={archive}") if archive.exists() else _QUICK

    return options


def class_archiving_jvm_options(into: Path) -> JvmOptions:
    """Return options that make the JVM write a CDS archive to `into` when it stops."""
    return lambda role: (*_QUICK, f"-XX:ArchiveClassesAtExit={_archive(into, role)}")


def _archive(directory: Path, role: str) -> Path:
    return directory / f"{role}.jsa"
