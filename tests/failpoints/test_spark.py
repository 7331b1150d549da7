"""The same through Spark itself: its Python processes are killed at failpoints, one after another."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from integration.chaos.driver import Driver
from integration.chaos.feed import Feed
from integration.chaos.job import Job
from integration.chaos.verdict import judge
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
    "abort.tasks.after",
)
"""Of planning, tasks, commit and abort, each before and behind the decision."""

ROWS_PER_SECOND = 100
START_TIMEOUT_S = 400.0


@pytest.mark.timeout(1200)
def test_spark_writes_once_whatever_python_process_is_killed(
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
    told: list[str] = []
    with Driver(job, told.append) as driver:
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
        print(*told, sep="\n")
        assert driver.starts == 1, "Spark's driver lives on"
        assert driver.failures >= 1, "what dies in planning and commit fails the query"
    verdict = judge(processes.bootstrap_servers, source, target, fed=feed.confirmed)
    assert verdict.is_exactly_once, verdict
