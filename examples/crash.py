"""Stops a query in the midst of a commit, for the demo, which then kills it.

The demo has the connector call `in_commit` at its failpoints, by `PYSPARK_KAFKA_FAILPOINTS`, which
is there for tests. At this one it is decided that a micro-batch is committed, in the commit topic,
and the transactions that hold its rows are still open: no reader sees them yet.
"""

import os
import time
from pathlib import Path

FAILPOINT = "commit.decide.after"
COMMIT = 5
DIRECTORY = "DEMO_CRASH_DIRECTORY"


def in_commit(failpoint: str) -> None:
    """Stand still at the fifth commit, and never go on."""
    if failpoint != FAILPOINT:
        return
    directory = Path(os.environ[DIRECTORY])
    number = len(list(directory.iterdir())) + 1
    (directory / str(number)).touch()
    parent = os.getppid()
    while number == COMMIT and os.getppid() == parent:
        time.sleep(0.05)
