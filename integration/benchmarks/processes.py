"""The CPU time and resident memory of this process and its descendants, from /proc.

Invariant: CPU seconds never decrease when processes end.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection
from pathlib import Path
from typing import Final, Self

_SAMPLE_INTERVAL_S: Final = 0.25
_PROC: Final = Path("/proc")
_CLOCK_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
# Indexes into the fields that follow the name in /proc/PID/stat (see proc(5)). The name may contain
# any character.
_PARENT: Final = 1
_TIMES: Final = slice(11, 13)
_RESIDENT: Final = 21


def descendants(excluded: Collection[int] = (), *, of: int | None = None) -> set[int]:
    """Return the process ids of the descendants of the process `of` (default: this process).

    The processes in `excluded` and their descendants are left out.
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
    """Return the process id of the parent, or None if the process has ended."""
    fields = _stat(pid)
    return None if fields is None else int(fields[_PARENT])


class CpuMeter:
    """Context manager that measures the user and system CPU seconds of this process's descendants.

    Spark stops idle Python workers and does not wait for them, so the operating system discards
    their CPU time. Therefore, the meter polls the descendants several times per second and stores
    the last CPU time of each descendant. The meter ignores this process, the processes in
    `excluded`, and the descendants of excluded processes.
    """

    def __init__(self, excluded: Collection[int] = ()) -> None:
        self._excluded = frozenset(excluded)
        self._ended = threading.Event()
        self._thread = threading.Thread(
            target=self._sample_periodically, name="cpu-meter", daemon=True
        )
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
        """The CPU seconds up to the last sample, or the total after the `with` block."""
        ticks = sum(last - self._first.get(pid, 0) for pid, last in self._last.items())
        return ticks / _CLOCK_TICKS

    def _sample_periodically(self) -> None:
        while not self._ended.wait(_SAMPLE_INTERVAL_S):
            self._last = self._last | self._ticks()

    def _ticks(self) -> dict[int, int]:
        ticks = {}
        for pid in descendants(self._excluded):
            fields = _stat(pid)
            if fields is not None:
                ticks[pid] = sum(map(int, fields[_TIMES]))
        return ticks


def resident_bytes(pid: int) -> int | None:
    """Return the resident memory of a process in bytes, or None if the process has ended."""
    fields = _stat(pid)
    return None if fields is None else int(fields[_RESIDENT]) * _PAGE_BYTES


def command_line(pid: int) -> list[str]:
    """Return the arguments of a process, or an empty list if the process has ended."""
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
