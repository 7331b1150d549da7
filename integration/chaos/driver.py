"""Starts, kills, stops and replaces the query's Spark driver, and reads its output.

Invariant: this module kills only its own child processes and their descendants, by process id.
After `close`, none of them is running.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from integration.benchmarks.processes import command_line
from integration.chaos.driver_process import DriverProcess
from integration.chaos.job import Job

_MODULES_OF_WORKERS: Final = ("pyspark.daemon", "pyspark.worker")
_CLASS_OF_EXECUTORS: Final = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
_LOG_CHARACTERS_MAX: Final = 6_000

Say = Callable[[str], None]


class DriverTimeoutError(AssertionError):
    """The query did not start or finish in time.

    The message contains the end of the driver's log.
    """


class Driver:
    """A context manager for the Spark driver, which is restarted when it exits.

    Threads pass events to `say`, one line at a time. `failures` counts the query failures,
    including failures of drivers that have been replaced.
    """

    def __init__(self, job: Job, say: Say) -> None:
        self._job = job
        self._say = say
        self._log = Path(job.directory, "driver.log")
        self._changed = threading.Condition()
        self._closed = False
        self._done = False
        self._is_running = False
        self._processes: list[DriverProcess] = []
        self._threads: list[threading.Thread] = []
        self.failure_lines: list[str] = []
        self.replaced = 0
        job.events.mkdir(exist_ok=True)
        with self._changed:
            self._start()

    @property
    def starts(self) -> int:
        """The number of driver starts."""
        return len(self._processes)

    @property
    def failures(self) -> int:
        """The number of query failures."""
        return len(self.failure_lines)

    def is_running(self) -> bool:
        """Return whether the current driver process has reported a micro-batch."""
        return self._is_running

    def await_running(self, timeout_s: float) -> None:
        """Wait until the current driver process has reported a micro-batch.

        Raises `DriverTimeoutError`.
        """
        with self._changed:
            if not self._changed.wait_for(self.is_running, timeout_s):
                raise DriverTimeoutError(
                    f"no micro-batch completed within {timeout_s:g} s:\n{self.log_tail()}"
                )

    def kill(self) -> None:
        """Kill the driver with its JVM, its executors and all its Python processes."""
        with self._changed:
            self._is_running = False
            self._processes[-1].kill()

    def pause(self, seconds: float) -> None:
        """Stop all processes of the driver for this number of seconds."""
        with self._changed:
            self._is_running = False
            process = self._processes[-1]
            process.stop()
        time.sleep(seconds)
        process.resume()

    def replace(self, *, start_timeout_s: float, end_timeout_s: float) -> None:
        """Stop the driver (SIGSTOP), start its successor, and then resume the stopped driver.

        All processes of the driver are stopped. They are resumed when the successor has completed a
        micro-batch. This method returns when the resumed driver has exited. Raises
        `DriverTimeoutError` if the successor completes no micro-batch or the resumed driver does
        not exit. Raises `AssertionError` if the resumed driver succeeds.
        """
        with self._changed:
            self._is_running = False
            old = self._processes[-1]
            old.stop()
            self._start()
        self.await_running(start_timeout_s)
        self._say(f"driver {old.number} is resumed; driver {self.starts} is its successor")
        resumed_s = time.monotonic()
        old.resume()
        with self._changed:
            if not self._changed.wait_for(lambda: old.status is not None, end_timeout_s):
                raise DriverTimeoutError(
                    f"driver {old.number} did not end within {end_timeout_s:g} s after it was "
                    f"resumed:\n{self.log_tail()}"
                )
        assert old.status != 0, f"driver {old.number} succeeded although it has a successor"
        self.replaced += 1
        self._say(
            f"driver {old.number} ended with status {old.status}, "
            f"{time.monotonic() - resumed_s:.1f} s after it was resumed"
        )

    def workers(self) -> list[int]:
        """Return the process ids of Spark's Python daemons and of the workers that they forked."""
        return self._descendants(*_MODULES_OF_WORKERS)

    def executors(self) -> list[int]:
        """Return the process ids of the executors that run outside the driver's JVM."""
        return self._descendants(_CLASS_OF_EXECUTORS)

    def finish(self, timeout_s: float) -> None:
        """Stop the query after it has processed the whole source. Raises `DriverTimeoutError`."""
        self._job.stop.touch()
        with self._changed:
            if not self._changed.wait_for(lambda: self._done, timeout_s):
                raise DriverTimeoutError(
                    f"the query did not process the whole source within {timeout_s:g} "
                    f"s:\n{self.log_tail()}"
                )

    def log_tail(self) -> str:
        """Return the last lines that driver processes have written to stderr."""
        return self._log.read_text(errors="replace")[-_LOG_CHARACTERS_MAX:]

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._is_running = False
            for process in self._processes:
                process.kill()
        for thread in self._threads:
            thread.join()

    def _descendants(self, *names: str) -> list[int]:
        with self._changed:
            found = self._processes[-1].descendants()
        return sorted(pid for pid in found if any(name in command_line(pid) for name in names))

    def _start(self) -> None:
        """Start the next driver process and a thread that reads its output."""
        number = self.starts + 1
        self._job.owner.write_text(str(number))
        process = DriverProcess(self._job, number, self._log)
        thread = threading.Thread(
            target=self._follow, args=(process,), name=f"driver-{number}", daemon=True
        )
        self._processes.append(process)
        self._threads.append(thread)
        thread.start()

    def _follow(self, process: DriverProcess) -> None:
        begun_s = time.monotonic()
        for line in process.lines():
            self._handle(process, line)
        process.wait()
        with self._changed:
            self._changed.notify_all()
            if self._closed or self._is_replaced(process):
                return
            self._is_running = False
            if process.status == 0:
                self._done = True
                return
            self._say(f"the driver ended after {time.monotonic() - begun_s:.0f} s and is restarted")
            self._start()

    def _handle(self, process: DriverProcess, line: str) -> None:
        with self._changed:
            is_replaced = self._is_replaced(process)
            if line.startswith("batch "):
                if not is_replaced:
                    self._is_running = True
                    self._changed.notify_all()
                return
            if line.startswith("failed: "):
                self.failure_lines.append(line)
        self._say(f"query of driver {process.number} {line}" if is_replaced else f"query {line}")

    def _is_replaced(self, process: DriverProcess) -> bool:
        return process is not self._processes[-1]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
