"""Exactly once where Spark runs a task more than once, on a cluster of two hosts."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from integration.benchmarks.processes import command_line, parent
from pyspark_kafka.client.factory import open_transactional
from pyspark_kafka.kafka.transactions import TransactionState
from tests.conformance.eventually import eventually
from tests.conftest import TopicFactory
from tests.pyspark_kafka.client.records import options
from tests.spark.failpoint import TIMEOUT_S, Job, environment, exactly_once_job
from tests.spark.standalone import standalone
from tests.spark.test_exactly_once import a_job, fill, numbers_in

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.full,
    pytest.mark.timeout(600),
]

ROWS = range(200)
EXECUTOR = "CoarseGrainedExecutorBackend"
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.efficiency.enabled": "false",
}

Start = Callable[..., AbstractContextManager[Job]]


@pytest.fixture
def met(tmp_path: Path) -> Path:
    """Where the task that stands still writes its process id."""
    return tmp_path / "met"


@pytest.fixture
def copying(
    request: pytest.FixtureRequest, bootstrap: str, topic: TopicFactory, tmp_path: Path, met: Path
) -> Iterator[tuple[str, Start]]:
    """The target topic, and what starts a copy in which the first task at a failpoint stands still."""
    source, target = topic(partitions=2), topic(partitions=2)
    fill(bootstrap, source, ROWS)
    job = a_job(bootstrap, source, target, tmp_path)
    with standalone(tmp_path, environment(request.param, met)) as master:

        def start(conf: Mapping[str, str]) -> AbstractContextManager[Job]:
            return exactly_once_job(until_end=True, master=master, conf=conf, **job)

        yield target, start


def open_transactions(bootstrap: str, x: str) -> list[str]:
    with open_transactional(options(bootstrap, engine="native")) as client:
        return [
            listed.transactional_id
            for listed in client.list_transactions(f"{x}/")
            if listed.state is TransactionState.ONGOING
        ]


@pytest.mark.parametrize("copying", ["task.produce.after"], indirect=True)
def test_a_speculative_attempt_overtakes_one_that_stands_still(
    copying: tuple[str, Start], bootstrap: str, met: Path
) -> None:
    """All rows of the first one are prepared, and its answer never comes."""
    target, start = copying
    with start(SPECULATION) as running:
        assert running.process.wait(TIMEOUT_S) == 0
    assert met.exists(), "no attempt stood still, so none was overtaken"
    assert numbers_in(bootstrap, target, partitions=2) == [*ROWS]
    assert open_transactions(bootstrap, target) == []


@pytest.mark.parametrize("copying", ["task.produce.after"], indirect=True)
def test_a_task_is_tried_again_when_its_executor_is_lost(
    copying: tuple[str, Start], bootstrap: str, met: Path
) -> None:
    target, start = copying
    with start({}) as running:
        eventually(lambda: met.exists() and bool(met.read_text()), timeout_s=TIMEOUT_S)
        os.kill(executor_of(int(met.read_text())), signal.SIGKILL)
        assert running.process.wait(TIMEOUT_S) == 0
    assert numbers_in(bootstrap, target, partitions=2) == [*ROWS]
    assert open_transactions(bootstrap, target) == []


def executor_of(process_id: int) -> int:
    """The JVM whose Python worker this is."""
    here: int | None = process_id
    while here is not None and not any(EXECUTOR in word for word in command_line(here)):
        here = parent(here)
    assert here is not None
    return here
