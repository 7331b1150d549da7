"""A failpoint of the exactly-once sink inside a job of its own, and the kill that happens there.

Purpose: a process of the job stands still at a named failpoint, once, until the job is killed as a
whole: driver, JVM and Python processes. Which failpoint it is stands in environment variables, which
Spark hands on to its Python processes. Every wait has a deadline.
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
_MET: Final = "PYSPARK_KAFKA_TESTS_FAILPOINT_MET"


def stand_still(failpoint: str) -> None:
    """Called at every failpoint: at the named one, the first process that comes stays here."""
    if failpoint != os.environ[_NAME]:
        return
    try:
        with Path(os.environ[_MET]).open("x") as file:
            file.write(str(os.getpid()))
    except FileExistsError:
        return
    parent = os.getppid()
    while os.getppid() == parent:  # a process that is not of the job's group ends with its parent
        time.sleep(0.05)
    os._exit(1)


def environment(failpoint: str, met: Path) -> Mapping[str, str]:
    """What makes one process stand still there, and write its number to the file `met`."""
    return {
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        steps.VARIABLE: f"{__name__}:{stand_still.__name__}",
        _NAME: failpoint,
        _MET: str(met),
    }


class Job:
    """`jobs/exactly_once.py`, running."""

    def __init__(self, process: subprocess.Popen[str], met: Path) -> None:
        self.process = process
        self._met = met

    def await_failpoint(self) -> None:
        """Return once a process stands still at the failpoint."""
        eventually(lambda: self._met.exists() or self._has_ended(), timeout_s=TIMEOUT_S)
        assert self._met.exists(), "the job ended before it came to the failpoint"

    def _has_ended(self) -> bool:
        return self.process.poll() is not None

    def kill(self) -> None:
        """SIGKILL driver and JVM at once, with which the others end."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return  # ended by itself


@contextmanager
def exactly_once_job(failpoint: str | None = None, **job: Any) -> Iterator[Job]:
    """The job in a process group of its own, killed at the end if it still runs."""
    with tempfile.TemporaryDirectory() as directory, tempfile.TemporaryFile("w+") as errors:
        met = Path(directory, "met")
        stands_still = {} if failpoint is None else environment(failpoint, met)
        process = subprocess.Popen(
            [sys.executable, str(JOB), json.dumps(job)],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
            env={"PYSPARK_PYTHON": sys.executable, **os.environ, **stands_still},
        )
        running = Job(process, met)
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
    """Copy all that is there; fails the test where the job does."""
    with exactly_once_job(until_end=True, **job) as running:
        assert running.process.wait() == 0, "the query failed"
