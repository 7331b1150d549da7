"""Exactly-once writes with several attempts of a task, on a standalone cluster of two hosts."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from integration.benchmarks.processes import command_line, parent
from pyspark_kafka.client.factory import open_transactional_client
from pyspark_kafka.kafka.transactions import TransactionState
from tests.conformance.eventually import eventually
from tests.conftest import TopicFactory
from tests.pyspark_kafka.client.records import options
from tests.spark.failpoint import TIMEOUT_S, Job, environment, exactly_once_job
from tests.spark.numbers import fill, numbers_in
from tests.spark.standalone import standalone
from tests.spark.test_exactly_once_jobs import a_job

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
def reached(tmp_path: Path) -> Path:
    """Return the path of the file to which the task at the failpoint writes its process id."""
    return tmp_path / "reached"


@pytest.fixture
def copying(
    request: pytest.FixtureRequest,
    bootstrap: str,
    topic: TopicFactory,
    tmp_path: Path,
    reached: Path,
) -> Iterator[tuple[str, Start]]:
    """Yield the target topic and a function that starts a copy job with a failpoint."""
    source, target = topic(partitions=2), topic(partitions=2)
    fill(bootstrap, source, ROWS)
    job = a_job(bootstrap, source, target, tmp_path)
    with standalone(tmp_path, environment(request.param, reached)) as master:

        def start(conf: Mapping[str, str]) -> AbstractContextManager[Job]:
            return exactly_once_job(until_end=True, master=master, conf=conf, **job)

        yield target, start


def open_transactions(bootstrap: str, sink_id: str) -> list[str]:
    with open_transactional_client(options(bootstrap, engine="native")) as client:
        return [
            listed.transactional_id
            for listed in client.list_transactions(f"{sink_id}/")
            if listed.state is TransactionState.ONGOING
        ]


@pytest.mark.parametrize("copying", ["task.produce.after"], indirect=True)
def test_a_speculative_attempt_overtakes_a_blocked_one(
    copying: tuple[str, Start], bootstrap: str, reached: Path
) -> None:
    """The first attempt has prepared all its rows and never returns."""
    target, start = copying
    with start(SPECULATION) as running:
        assert running.process.wait(TIMEOUT_S) == 0
    assert reached.exists(), "no attempt was blocked"
    assert numbers_in(bootstrap, target, partitions=2) == [*ROWS]
    assert open_transactions(bootstrap, target) == []


@pytest.mark.parametrize("copying", ["task.produce.after"], indirect=True)
def test_a_task_is_retried_when_its_executor_is_lost(
    copying: tuple[str, Start], bootstrap: str, reached: Path
) -> None:
    target, start = copying
    with start({}) as running:
        eventually(lambda: reached.exists() and bool(reached.read_text()), timeout_s=TIMEOUT_S)
        os.kill(executor_of(int(reached.read_text())), signal.SIGKILL)
        assert running.process.wait(TIMEOUT_S) == 0
    assert numbers_in(bootstrap, target, partitions=2) == [*ROWS]
    assert open_transactions(bootstrap, target) == []


def executor_of(process_id: int) -> int:
    """Return the process id of the executor that started this Python worker."""
    ancestor: int | None = process_id
    while ancestor is not None and not any(EXECUTOR in arg for arg in command_line(ancestor)):
        ancestor = parent(ancestor)
    assert ancestor is not None
    return ancestor
