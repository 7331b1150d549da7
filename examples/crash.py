"""Blocks a query during a commit, so that the demo can kill it there.

`PYSPARK_KAFKA_FAILPOINTS`, a variable for tests, makes the connector call `in_commit` at its
failpoints. At this one the commit topic contains the decision to commit a micro-batch, and the
transactions with its rows are still open: readers with read_committed do not see them yet.
"""

import os
import time
from pathlib import Path

FAILPOINT = "commit.decide.after"
COMMIT = 5
DIRECTORY = "DEMO_CRASH_DIRECTORY"


def in_commit(failpoint: str) -> None:
    """Wait at the fifth commit until the process is killed."""
    if failpoint != FAILPOINT:
        return
    directory = Path(os.environ[DIRECTORY])
    number = len(list(directory.iterdir())) + 1
    (directory / str(number)).touch()
    parent = os.getppid()
    while number == COMMIT and os.getppid() == parent:
        time.sleep(0.05)
