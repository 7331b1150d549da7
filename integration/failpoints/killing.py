"""A failpoint hook that kills one Python process of a Spark application per failpoint.

In all processes of the application, the environment variable `PYSPARK_KAFKA_FAILPOINTS` selects
`kill_once` as the hook. Invariant: at each configured failpoint, exactly one process is killed.
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
    """Return the environment variables that enable `kill_once` in a Spark application.

    `kill_once` creates a file in `directory` for each configured failpoint that is reached.
    """
    return {
        steps.VARIABLE: f"{__name__}:{kill_once.__name__}",
        _FAILPOINTS: ",".join(failpoints),
        _DIRECTORY: str(directory),
    }


def kill_once(failpoint: str) -> None:
    """Kill this process if it is the first process to reach a configured failpoint."""
    if failpoint not in os.environ[_FAILPOINTS].split(","):
        return
    try:
        Path(os.environ[_DIRECTORY], failpoint).touch(exist_ok=False)
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)
