"""A failpoint hook for Spark's own Python processes: kill one process per failpoint.

Purpose: `kill_once`, for `PYSPARK_KAFKA_FAILPOINTS` of a whole Spark application. Invariant:
exactly one process is killed at each named failpoint. What it must not know: the application.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from pyspark_kafka.sink.exactly_once import steps

_FAILPOINTS: Final = "PYSPARK_KAFKA_TESTS_KILL_AT"
_DIRECTORY: Final = "PYSPARK_KAFKA_TESTS_KILLED"


def environment(failpoints: Collection[str], directory: Path) -> Mapping[str, str]:
    """Return environment variables; the hook creates a file per reached failpoint
    in `directory`.
    """
    return {
        steps.VARIABLE: f"{__name__}:{kill_once.__name__}",
        _FAILPOINTS: ",".join(failpoints),
        _DIRECTORY: str(directory),
    }


def kill_once(failpoint: str) -> None:
    """Kill this process if it is the first at a named failpoint."""
    if failpoint not in os.environ[_FAILPOINTS].split(","):
        return
    try:
        Path(os.environ[_DIRECTORY], failpoint).touch(exist_ok=False)
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)
