"""Tests that failpoints are called at their steps, and cost nothing without a hook."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pyspark_kafka.sink.exactly_once.steps import VARIABLE, Step, reach, request, step

met: list[str] = []


def meet(failpoint: str) -> None:
    """Record a failpoint; the environment variable names this function."""
    met.append(failpoint)


def fail(failpoint: str) -> None:
    """Record a failpoint, and fail after a request."""
    met.append(failpoint)
    if failpoint.endswith("list_offsets.after"):
        raise ValueError(failpoint)


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    met.clear()
    yield
    met.clear()


def test_no_failpoints_without_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with step(Step.PLAN_READ), request("list_offsets"):
        reach("anything")
    assert met == []


def test_request_failpoint_has_the_name_of_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, f"{__name__}:meet")
    with step(Step.PLAN_READ):
        with request("list_offsets"):
            pass
        with step(Step.PLAN_MARK), request("produce"):
            pass
        with request("read_log"):
            pass
    with request("outside"):
        pass
    assert met == [
        "plan.read.before",
        "plan.read.list_offsets.before",
        "plan.read.list_offsets.after",
        "plan.mark.before",
        "plan.mark.produce.before",
        "plan.mark.produce.after",
        "plan.mark.after",
        "plan.read.read_log.before",
        "plan.read.read_log.after",
        "plan.read.after",
    ]


def test_failed_step_has_no_after_failpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, f"{__name__}:fail")
    with (
        pytest.raises(ValueError, match=r"^plan\.read\.list_offsets\.after$"),
        step(Step.PLAN_READ),
        request("list_offsets"),
    ):
        pass
    assert met[-1] == "plan.read.list_offsets.after"
    with step(Step.PLAN_MARK), request("produce"):
        pass
    assert met[-4:] == [
        "plan.mark.before",
        "plan.mark.produce.before",
        "plan.mark.produce.after",
        "plan.mark.after",
    ]


def test_step_names_are_unique() -> None:
    titles = [each.title for each in Step]
    assert len(set(titles)) == len(titles)
    assert {each.number for each in Step} == set(range(1, 13)) - {4}
