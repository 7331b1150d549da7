"""Checkpoints that this connector and Spark's own connector continue in turn, also after resets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from integration.clusters.base import ClusterUnavailableError
from integration.clusters.maven import SPARK_KAFKA_CONNECTOR, resolve
from tests.conftest import TopicFactory

JOB = Path(__file__).parent / "jobs" / "continue_checkpoint.py"
SPARKS_OWN, OURS = "kafka", "pyspark_kafka"
PYSPARK_VERSION = tuple(int(part) for part in pyspark.__version__.split(".")[:2])

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]

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
        try:
            jars = resolve(SPARK_KAFKA_CONNECTOR)
        except ClusterUnavailableError as reason:
            pytest.skip(str(reason))
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
    "steps",
    [
        pytest.param([SPARKS_OWN, OURS, SPARKS_OWN], id="begun-by-sparks-own"),
        pytest.param([OURS, SPARKS_OWN, OURS], id="begun-by-ours", marks=pytest.mark.full),
    ],
)
def test_connectors_that_take_turns_lose_and_repeat_no_row(
    steps: list[str], bootstrap: str, topic: TopicFactory, tmp_path: Path
) -> None:
    batches_by_step = run_steps(steps, bootstrap, topic(partitions=2), tmp_path)
    for number, batches in enumerate(batches_by_step):
        assert values_of(batches) == list(range(number * 10, number * 10 + 10)), steps[number]


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param([SPARKS_OWN, f"{OURS}!"], id="sparks-own-by-ours"),
        pytest.param([OURS, f"{SPARKS_OWN}!"], id="ours-by-sparks-own", marks=pytest.mark.full),
    ],
)
def test_a_replayed_micro_batch_has_the_same_rows(
    steps: list[str], bootstrap: str, topic: TopicFactory, tmp_path: Path
) -> None:
    first, second = run_steps(steps, bootstrap, topic(partitions=2), tmp_path)
    last_batch = max(first)
    assert len(first[last_batch]) == 10
    assert second[last_batch] == first[last_batch]
    del second[last_batch]
    assert values_of(second) == list(range(10, 20))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(SPARKS_OWN, OURS, id="sparks-own"),
        pytest.param(OURS, SPARKS_OWN, id="ours", marks=pytest.mark.full),
    ],
)
def test_a_query_continues_at_the_offsets_to_which_it_was_reset(
    first: str, second: str, bootstrap: str, topic: TopicFactory, tmp_path: Path
) -> None:
    """The connector whose checkpoint was changed accepts the new offsets, and so does the other."""
    name = topic(partitions=2)
    back, forth = "--shift-by=-2 --execute", f"--to-latest --topic={name}:1 --execute"
    everything = "--to-earliest --execute"
    steps = [first, back, first, everything, forth, second]
    _, _, again, _, _, last = map(values_of, run_steps(steps, bootstrap, name, tmp_path))
    assert again == [6, 7, 8, 9, *range(20, 30)]
    assert last == [*range(0, 10, 2), *range(20, 30, 2), *range(50, 60)]
