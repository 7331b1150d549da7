"""The resources of this process and its descendants, from /proc.

Purpose: CPU seconds and resident memory of a process tree. Invariant: CPU seconds never decrease,
whichever processes end. What it must not know: the processes' purpose.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection
from pathlib import Path
from typing import Final, Self

_LOOK_EVERY_S: Final = 0.25
_PROC: Final = Path("/proc")
_CLOCK_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
# Indexes after the name in /proc/PID/stat, since the name may contain anything: proc(5).
_PARENT: Final = 1
_TIMES: Final = slice(11, 13)
_RESIDENT: Final = 21


def descendants(excluded: Collection[int] = (), *, of: int | None = None) -> set[int]:
    """Return the descendants of this process (or `of`), except excluded ones and
    their descendants.
    """
    root = os.getpid() if of is None else of
    parents = {}
    for directory in _PROC.glob("[0-9]*"):
        fields = _stat(int(directory.name))
        if fields is not None:
            parents[int(directory.name)] = int(fields[_PARENT])
    left_out = set(excluded)
    found = {root}
    while more := {p for p, parent in parents.items() if parent in found} - found - left_out:
        found |= more
    return found - {root}


def parent(pid: int) -> int | None:
    """Return the parent process, or None if the process has ended."""
    fields = _stat(pid)
    return None if fields is None else int(fields[_PARENT])


class CpuMeter:
    """Count the user and system CPU seconds of descendants while this context is open.

    Spark's Python workers are not waited for, so their CPU time is lost when they end, and Spark
    ends idle ones: this polls them often and keeps the last value of each. `excluded` processes,
    their descendants and this process are not counted.
    """

    def __init__(self, excluded: Collection[int] = ()) -> None:
        self._excluded = frozenset(excluded)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look_often, name="cpu-meter", daemon=True)
        self._first: dict[int, int] = {}
        self._last: dict[int, int] = {}

    def __enter__(self) -> Self:
        self._first = self._last = self._ticks()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._last = self._last | self._ticks()

    @property
    def seconds(self) -> float:
        """The CPU seconds so far, or in total when the context is closed."""
        ticks = sum(last - self._first.get(pid, 0) for pid, last in self._last.items())
        return ticks / _CLOCK_TICKS

    def _look_often(self) -> None:
        while not self._ended.wait(_LOOK_EVERY_S):
            self._last = self._last | self._ticks()

    def _ticks(self) -> dict[int, int]:
        ticks = {}
        for pid in descendants(self._excluded):
            fields = _stat(pid)
            if fields is not None:
                ticks[pid] = sum(map(int, fields[_TIMES]))
        return ticks


def resident_bytes(pid: int) -> int | None:
    """Return a process's resident memory, or None if it has ended."""
    fields = _stat(pid)
    return None if fields is None else int(fields[_RESIDENT]) * _PAGE_BYTES


def command_line(pid: int) -> list[str]:
    """Return a process's arguments, or none if it has ended."""
    try:
        return (_PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def _stat(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat after the name, or None if the process has ended."""
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
