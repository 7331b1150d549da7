"""Checkpoints that this connector and Spark's own connector use in turn, also after resets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from integration.clusters.maven import SPARK_KAFKA_CONNECTOR, resolve
from tests.conftest import TopicFactory

JOB = Path(__file__).parent / "jobs" / "continue_checkpoint.py"
SPARKS_OWN, OURS = "kafka", "pyspark_kafka"
PYSPARK_VERSION = tuple(int(part) for part in pyspark.__version__.split(".")[:2])

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.sampled,
    pytest.mark.timeout(300),
]

Row = tuple[int, int, str]  # partition, offset, value


def run_steps(
    steps: list[str], bootstrap: str, topic: str, directory: Path
) -> list[dict[int, list[Row]]]:
    """Run the job with Spark's connector installed. Return the rows of each step by batch."""
    configuration = {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        # Before Spark 4.2, availableNow would otherwise only run the unfinished micro-batch.
        "spark.sql.streaming.triggerAvailableNowWrapper.enabled": "true",
    }
    if SPARKS_OWN in {step.rstrip("!") for step in steps}:
        if PYSPARK_VERSION < (4, 2):
            pytest.skip("the installed version of Spark's connector requires PySpark 4.2")
        jars = resolve(SPARK_KAFKA_CONNECTOR)
        configuration["spark.jars"] = ",".join(map(str, jars))
    (directory / "spark-defaults.conf").write_text(
        "".join(f"{name} {value}\n" for name, value in configuration.items())
    )
    output = directory / "output"
    done = subprocess.run(
        [
            sys.executable,
            str(JOB),
            bootstrap,
            topic,
            str(directory / "checkpoint"),
            str(output),
            *steps,
        ],
        env={
            "PYSPARK_PYTHON": sys.executable,
            **os.environ,
            "SPARK_CONF_DIR": str(directory),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    return [rows_of_step(output / str(number)) for number in range(len(steps))]


def rows_of_step(directory: Path) -> dict[int, list[Row]]:
    batches = {}
    for batch in directory.iterdir() if directory.exists() else ():
        lines = [line for path in batch.glob("*.json") for line in path.read_text().splitlines()]
        rows = map(json.loads, lines)
        batches[int(batch.name)] = sorted(
            (row["partition"], row["offset"], row["value"]) for row in rows
        )
    return batches


def values_of(batches: dict[int, list[Row]]) -> list[int]:
    return sorted(int(value) for rows in batches.values() for _, _, value in rows)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(SPARKS_OWN, OURS, id="begun-by-sparks-own"),
        pytest.param(OURS, SPARKS_OWN, id="begun-by-ours"),
    ],
)
def test_connectors_continue_replay_and_reset_the_same_checkpoint(
    first: str, second: str, bootstrap: str, topic: TopicFactory, tmp_path: Path
) -> None:
    """The checkpoint is continued, replayed and then reset, each time for either connector."""
    name = topic(partitions=2)
    turns = [first, second, first]
    replays = [f"{second}!", f"{first}!"]
    back = ["--shift-by=-2 --execute", first]
    everything = ["--to-earliest --execute", f"--to-latest --topic={name}:1 --execute", second]
    steps = [*turns, *replays, *back, *everything]
    results = run_steps(steps, bootstrap, name, tmp_path)
    for number, batches in enumerate(results[:3]):
        assert values_of(batches) == new_rows(number), steps[number]
    for number in (3, 4):
        last_batch = max(results[number - 1])
        assert results[number].pop(last_batch) == results[number - 1][last_batch], steps[number]
        assert values_of(results[number]) == new_rows(number), steps[number]
    assert values_of(results[6]) == [46, 47, 48, 49, *new_rows(6)]
    in_partition_0 = [*range(0, 50, 2), *new_rows(6)[::2]]
    assert values_of(results[9]) == [*in_partition_0, *new_rows(9)]


def new_rows(step: int) -> list[int]:
    """Return the rows that are written to the topic before a step, alternating the partition."""
    return list(range(step * 10, step * 10 + 10))
