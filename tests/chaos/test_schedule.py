"""The parts of a chaos run that do not need a cluster: schedules, reports, the command line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from integration import reports
from integration.chaos import __main__ as command
from integration.chaos.faults import Chaos
from integration.chaos.kinds import (
    KINDS,
    TRANSACTION_TIMEOUT_S,
    kind_of,
    transaction_version_of,
)
from integration.chaos.oracle import Delivery
from integration.chaos.queries import QUERIES
from integration.chaos.report import render, rows
from integration.chaos.run import Outcome, Setup
from integration.chaos.schedule import (
    ENDS_OF_DRIVER,
    FIRST_OF_CLUSTER,
    FIRST_OF_QUERY,
    FaultKind,
    schedule_of,
)

BROKERS = 3


def outcome(*, seed: int = 7, lost: int = 0, is_control: bool = False) -> Outcome:
    return Outcome(
        setup=Setup(seed=seed, backend="kafka", seconds=60, is_control=is_control),
        delivery=Delivery(rows=1000, lost=lost, duplicates=0, blocked=()),
        failure=None,
        faults=12,
        driver_starts=2,
        query_failures=3,
        replaced_drivers=1,
        events={"stage retries": 4},
        errors={"SinkFencedError": 2},
        seconds=90,
        timeline=["   1.00 s  kill -9 of broker 1"],
    )


def test_a_seed_determines_its_schedule() -> None:
    schedules = [schedule_of(seed, seconds=60, brokers=BROKERS) for seed in (1, 1, 2)]
    assert schedules[0] == schedules[1]
    assert schedules[0] != schedules[2]


@pytest.mark.parametrize("seed", range(20))
def test_every_schedule_has_the_required_faults(seed: int) -> None:
    more = (FaultKind.KILL_EXECUTOR, FaultKind.STALL_SINK)
    schedule = schedule_of(seed, seconds=90, brokers=BROKERS, more=more)
    kinds = {fault.kind for fault in schedule.of_query}
    assert {fault.kind for fault in schedule.of_cluster} >= {*FIRST_OF_CLUSTER}
    assert kinds >= {*FIRST_OF_QUERY, *more}
    assert kinds & {*ENDS_OF_DRIVER}
    for fault in (*schedule.of_cluster, *schedule.of_query):
        assert (fault.broker in range(1, BROKERS + 1)) == (fault.kind in Chaos.OF_BROKERS)
        assert (fault.broker is None) == (fault.kind in Chaos.OF_DRIVER)
    lasts_s = sum(fault.pause_s + fault.seconds for fault in schedule.of_cluster)
    assert 90 <= lasts_s <= 105


def test_faults_with_which_transactions_time_out_last_longer_than_the_timeout() -> None:
    faults = KINDS["short-timeouts"].faults
    schedule = schedule_of(1, seconds=300, brokers=BROKERS, more=faults)
    lasting = [fault.seconds for fault in schedule.of_query if fault.kind in faults]
    assert len(lasting) >= len(faults)
    assert min(lasting) > TRANSACTION_TIMEOUT_S


def test_consecutive_seeds_run_all_kinds_with_both_transaction_versions() -> None:
    runs = [(kind_of(seed).name, transaction_version_of(seed)) for seed in range(100, 114)]
    assert set(runs) == {(name, version) for name in KINDS for version in (1, 2)}
    assert {kind_of(seed).name for seed in range(100, 107)} == {*KINDS}
    controls = {kind_of(seed, is_control=True).name for seed in range(100, 105)}
    assert controls == {name for name, kind in KINDS.items() if kind.has_control}


def test_each_kind_has_a_query_and_each_fault_an_injector() -> None:
    assert {kind.query for kind in KINDS.values()} == {*QUERIES}
    assert {*Chaos.OF_BROKERS} | {*Chaos.OF_DRIVER} == {*FaultKind}


def test_the_text_of_a_failed_run_has_its_seed_and_timeline() -> None:
    text = command.report(outcome(lost=1))
    assert "1000 rows, 1 lost, 0 duplicates" in text
    assert "1.00 s  kill -9 of broker 1" in text
    assert "exercised: SinkFencedError 2, stage retries 4" in text
    assert text.endswith("--seed 7 --kind short-timeouts --backend kafka")
    assert "--seed" not in command.report(outcome())


def test_the_report_has_a_row_per_seed() -> None:
    outcomes = [outcome(seed=9, lost=5), replace(outcome(seed=10), delivery=None)]
    text = render(outcomes)
    assert "| kafka | pyspark_kafka | aggregation | 2 | 9 | 1000 | 12 | 2 | 1 | 3 | 5 | 0 |" in text
    assert (
        "| kafka | pyspark_kafka | foreach-batch | 1 | 10 | unknown | 12 | 2 | 1 | 3 | unknown |"
    ) in text
    assert text.endswith("| SinkFencedError 2, stage retries 4 |\n")
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
        (("--seed", "1", "--kind", "join"), "'join'"),
        (("--seed", "1", "--kind", "commit-offsets", "--control"), "commit-offsets"),
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
