"""Starts the query's Spark driver, follows its output, kills it and restarts it.

Invariant: this module ends only its own child processes and their descendants, by process id. After
`close`, none of them is running.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from integration import spark_jvm
from integration.benchmarks.processes import command_line, descendants
from integration.chaos.job import Job

_MODULES_OF_WORKERS: Final = ("pyspark.daemon", "pyspark.worker")
_LOG_CHARACTERS_MAX: Final = 6_000

Say = Callable[[str], None]


class DriverTimeoutError(AssertionError):
    """The query did not start or finish before a deadline.

    The message contains the end of the driver's log.
    """


class Driver:
    """A context manager for the Spark driver.

    A thread passes events to `say`, one line at a time.
    """

    def __init__(self, job: Job, say: Say) -> None:
        self._job = job
        self._say = say
        self._log = Path(job.directory, "driver.log")
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._done = threading.Event()
        self._failures = 0
        self._starts = 0
        self._is_running = False
        self._progress = threading.Condition()
        self._process: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._run, name="driver", daemon=True)
        self._thread.start()

    @property
    def starts(self) -> int:
        """The number of driver starts."""
        return self._starts

    @property
    def failures(self) -> int:
        """The number of query failures after which the same driver continued."""
        return self._failures

    def is_running(self) -> bool:
        """Return whether the current driver process has reported a micro-batch."""
        return self._is_running

    def await_running(self, timeout_s: float) -> None:
        """Wait until the current driver process has reported a micro-batch.

        Raises `DriverTimeoutError`.
        """
        with self._progress:
            if not self._progress.wait_for(self.is_running, timeout_s):
                raise DriverTimeoutError(
                    f"no micro-batch completed within {timeout_s:g} s:\n{self.log_tail()}"
                )

    def kill(self) -> None:
        """Kill the driver, its JVM and all its Python processes."""
        with self._progress:
            self._is_running = False
        with self._lock:
            if self._process is not None:
                with suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)

    def workers(self) -> list[int]:
        """Return the process ids of Spark's Python daemon and of the workers that it forked."""
        with self._lock:
            process = self._process
        if process is None:
            return []
        return sorted(
            pid
            for pid in descendants(of=process.pid)
            if any(module in command_line(pid) for module in _MODULES_OF_WORKERS)
        )

    def finish(self, timeout_s: float) -> None:
        """Let the query process the rest of the source and end. Raises `DriverTimeoutError`."""
        self._job.stop.touch()
        if not self._done.wait(timeout_s):
            raise DriverTimeoutError(
                f"the query did not process the whole source within {timeout_s:g} "
                f"s:\n{self.log_tail()}"
            )

    def log_tail(self) -> str:
        """Return the last lines that driver processes have written to stderr."""
        return self._log.read_text(errors="replace")[-_LOG_CHARACTERS_MAX:]

    def close(self) -> None:
        self._closed.set()
        self.kill()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.is_set() and not self._done.is_set():
            begun_s = time.monotonic()
            self._run_driver()
            if self._done.is_set() or self._closed.is_set():
                return
            self._say(f"the driver ended after {time.monotonic() - begun_s:.0f} s and is restarted")

    def _run_driver(self) -> None:
        with self._log.open("ab") as log, self._lock:
            if self._closed.is_set():
                return
            self._starts += 1
            process = self._process = subprocess.Popen(
                [sys.executable, "-m", "integration.chaos.job", self._job.to_json()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
                env={
                    "PYSPARK_PYTHON": sys.executable,
                    **spark_jvm.environment(),
                    **os.environ,
                },
            )
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                self._handle(line.rstrip())
        status = process.wait()
        with self._lock:
            self._process = None
        with self._progress:
            self._is_running = False
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # kills remaining processes of the group
        if status == 0:
            self._done.set()

    def _handle(self, line: str) -> None:
        with self._progress:
            if line.startswith("batch "):
                self._is_running = True
                self._progress.notify_all()
                return
            self._failures += line.startswith("failed: ")
        self._say(f"query {line}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
