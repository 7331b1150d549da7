"""A program with the interface of `integration.chaos.program`, without Spark.

It completes a micro-batch at once. It ends with status 0 when the stop file exists, and with status
1 when it has a successor, or with status 0 if the directory contains the file `succeeds`.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from integration.chaos.job import Job


def main(text: str, number: str) -> int:
    job = Job.from_json(text)
    sys.stdout.write("batch 0: 1 rows\n")
    sys.stdout.flush()
    while job.owner.read_text() == number:
        if job.stop.exists():
            return 0
        time.sleep(0.02)
    sys.stdout.write("failed: pyspark_kafka.errors.SinkFencedError: another run\n")
    return int(not Path(job.directory, "succeeds").exists())


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
