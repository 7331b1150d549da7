"""Blocks a query during a commit, so that the demo can kill it at this point.

`PYSPARK_KAFKA_FAILPOINTS`, an environment variable for tests, makes the connector call `in_commit`
at its failpoints. At the `commit.decide.after` failpoint, the commit topic contains the decision to
commit a micro-batch, but the transactions with its rows are still open. Consumers with
isolation.level=read_committed do not see these rows yet.
"""

import os
import time
from pathlib import Path

FAILPOINT = "commit.decide.after"
COMMIT = 5
DIRECTORY = "DEMO_CRASH_DIRECTORY"


def in_commit(failpoint: str) -> None:
    """Block at the fifth commit until the process is killed."""
    if failpoint != FAILPOINT:
        return
    directory = Path(os.environ[DIRECTORY])
    number = len(list(directory.iterdir())) + 1
    (directory / str(number)).touch()
    parent = os.getppid()
    while number == COMMIT and os.getppid() == parent:
        time.sleep(0.05)
