"""One Spark driver process with its descendants: its JVM, its executors and its Python processes.

Invariant: signals are sent only to the driver and its descendants, by process id. After `wait` has
returned, this module sends no signals.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from integration import spark_jvm
from integration.benchmarks.processes import descendants
from integration.chaos import stalls
from integration.chaos.job import Job
from integration.chaos.schedule import FaultKind

_PROGRAM: Final = "integration.chaos.program"


class DriverProcess:
    """A driver process, which the constructor starts. `status` is None until `wait` returns."""

    def __init__(self, job: Job, number: int, log: Path) -> None:
        self.number = number
        self.status: int | None = None
        self._lock = threading.Lock()
        has_stalls = FaultKind.STALL_SINK in job.kind.faults
        with log.open("ab") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-m", _PROGRAM, job.to_json(), str(number)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                start_new_session=True,
                env={
                    "PYSPARK_PYTHON": sys.executable,
                    **spark_jvm.environment(),
                    **os.environ,
                    **(stalls.environment(job.stall) if has_stalls else {}),
                },
            )

    def lines(self) -> Iterator[str]:
        """Yield the output lines of the process until the process closes its output."""
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                yield line.rstrip()

    def wait(self) -> None:
        """Wait until the driver has exited, and kill the remaining processes of its group."""
        os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        with self._lock:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self.status = self._process.wait()

    def descendants(self) -> set[int]:
        return descendants(of=self._process.pid)

    def stop(self) -> None:
        """Stop (SIGSTOP) the driver and its descendants."""
        with self._lock:
            self._stop()

    def resume(self) -> None:
        """Resume (SIGCONT) the driver and its descendants."""
        with self._lock:
            if self.status is None:
                for pid in {self._process.pid, *self.descendants()}:
                    _send(pid, signal.SIGCONT)

    def kill(self) -> None:
        """Kill the driver and its descendants.

        All of these processes first receive SIGSTOP, so none of them can start another process.
        """
        with self._lock:
            for pid in self._stop():
                _send(pid, signal.SIGKILL)

    def _stop(self) -> set[int]:
        """Stop (SIGSTOP) the driver and its descendants, until no other descendant is found.

        Return the ids of all stopped processes.
        """
        stopped: set[int] = set()
        if self.status is not None:
            return stopped
        while left := {self._process.pid, *self.descendants()} - stopped:
            for pid in left:
                _send(pid, signal.SIGSTOP)
            stopped |= left
        return stopped


def _send(pid: int, signal_number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal_number)
