"""A sample of the differential suite, with all deviations, on the cluster of the run."""

from __future__ import annotations

import os
import subprocess
import sys

import pyspark
import pytest

from integration.clusters.maven import SPARK_KAFKA_CONNECTOR, resolve

SAMPLE_TIMEOUT_S = 900
PYSPARK_VERSION = tuple(int(part) for part in pyspark.__version__.split(".")[:2])


@pytest.mark.spark
@pytest.mark.full
@pytest.mark.timeout(SAMPLE_TIMEOUT_S + 30)
def test_both_connectors_do_what_the_sample_expects(bootstrap: str) -> None:
    if PYSPARK_VERSION < (4, 2):
        pytest.skip("the installed version of Spark's connector requires PySpark 4.2")
    resolve(SPARK_KAFKA_CONNECTOR)
    command = [sys.executable, "-m", "integration.parity", "--sample", "--bootstrap", bootstrap]
    done = subprocess.run(
        command,
        env={"PYSPARK_PYTHON": sys.executable, **os.environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=SAMPLE_TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout
