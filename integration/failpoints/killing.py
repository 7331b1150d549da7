"""Failpoints in Spark's own Python processes: die at some of them, once each.

Purpose: `kill_once`, for `PYSPARK_KAFKA_FAILPOINTS` of a whole Spark application. Invariant: at each
failpoint that is named one process dies, and no more. What it must not know: what runs it.
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
    """What an application is started with. A file for each failpoint that was met is in there."""
    return {
        steps.VARIABLE: f"{__name__}:{kill_once.__name__}",
        _FAILPOINTS: ",".join(failpoints),
        _DIRECTORY: str(directory),
    }


def kill_once(failpoint: str) -> None:
    """SIGKILL of this process, where it is the first at a failpoint that is named."""
    if failpoint not in os.environ[_FAILPOINTS].split(","):
        return
    try:
        Path(os.environ[_DIRECTORY], failpoint).touch(exist_ok=False)
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)
