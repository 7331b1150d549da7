"""Spark writes each row exactly once while its Python processes are killed at failpoints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from integration.chaos.driver import Driver
from integration.chaos.feed import Feed
from integration.chaos.job import Job
from integration.chaos.oracle import check_delivery
from integration.clusters import Cluster
from integration.failpoints.killing import environment
from tests.conformance.eventually import eventually

pytestmark = [pytest.mark.spark, pytest.mark.slow]

FAILPOINTS = (
    "plan.fence.init_producer_id.after",
    "plan.sweep.before",
    "task.init.init_producer_id.after",
    "task.produce.flush.before",
    "task.produce.after",
    "commit.decide.end_transactions.before",
    "commit.decide.after",
    "commit.roll_forward.after",
    "abort.sweep.before",
)
"""Failpoints of planning, tasks, commit and abort, before and after the decision."""

ROWS_PER_SECOND = 100
START_TIMEOUT_S = 400.0


@pytest.mark.timeout(1200)
def test_spark_writes_each_row_once_when_python_processes_are_killed(
    processes: Cluster,
    unique_name: Callable[[], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, target, killed = unique_name(), unique_name(), tmp_path / "killed"
    killed.mkdir()
    for topic in (source, target):
        processes.create_topic(topic, partitions=2)
    job = Job(
        bootstrap_servers=processes.bootstrap_servers,
        source=source,
        target=target,
        directory=str(tmp_path),
        format="pyspark_kafka",
        sink_options={"transactionalId": "killed"},
    )
    for name, value in environment(FAILPOINTS, killed).items():
        monkeypatch.setenv(name, value)
    lines: list[str] = []
    with Driver(job, lines.append) as driver:
        feed = Feed(
            processes.bootstrap_servers,
            source,
            records_per_second=ROWS_PER_SECOND,
            is_read=lambda: True,
        )
        try:
            eventually(
                lambda: {path.name for path in killed.iterdir()} == {*FAILPOINTS},
                timeout_s=START_TIMEOUT_S,
            )
        finally:
            feed.stop()
        driver.finish(START_TIMEOUT_S)
        print(*lines, sep="\n")
        assert driver.starts == 1, "Spark's driver was restarted"
        assert driver.failures >= 1, "a kill during planning or commit did not fail the query"
    oracle = check_delivery(processes.bootstrap_servers, source, target, fed=feed.acknowledged)
    assert oracle.is_exactly_once, oracle
