"""The memory of a Python worker that reads a partition with many records.

Samples the resident memory of the workers during a read. Reports how much the memory grew and
whether it was still growing at the end. Invariant: when sampling starts, the worker is new but has
already read a few records. Therefore, imports do not count as growth, and memory from an earlier
read does not hide growth.
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
from integration.benchmarks.reads import BatchRead, discard_rows
from integration.benchmarks.resources import Resources
from integration.benchmarks.topics import Contents

GROWTH: Final = "MiB of growth"
"""The largest memory growth of a worker in MiB, from the start of the read to its maximum."""

LATE_OVER_MIDDLE: Final = "late over middle"
"""The maximum resident memory in the last third of the read, relative to the second third."""

_EVERY_S: Final = 0.02
_END_TIMEOUT_S: Final = 10.0
_FEW_RECORDS: Final = 1_000
_WORKER: Final = ("pyspark.daemon", "pyspark/daemon", "pyspark.worker", "pyspark/worker")
_MEBIBYTE: Final = 1024 * 1024

Trace = Sequence[int]
"""Samples of one process's resident memory in bytes, in chronological order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerMemory:
    """A side that reads one partition with our connector."""

    connector: Connector
    contents: Contents

    def run(self, resources: Resources, records: int) -> Sample:
        read = BatchRead(connector=self.connector, contents=self.contents)
        _end_workers()
        topic = resources.topic(self.contents, records)
        few = json.dumps({topic: {"0": min(records, _FEW_RECORDS)}})
        discard_rows(read.rows(resources, records, endingOffsets=few))
        with sampled() as traces:
            read.run(resources, records)
        return memory_of(traces)

    def verify(self, resources: Resources, records: int) -> None:
        BatchRead(connector=self.connector, contents=self.contents).verify(resources, records)


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedLimit:
    """A peer with constant values."""

    sample: Mapping[str, float]

    def run(self, resources: Resources, records: int) -> Sample:  # noqa: ARG002
        return self.sample


@contextmanager
def sampled() -> Iterator[dict[int, list[int]]]:
    """Sample the resident memory of each Python worker, in bytes, until the context exits."""
    traces: dict[int, list[int]] = {}
    ended = threading.Event()

    def sample() -> None:
        workers: set[int] = set()
        looked_s = 0.0
        while not ended.wait(_EVERY_S):
            # Searching for processes costs more than sampling them.
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
    """Return the memory growth of the Python worker whose memory grew the most.

    Raises `ValueError` if no worker has enough samples.
    """
    long = [trace for trace in traces.values() if len(trace) >= 9]
    if not long:
        raise ValueError("no Python worker ran long enough to be sampled: use more records")
    trace = max(long, key=lambda sizes: max(sizes) - sizes[0])
    third = len(trace) // 3
    return {
        # The minimum is one memory page, which avoids a division by zero.
        GROWTH: max((max(trace) - trace[0]) / _MEBIBYTE, 1 / 256),
        LATE_OVER_MIDDLE: max(trace[2 * third :]) / max(trace[third : 2 * third]),
    }


def _workers() -> set[int]:
    """Return the process ids of Spark's Python workers, which are children of its daemon."""
    named = {
        pid
        for pid in descendants()
        if any(name in argument for argument in command_line(pid) for name in _WORKER)
    }
    return {pid for pid in named if parent(pid) in named}


def _end_workers() -> None:
    """Kill idle Python workers. Spark starts new workers for the next task."""
    ended = _workers()
    for pid in ended:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    deadline_s = time.monotonic() + _END_TIMEOUT_S
    while ended & descendants():
        if time.monotonic() > deadline_s:
            raise TimeoutError(
                f"Python workers are still running {_END_TIMEOUT_S:g} s after SIGKILL"
            )
        time.sleep(_EVERY_S)
