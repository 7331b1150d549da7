"""Kills a job in the midst of a commit, for the demo: SIGKILL for driver, JVM and workers at once.

The demo has the connector call `in_commit` at its failpoints, by `PYSPARK_KAFKA_FAILPOINTS`, which
is there for tests. At this one it is decided that a micro-batch is committed, in the commit topic,
and the transactions that hold its rows are still open: no reader sees them yet.
"""

import os
import signal
from pathlib import Path

FAILPOINT = "commit.decide.after"


def in_commit(failpoint: str) -> None:
    """Die at the Nth commit, where N is in `DEMO_CRASH_COMMIT`; `DEMO_CRASH_DIRECTORY` counts."""
    if failpoint != FAILPOINT:
        return
    directory = Path(os.environ["DEMO_CRASH_DIRECTORY"])
    (directory / str(os.getpid())).touch()  # each commit is a process of its own
    if len(list(directory.iterdir())) == int(os.environ["DEMO_CRASH_COMMIT"]):
        os.kill(0, signal.SIGKILL)  # every process of the job's group
