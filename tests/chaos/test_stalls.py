"""A requested stall affects one process, at one failpoint."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from integration.chaos import stalls


def test_the_first_process_at_the_failpoint_stalls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, slept = tmp_path / "stall", list[float]()
    monkeypatch.setattr(time, "sleep", slept.append)
    for name, value in stalls.environment(file).items():
        monkeypatch.setenv(name, value)
    stalls.stall("commit.decide.after")
    stalls.request(file, "commit.decide.after", 12.5)
    stalls.stall("commit.verify.before")
    assert (file.exists(), slept) == (True, [])
    stalls.stall("commit.decide.after")
    stalls.stall("commit.decide.after")
    assert (file.exists(), slept) == (False, [12.5])
