"""A failpoint hook that stalls one Python process of the sink when the test requests a stall.

`request` creates a file with the name of a failpoint and a duration. The first process that reaches
the failpoint removes the file and stalls. Invariant: a request stalls exactly one process.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pyspark_kafka.sink.exactly_once import steps

FAILPOINTS: Final = ("task.produce.after", "commit.verify.before", "commit.decide.after")
"""Failpoints at which a transaction can time out: two before the decision, and one after it."""

_FILE: Final = "PYSPARK_KAFKA_TESTS_STALL"


def environment(file: Path) -> Mapping[str, str]:
    """Return the environment variables that enable the failpoint hook in a Spark application.

    `file` is the file that `request` creates.
    """
    return {steps.VARIABLE: f"{__name__}:{stall.__name__}", _FILE: str(file)}


def request(file: Path, failpoint: str, seconds: float) -> None:
    """Request a stall of the next process that reaches the failpoint.

    The process removes `file` when it stalls.
    """
    scratch = file.with_suffix(".part")
    scratch.write_text(f"{failpoint} {seconds}")
    scratch.replace(file)


def stall(failpoint: str) -> None:
    """Stall this process if a stall at this failpoint is requested."""
    file = Path(os.environ[_FILE])
    try:
        wanted, seconds = file.read_text().split()
        if wanted != failpoint:
            return
        file.unlink()
    except FileNotFoundError:
        return  # nothing is requested, or another process has removed the file
    time.sleep(float(seconds))
