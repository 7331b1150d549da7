"""Tests of agreement between tasks: of one worker, and of several workers of an executor."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark import SparkFiles, TaskContext

from pyspark_kafka.source import executions
from pyspark_kafka.source.executions import agree, later_execution


class Executor:
    """The Python workers of an executor."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def enter_worker(self, execution: str | None, *, stage: int = 0) -> None:
        """Continue as another Python worker in a task of this execution."""
        executions._known.clear()
        context = SimpleNamespace(getLocalProperty=lambda _: execution, stageId=lambda: stage)
        self._monkeypatch.setattr(TaskContext, "_taskContext", context)


@pytest.fixture
def executor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Executor]:
    monkeypatch.setattr(SparkFiles, "_root_directory", str(tmp_path))
    monkeypatch.setattr(SparkFiles, "_is_running_on_worker", True)
    yield Executor(monkeypatch)
    executions._known.clear()


def test_all_workers_distinguish_the_first_execution(executor: Executor) -> None:
    found = []
    for execution in ("7", "7", "9", "7", "9"):
        executor.enter_worker(execution)
        found.append(later_execution("plan"))
    assert found == [None, None, "9", None, "9"]
    assert later_execution("another-plan") is None


def test_the_stages_of_an_rdd_are_executions(executor: Executor) -> None:
    found = []
    for stage in (1, 1, 2):
        executor.enter_worker(None, stage=stage)
        found.append(later_execution("plan"))
    assert found == [None, None, "stage-2"]


def test_the_first_proposal_wins(executor: Executor, tmp_path: Path) -> None:
    def slow_proposal() -> str:
        executor.enter_worker("1")
        assert agree("plan", "2", lambda: "other worker") == "other worker"
        executor.enter_worker("1")
        return "mine"

    executor.enter_worker("1")
    assert agree("plan", "2", slow_proposal) == "other worker"
    assert len([*tmp_path.iterdir()]) == 1, "no temporary file remains"


def test_a_worker_that_cannot_write_agrees_with_itself(executor: Executor, tmp_path: Path) -> None:
    executor.enter_worker("1")
    tmp_path.rmdir()
    assert agree("plan", "2", lambda: 1) == 1
    assert agree("plan", "2", lambda: 2) == 1


def test_files_of_old_executions_are_deleted(executor: Executor, tmp_path: Path) -> None:
    executor.enter_worker("0")
    assert later_execution("plan") is None
    for execution in range(1, 101):
        assert agree("plan", str(execution), partial(int, execution)) == execution
    assert len([*tmp_path.iterdir()]) < 20
    executor.enter_worker("0")
    assert later_execution("plan") is None, "the first execution is still known"
    assert agree("plan", "100", lambda: 0) == 100
