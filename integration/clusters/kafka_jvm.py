"""How the JVMs of Kafka's nodes are started: as Kafka does, or to be there soon.

Purpose: the options of a JVM by the role of its node, `controller` or `broker`. Invariant: a JVM that
cannot use what was made ready starts as it would without. What it must not know: how a node is
started.

A broker that lives for a test spends most of its life on loading Kafka's classes and on compiling
them well. So it compiles little, and takes the classes from an archive (Java's application
class-data sharing, JEP 310 and 350). What is measured does without.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

JvmOptions = Callable[[str], Sequence[str]]

_QUICK: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


def lives_long(role: str) -> Sequence[str]:  # noqa: ARG001
    """As Kafka's scripts leave it to Java."""
    return ()


def starts_soon(archives: Path) -> JvmOptions:
    """With the archive of its role, where this directory has one."""

    def options(role: str) -> Sequence[str]:
        archive = _archive(archives, role)
        return (*_QUICK, f"-XX:SharedArchiveFile={archive}") if archive.exists() else _QUICK

    return options


def archives_classes(into: Path) -> JvmOptions:
    """Leaves in this directory, when it is stopped, an archive for those that come later."""
    return lambda role: (*_QUICK, f"-XX:ArchiveClassesAtExit={_archive(into, role)}")


def _archive(directory: Path, role: str) -> Path:
    return directory / f"{role}.jsa"
