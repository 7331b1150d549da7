"""Jobs with the exactly-once sink that tests kill at a failpoint.

One process of the job waits at a named failpoint until the test kills the whole job: driver, JVM
and Python processes. Environment variables contain the failpoint, and Spark passes them to its
Python processes. Every wait has a deadline.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from pyspark_kafka.sink.exactly_once import steps
from tests.conformance.eventually import eventually

ROOT: Final = Path(__file__).parents[2]
JOB: Final = Path(__file__).parent / "jobs" / "exactly_once.py"
TIMEOUT_S: Final = 300
_NAME: Final = "PYSPARK_KAFKA_TESTS_FAILPOINT"
_REACHED: Final = "PYSPARK_KAFKA_TESTS_FAILPOINT_REACHED"


def wait_at(failpoint: str) -> None:
    """Wait if this is the failpoint of the test and no other process has reached it."""
    if failpoint != os.environ[_NAME]:
        return
    try:
        with Path(os.environ[_REACHED]).open("x") as file:
            file.write(str(os.getpid()))
    except FileExistsError:
        return
    parent = os.getppid()
    while os.getppid() == parent:  # End with the parent, which may be in another process group.
        time.sleep(0.05)
    os._exit(1)


def environment(failpoint: str, reached: Path) -> Mapping[str, str]:
    """Return environment variables that make one process wait at `failpoint`.

    The process writes its process id to `reached`.
    """
    return {
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        steps.VARIABLE: f"{__name__}:{wait_at.__name__}",
        _NAME: failpoint,
        _REACHED: str(reached),
    }


class Job:
    """A running `jobs/exactly_once.py`."""

    def __init__(self, process: subprocess.Popen[str], reached: Path) -> None:
        self.process = process
        self._reached = reached

    def await_failpoint(self) -> None:
        """Wait until a process waits at the failpoint."""
        eventually(lambda: self._reached.exists() or self._has_ended(), timeout_s=TIMEOUT_S)
        assert self._reached.exists(), "the job ended before the failpoint"

    def _has_ended(self) -> bool:
        return self.process.poll() is not None

    def kill(self) -> None:
        """Kill the driver and the JVM with SIGKILL. The other processes end with them."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return  # The job has ended.


@contextmanager
def exactly_once_job(failpoint: str | None = None, **job: Any) -> Iterator[Job]:
    """Run the job in its own process group, and kill it when the context closes."""
    with tempfile.TemporaryDirectory() as directory, tempfile.TemporaryFile("w+") as errors:
        reached = Path(directory, "reached")
        variables = {} if failpoint is None else environment(failpoint, reached)
        process = subprocess.Popen(
            [sys.executable, str(JOB), json.dumps(job)],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
            env={"PYSPARK_PYTHON": sys.executable, **os.environ, **variables},
        )
        running = Job(process, reached)
        watchdog = threading.Timer(TIMEOUT_S, running.kill)
        watchdog.start()
        try:
            yield running
        finally:
            watchdog.cancel()
            running.kill()
            process.communicate()
            if process.returncode not in (0, -signal.SIGKILL):
                errors.seek(0)
                print(errors.read()[-20_000:])


def run_to_end(**job: Any) -> None:
    """Copy all available records. Fail the test if the job fails."""
    with exactly_once_job(until_end=True, **job) as running:
        assert running.process.wait() == 0, "the query failed"
