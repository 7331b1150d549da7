"""Report the callbacks that blocked the event loop of a broker process for too long.

    python -P integration/benchmarks/loop_stalls.py REPORT node --id 1 ...

Runs `python -m broker_ref` with the remaining arguments. Each callback that blocks the event loop
for longer than `THRESHOLD_MS` becomes one line of JSON in the file REPORT. A separate thread
samples the stack of the event loop. Therefore, each line shows what the callback was doing.

Invariant: this file imports only the standard library and `broker_ref`, because it runs in the
processes of brokers.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final

from broker_ref.__main__ import main

THRESHOLD_MS: Final = 50.0
_SAMPLE_INTERVAL_S: Final = 0.01
_INNERMOST_FRAMES: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """A callback that blocked the event loop.

    `blocked_ms` is the elapsed time, and `cpu_ms` is the CPU time of the thread. The difference is
    the time for which the thread waited for the disk or for a core. `gc_ms` is the elapsed time of
    Python's garbage collector. `stack` is the most frequent stack, with the innermost frame first.
    """

    node: str
    blocked_ms: float
    cpu_ms: float
    gc_ms: float
    stack: tuple[str, ...]

    def text(self) -> str:
        """Return one line with all values."""
        return (
            f"{self.node} was blocked for {self.blocked_ms:.0f} ms (CPU {self.cpu_ms:.0f} ms, "
            f"garbage collection {self.gc_ms:.0f} ms) by {' < '.join(self.stack)}"
        )


def read_stalls(report: Path) -> list[Stall]:
    """Return the stalls in a report, which may not exist yet."""
    if not report.exists():
        return []
    return [
        Stall(**{**values, "stack": tuple(values["stack"])})
        for values in map(json.loads, report.read_text().splitlines())
    ]


class LoopMonitor:
    """Measures the callbacks of all event loops in this thread, and writes the report."""

    def __init__(self, node: str, report: Path) -> None:
        self._node = node
        self._report = report
        self._thread_id = threading.get_ident()
        self._started_s: float | None = None
        self._collection_started_s = 0.0
        self._collection_s = 0.0
        self._stacks: Counter[tuple[str, ...]] = Counter()

    def start(self) -> None:
        """Measure all callbacks from now on."""
        run = asyncio.Handle._run

        def measured(handle: asyncio.Handle) -> None:
            started_s, started_cpu_s = time.perf_counter(), time.thread_time()
            self._started_s = started_s
            self._collection_s = 0.0
            run(handle)
            self._started_s = None
            blocked_ms = 1000 * (time.perf_counter() - started_s)
            if blocked_ms > THRESHOLD_MS:
                self._write(blocked_ms, 1000 * (time.thread_time() - started_cpu_s))

        gc.callbacks.append(self._collecting)
        setattr(asyncio.Handle, run.__name__, measured)
        threading.Thread(target=self._sample_periodically, daemon=True).start()

    def _collecting(self, phase: str, info: dict[str, int]) -> None:
        del info
        if phase == "start":
            self._collection_started_s = time.perf_counter()
        else:
            self._collection_s += time.perf_counter() - self._collection_started_s

    def _write(self, blocked_ms: float, cpu_ms: float) -> None:
        stacks, self._stacks = self._stacks, Counter()
        ((stack, _),) = stacks.most_common(1) or [((), 0)]
        stall = Stall(
            node=self._node,
            blocked_ms=blocked_ms,
            cpu_ms=cpu_ms,
            gc_ms=1000 * self._collection_s,
            stack=stack,
        )
        with self._report.open("a") as report:
            report.write(json.dumps(asdict(stall)) + "\n")

    def _sample_periodically(self) -> None:
        sampled_s = None
        while True:
            time.sleep(_SAMPLE_INTERVAL_S)
            started_s = self._started_s
            if started_s is None:
                continue
            if started_s != sampled_s:
                sampled_s, self._stacks = started_s, Counter()
            frame = sys._current_frames().get(self._thread_id)
            if frame is not None:
                self._stacks[_stack(frame)] += 1


def _stack(frame: FrameType) -> tuple[str, ...]:
    frames: Iterable[tuple[FrameType, int]] = traceback.walk_stack(frame)
    names = [f"{_module(each)}.{each.f_code.co_qualname}" for each, _ in frames]
    return tuple(names[:_INNERMOST_FRAMES])


def _module(frame: FrameType) -> Any:
    return frame.f_globals.get("__name__", "?")


def _run(arguments: Sequence[str]) -> int:
    report, *words = arguments
    node = f"broker {words[words.index('--id') + 1]}" if "--id" in words else words[0]
    LoopMonitor(node, Path(report)).start()
    return main(words)


if __name__ == "__main__":
    sys.exit(_run(sys.argv[1:]))
