"""The parts of a chaos run that do not need a cluster: schedules, reports, the command line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from integration import reports
from integration.chaos import __main__ as command
from integration.chaos.oracle import Delivery
from integration.chaos.report import render, rows
from integration.chaos.run import Outcome, Setup
from integration.chaos.schedule import FIRST_OF_CLUSTER, FIRST_OF_QUERY, FaultKind, schedule_of

BROKERS = 3


def outcome(*, seed: int = 7, lost: int = 0, is_control: bool = False) -> Outcome:
    return Outcome(
        setup=Setup(seed=seed, backend="kafka", seconds=60, is_control=is_control),
        delivery=Delivery(rows=1000, lost=lost, duplicates=0, blocked=()),
        failure=None,
        faults=12,
        driver_starts=2,
        query_failures=3,
        seconds=90,
        timeline=["   1.00 s  kill -9 of broker 1"],
    )


def test_a_seed_determines_its_schedule() -> None:
    schedules = [schedule_of(seed, seconds=60, brokers=BROKERS) for seed in (1, 1, 2)]
    assert schedules[0] == schedules[1]
    assert schedules[0] != schedules[2]


@pytest.mark.parametrize("seed", range(20))
def test_every_schedule_has_the_required_faults(seed: int) -> None:
    schedule = schedule_of(seed, seconds=60, brokers=BROKERS)
    assert {fault.kind for fault in schedule.of_cluster} >= {*FIRST_OF_CLUSTER}
    assert {fault.kind for fault in schedule.of_query} >= {*FIRST_OF_QUERY}
    for fault in (*schedule.of_cluster, *schedule.of_query):
        assert fault.broker in {None, *range(1, BROKERS + 1)}
        assert (fault.broker is None) == (
            fault.kind in {FaultKind.KILL_WORKER, FaultKind.KILL_WORKERS, FaultKind.KILL_DRIVER}
        )
    lasts_s = sum(fault.pause_s + fault.seconds for fault in schedule.of_cluster)
    assert 60 <= lasts_s <= 75


def test_the_text_of_a_failed_run_has_its_seed_and_timeline() -> None:
    text = command.report(outcome(lost=1))
    assert "1000 rows, 1 lost, 0 duplicates" in text
    assert "1.00 s  kill -9 of broker 1" in text
    assert text.endswith("--seed 7 --backend kafka")
    assert "--seed" not in command.report(outcome())


def test_the_report_has_a_row_per_seed() -> None:
    outcomes = [outcome(seed=9, lost=5), replace(outcome(seed=10), delivery=None)]
    text = render(outcomes)
    assert "| kafka | pyspark_kafka | 9 | 1000 | 12 | 2 | 3 | 5 | 0 | 0 |" in text
    assert (
        "| kafka | pyspark_kafka | 10 | unknown | 12 | 2 | 3 | unknown | unknown | unknown |"
    ) in text
    assert [(row["seed"], row["lost"]) for row in rows(outcomes)] == [(9, 5), (10, None)]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--seed", "abc"), "'abc'"),
        (("--seeds", "5"), "'5'"),
        (("--seeds", "9:3"), "'9:3'"),
        ((), "--seed --seeds"),
        (("--seed", "1", "--seconds", "0"), "'0'"),
        (("--seed", "1", "--seconds", "nan"), "'nan'"),
        (("--seed", "1", "--seconds", "inf"), "'inf'"),
        (("--seed", "1", "--seconds", "a minute"), "'a minute'"),
    ],
)
def test_invalid_arguments_are_rejected(
    arguments: tuple[str, ...], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(arguments)
    assert ended.value.code == 2
    assert error in capsys.readouterr().err


@pytest.mark.parametrize(
    ("lost", "is_control", "status"), [(0, False, 0), (1, False, 1), (1, True, 0)]
)
def test_the_exit_status_is_1_if_a_seed_failed(
    lost: int,
    is_control: bool,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(reports, "DIRECTORY", tmp_path)
    monkeypatch.setattr(
        command, "run", lambda setup: outcome(lost=lost, is_control=setup.is_control)
    )
    arguments = ["--seeds", "1:3", *(["--control"] if is_control else [])]
    assert command.main(arguments) == status
    name = "chaos-reference-processes-control" if is_control else "chaos-reference-processes"
    assert {path.name for path in tmp_path.iterdir()} == {
        f"{name}-seeds-1-to-2.md",
        f"{name}-seeds-1-to-2.json",
    }
