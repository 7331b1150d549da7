"""What this process and its descendants use, from /proc.

Purpose: CPU seconds and resident memory of a tree of processes. Invariant: CPU seconds never go
back, whatever ends meanwhile. What it must not know: what the processes are for.
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
# Of /proc/PID/stat behind the name, which may hold anything: proc(5).
_PARENT: Final = 1
_TIMES: Final = slice(11, 13)
_RESIDENT: Final = 21


def descendants(excluded: Collection[int] = (), *, of: int | None = None) -> set[int]:
    """The processes below this one (or `of`), but for those excluded and what is below them."""
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
    """The process that started it; None where it has gone."""
    fields = _stat(pid)
    return None if fields is None else int(fields[_PARENT])


class CpuMeter:
    """The CPU seconds, user and system, that descendants use while this context is open.

    Nobody waits for Spark's Python workers, so what they used is lost when they end, and Spark
    ends idle ones: they are looked at often, and of one that ends the last look counts.
    `excluded` are not counted, nor what is below them; nor is this process.
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
        """So far, or in all when the context is closed."""
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
    """Memory of a process that is in RAM; None where it has gone."""
    fields = _stat(pid)
    return None if fields is None else int(fields[_RESIDENT]) * _PAGE_BYTES


def command_line(pid: int) -> list[str]:
    """The arguments that a process was started with; none where it has gone."""
    try:
        return (_PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat behind the name, or None where the process has gone."""
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
