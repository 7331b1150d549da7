"""JVM options of Kafka's nodes: Kafka's own, or options for a fast start.

Purpose: the JVM options by role, `controller` or `broker`. Invariant: a JVM that cannot use the
class archive starts without it. What it must not know: how a node is started.

A broker that runs for one test spends most of its time on loading and compiling Kafka's classes. So
it compiles less and loads classes from an archive (Java's application class-data sharing, JEP 310
and 350). Benchmarks use Kafka's own options.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

JvmOptions = Callable[[str], Sequence[str]]

_QUICK: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


def lives_long(role: str) -> Sequence[str]:  # noqa: ARG001
    """Return the options of Kafka's scripts."""
    return ()


def starts_soon(archives: Path) -> JvmOptions:
    """Return options with the class archive of the role, if the directory has one."""

    def options(role: str) -> Sequence[str]:
        archive = _archive(archives, role)
        return (*_QUICK, f"-XX:SharedArchiveFile={archive}") if archive.exists() else _QUICK

    return options


def archives_classes(into: Path) -> JvmOptions:
    """Return options that write a class archive to this directory when the JVM stops."""
    return lambda role: (*_QUICK, f"-XX:ArchiveClassesAtExit={_archive(into, role)}")


def _archive(directory: Path, role: str) -> Path:
    return directory / f"{role}.jsa"
