"""The data source through Spark Connect, which requires explicit registration."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import TopicFactory

JOB = Path(__file__).parent / "jobs" / "connect_session.py"


@pytest.mark.spark
@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_connect_session_writes_reads_and_streams(
    bootstrap: str, topic: TopicFactory, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, str(JOB), bootstrap, topic(partitions=2), str(tmp_path)],
        # SPARK_TESTING makes the Connect server use a free port instead of port 15002.
        env={"PYSPARK_PYTHON": sys.executable, **os.environ, "SPARK_TESTING": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=220,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert "connect" in result["session"]
    assert sorted(result["read"]) == list(range(20))
    assert sorted(result["streamed"]) == list(range(20))
    (metrics,) = result["metrics"]
    assert (metrics["rowsRead"], metrics["bytesRead"]) == (20, 50)
    assert metrics["rowsWritten"] is None, "file sinks report no rows"
    assert metrics["maxOffsetsBehindLatest"] == 0
