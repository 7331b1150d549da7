"""The examples run as a user runs them and print the expected output."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_ref import Cluster
from tests.pyspark_kafka.client.records import Record, read_all, write

EXAMPLES = Path(__file__).parents[2] / "examples"
ENVIRONMENT = {"PYSPARK_PYTHON": sys.executable, **os.environ}

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


@pytest.fixture
def bootstrap_servers() -> Iterator[str]:
    with Cluster(configs={"num.partitions": "3"}) as cluster:
        yield cluster.bootstrap_servers


def run(script: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / script), *arguments],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_quickstart_example(bootstrap_servers: str) -> None:
    output = run("quickstart.py", bootstrap_servers)
    assert re.search(r"\|\s*en\|\s*hello\|\s*\d\|\s*\d\|", output)
    assert re.search(r"\|\s*fr\|\s*bonjour\|\s*\d\|\s*\d\|", output)


def test_the_demo_writes_exactly_once_after_a_kill_during_a_commit() -> None:
    output = run("demo.py")
    assert "SIGKILL" in output
    hidden = re.search(r"(\d+)\D*\bread_committed\b\D*(\d+)", output)
    assert hidden is not None
    assert int(hidden[1]) > int(hidden[2])
    assert re.search(r"\b6000\b", output)


def test_exactly_once_example(bootstrap_servers: str, tmp_path: Path) -> None:
    lines = (EXAMPLES / "data" / "Apache_2k.log").read_text().splitlines()
    errors = sum("[error]" in line for line in lines)
    write(bootstrap_servers, "apache-log", [Record(value=line.encode()) for line in lines])
    output = run("exactly_once.py", bootstrap_servers, str(tmp_path / "checkpoint"))
    assert re.search(rf"\b{errors}\b.*\bapache-errors\b", output)
    committed = re.findall(
        r"group apache-errors: apache-log-\d committed (-?\d+), lag (\d+)", output
    )
    assert sum(int(offset) for offset, _ in committed) == 2000
    assert {lag for _, lag in committed} == {"0"}
    first = json.loads(read_all(bootstrap_servers, "apache-errors", partitions=3)[0].value or b"")
    assert re.fullmatch(r"2005-12-0\d \d\d:\d\d:\d\d", first["time"])
