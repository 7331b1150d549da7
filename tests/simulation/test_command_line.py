"""The command line of `make sim`: one seed, many seeds and invalid arguments."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from integration.simulation import __main__ as command
from integration.simulation.plan import Plan, plan_of
from integration.simulation.run import Outcome, run


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--seed", "abc"), "'abc'"),
        (("--seeds", "a:b"), "'a:b'"),
        (("--seeds", "5"), "'5'"),
        (("--seeds", "5:"), "'5:'"),
        (("--seeds", "0:0"), "'0:0'"),
        (("--seeds", "9:3"), "'9:3'"),
        (("--seeds", "0:1", "--jobs", "0"), "'0'"),
        (("--seeds", "0:1", "--jobs", "two"), "'two'"),
        ((), "--seed --seeds"),
    ],
)
def test_invalid_arguments_are_rejected(
    arguments: tuple[str, ...], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(arguments)
    assert ended.value.code == 2
    assert error in capsys.readouterr().err


@pytest.mark.slow
def test_a_seed_that_passes_shows_its_trace(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = run(plan_of(0))
    assert command.main(["--seed", "0"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("seed 0: ")
    assert f"{outcome.digest:08x}" in shown
    assert all(line in shown for line in outcome.trace)


def test_a_seed_that_fails_shows_how_to_replay_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(plan: Plan) -> Outcome:
        return Outcome(
            plan=plan,
            violation="the sky falls",
            trace=["  9000 ms  all faults are repaired"],
            digest=0,
            steps=0,
            elapsed_ms=0,
            acknowledged=0,
        )

    monkeypatch.setattr(command, "run", fails)
    assert command.main(["--seed", "5"]) == 1
    shown = capsys.readouterr().out
    assert shown.startswith("seed 5: the sky falls\n")
    assert "make sim SEED=5\n" in shown
    assert shown.endswith("      9000 ms  all faults are repaired\n")


@pytest.mark.slow
def test_many_seeds_run_in_parallel() -> None:
    many = [sys.executable, "-m", "integration.simulation", "--seeds", "0:2", "--jobs", "2"]
    ended = subprocess.run(many, capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert re.search(r"\b2\b", ended.stdout.splitlines()[-1])
