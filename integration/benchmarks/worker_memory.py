"""The memory of the Python worker that reads a long partition.

Purpose: sample the workers' resident memory while one reads, and say by how much it grew and
whether it went on growing. Invariant: the worker is new and has read a few records before, so that
neither what it imports counts as growth nor what it kept of a read before hides any. What it must
not know: how a partition is read.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from integration.benchmarks.connectors import Connector
from integration.benchmarks.measure import Sample
from integration.benchmarks.processes import (
    command_line,
    descendants,
    parent,
    resident_bytes,
)
from integration.benchmarks.reads import BatchRead, to_nowhere
from integration.benchmarks.resources import Resources
from integration.benchmarks.topics import Contents

GROWTH: Final = "MiB of growth"
"""Of the worker that grew most, from the start of the read to its highest."""

LATE_OVER_MIDDLE: Final = "late over middle"
"""The highest resident memory in the last third of the read, over that in the second third."""

_EVERY_S: Final = 0.02
_END_TIMEOUT_S: Final = 10.0
_FEW_RECORDS: Final = 1_000
_WORKER: Final = ("pyspark.daemon", "pyspark/daemon", "pyspark.worker", "pyspark/worker")
_MEBIBYTE: Final = 1024 * 1024

Trace = Sequence[int]
"""Resident bytes of one process, in the order of time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerMemory:
    """A connector of ours reads one partition."""

    connector: Connector
    contents: Contents

    def run(self, resources: Resources, records: int) -> Sample:
        read = BatchRead(connector=self.connector, contents=self.contents)
        _end_workers()
        topic = resources.topic(self.contents, records)
        few = json.dumps({topic: {"0": min(records, _FEW_RECORDS)}})
        to_nowhere(read.rows(resources, records, endingOffsets=few))
        with sampled() as traces:
            read.run(resources, records)
        return memory_of(traces)

    def prove(self, resources: Resources, records: int) -> None:
        BatchRead(connector=self.connector, contents=self.contents).prove(resources, records)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A peer that is a number."""

    sample: Mapping[str, float]

    def run(self, resources: Resources, records: int) -> Sample:  # noqa: ARG002
        return self.sample


@contextmanager
def sampled() -> Iterator[dict[int, list[int]]]:
    """Resident bytes by process of Python workers, complete when the context ends."""
    traces: dict[int, list[int]] = {}
    ended = threading.Event()

    def sample() -> None:
        workers: set[int] = set()
        looked_s = 0.0
        while not ended.wait(_EVERY_S):
            # To look for processes costs more than to look at them.
            if time.monotonic() - looked_s > 10 * _EVERY_S:
                workers, looked_s = _workers(), time.monotonic()
            for pid in workers:
                size = resident_bytes(pid)
                if size is not None:
                    traces.setdefault(pid, []).append(size)

    for pid in _workers():
        size = resident_bytes(pid)
        if size is not None:
            traces[pid] = [size]
    thread = threading.Thread(target=sample, name="worker-memory", daemon=True)
    thread.start()
    try:
        yield traces
    finally:
        ended.set()
        thread.join()


def memory_of(traces: Mapping[int, Trace]) -> Sample:
    """What the worker that grew most did. Raises `ValueError` where none was seen for long."""
    long = [trace for trace in traces.values() if len(trace) >= 9]
    if not long:
        raise ValueError("no Python worker was seen for long enough: use more records")
    trace = max(long, key=lambda sizes: max(sizes) - sizes[0])
    third = len(trace) // 3
    return {
        # Not to divide nothing by nothing: a page is the least.
        GROWTH: max((max(trace) - trace[0]) / _MEBIBYTE, 1 / 256),
        LATE_OVER_MIDDLE: max(trace[2 * third :]) / max(trace[third : 2 * third]),
    }


def _workers() -> set[int]:
    """Python workers of Spark: what its daemon has forked, not the daemon."""
    named = {
        pid
        for pid in descendants()
        if any(name in argument for argument in command_line(pid) for name in _WORKER)
    }
    return {pid for pid in named if parent(pid) in named}


def _end_workers() -> None:
    """Make Spark start new workers; it finds out by itself that idle ones have gone."""
    ended = _workers()
    for pid in ended:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    deadline_s = time.monotonic() + _END_TIMEOUT_S
    while ended & descendants():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"Python workers were there {_END_TIMEOUT_S:g} s after SIGKILL")
        time.sleep(_EVERY_S)
