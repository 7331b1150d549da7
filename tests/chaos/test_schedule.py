"""The parts of a chaos run that need no cluster: schedules, reports, the table."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.chaos import __main__ as command
from integration.chaos import page
from integration.chaos.run import Outcome, Setup
from integration.chaos.schedule import FIRST_OF_CLUSTER, FIRST_OF_QUERY, Kind, schedule_of
from integration.chaos.verdict import Verdict

BROKERS = 3


def outcome(*, seed: int = 7, lost: int = 0, is_control: bool = False) -> Outcome:
    return Outcome(
        setup=Setup(seed=seed, backend="kafka", seconds=60, is_control=is_control),
        verdict=Verdict(rows=1000, lost=lost, duplicates=0, stuck=()),
        failure=None,
        faults=12,
        driver_starts=2,
        query_failures=3,
        seconds=90,
        timeline=["   1.00 s  kill -9 of broker 1"],
    )


def test_a_seed_always_gives_the_same_schedule() -> None:
    schedules = [schedule_of(seed, seconds=60, brokers=BROKERS) for seed in (1, 1, 2)]
    assert schedules[0] == schedules[1]
    assert schedules[0] != schedules[2]


@pytest.mark.parametrize("seed", range(20))
def test_every_schedule_has_what_must_be_in_it(seed: int) -> None:
    schedule = schedule_of(seed, seconds=60, brokers=BROKERS)
    assert {fault.kind for fault in schedule.of_cluster} >= {*FIRST_OF_CLUSTER}
    assert {fault.kind for fault in schedule.of_query} >= {*FIRST_OF_QUERY}
    for fault in (*schedule.of_cluster, *schedule.of_query):
        assert fault.broker in {None, *range(1, BROKERS + 1)}
        assert (fault.broker is None) == (
            fault.kind in {Kind.KILL_WORKER, Kind.KILL_WORKERS, Kind.KILL_DRIVER}
        )
    lasts_s = sum(fault.pause_s + fault.seconds for fault in schedule.of_cluster)
    assert 60 <= lasts_s <= 75


def test_a_failed_run_tells_its_seed_and_its_timeline() -> None:
    told = command.report(outcome(lost=1))
    assert "1000 rows, 1 lost, 0 duplicates" in told
    assert "1.00 s  kill -9 of broker 1" in told
    assert told.endswith("replay with: make chaos SEED=7 BACKEND=kafka")
    assert "replay" not in command.report(outcome())


def test_results_take_the_place_of_those_of_their_seed(tmp_path: Path) -> None:
    path = tmp_path / "chaos.md"
    path.write_text(f"# Chaos\n\nWords.\n\n{page._BEGIN}")
    page.add(path, [page.row(outcome(seed=10)), page.row(outcome(seed=9))])
    page.add(path, [page.row(outcome(seed=9, lost=5)), page.row(outcome(seed=9, is_control=True))])
    text = path.read_text()
    assert text.startswith("# Chaos\n\nWords.\n")
    assert [line.split("|")[2:4] for line in text.splitlines() if line.startswith("| kafka")] == [
        [" Spark's ", " 9 "],
        [" ours ", " 9 "],
        [" ours ", " 10 "],
    ]
    assert "| kafka | ours | 9 | 1000 | 12 | 2 | 3 | 5 | 0 | 0 |" in text


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--seed", "abc"), "'abc' is no seed"),
        (("--seeds", "5"), "'5' names no seeds"),
        (("--seeds", "9:3"), "'9:3' names no seeds"),
        ((), "one of the arguments --seed --seeds is required"),
        (("--seed", "1", "--seconds", "0"), "faults cannot go on for '0'"),
        (("--seed", "1", "--seconds", "nan"), "faults cannot go on for 'nan'"),
        (("--seed", "1", "--seconds", "inf"), "faults cannot go on for 'inf'"),
        (("--seed", "1", "--seconds", "a minute"), "faults cannot go on for 'a minute'"),
    ],
)
def test_what_is_no_seed_is_refused(
    arguments: tuple[str, ...], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(arguments)
    assert ended.value.code == 2
    assert error in capsys.readouterr().err


@pytest.mark.parametrize(
    ("lost", "is_control", "status"), [(0, False, 0), (1, False, 1), (1, True, 0)]
)
def test_the_status_says_whether_a_seed_failed(
    lost: int, is_control: bool, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        command, "run", lambda setup: outcome(lost=lost, is_control=setup.is_control)
    )
    arguments = ["--seeds", "1:3", *(["--control"] if is_control else [])]
    assert command.main(arguments) == status
