"""`warm_up` starts the Python processes that the first queries of a session need."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import TopicFactory

JOB = Path(__file__).parent / "jobs" / "first_queries.py"


@pytest.mark.spark
@pytest.mark.full
@pytest.mark.timeout(300)
def test_the_first_queries_after_warm_up_start_no_daemon(
    bootstrap: str, topic: TopicFactory
) -> None:
    done = subprocess.run(
        [sys.executable, str(JOB), bootstrap, topic()],
        env={"PYSPARK_PYTHON": sys.executable, **os.environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["count"] == 20
    assert "pyspark.worker" in result["warm"]
    assert result["started"] == []
