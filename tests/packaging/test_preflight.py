"""The preflight check, which prints one line if a requirement is missing."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from integration.preflight import java_problem, python_problem

PROJECT = Path(__file__).parents[2]


def make(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", "--no-print-directory", *arguments],
        cwd=PROJECT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


@pytest.mark.parametrize("version", [(3, 10), (3, 15), (2, 7)])
def test_an_unsupported_python_is_reported_with_advice(version: tuple[int, int]) -> None:
    problem = python_problem(version)
    assert problem is not None
    assert f"{version[0]}.{version[1]}" in problem
    assert "make PYTHON=" in problem


@pytest.mark.parametrize("version", [(3, 11), (3, 12), (3, 13), (3, 14)])
def test_supported_pythons(version: tuple[int, int]) -> None:
    assert python_problem(version) is None


def test_a_missing_java_is_reported_with_advice() -> None:
    problem = java_problem(None)
    assert problem is not None
    assert "'java'" in problem
    assert "PATH" in problem


@pytest.mark.parametrize(
    ("output", "version"),
    [('openjdk version "11.0.2" 2019-01-15', "11"), ('java version "1.8.0_202"', "1")],
)
def test_an_unsupported_java_is_reported_with_advice(output: str, version: str) -> None:
    problem = java_problem(output)
    assert problem is not None
    assert re.search(rf"'java'.*\b{version}\b", problem)


def test_a_java_that_does_not_run_is_reported() -> None:
    problem = java_problem("java: cannot execute binary file")
    assert problem is not None
    assert "'java -version'" in problem


@pytest.mark.parametrize("output", ['openjdk version "17.0.15"', 'openjdk version "21" 2023-09-19'])
def test_supported_javas(output: str) -> None:
    assert java_problem(output) is None


def test_make_reports_a_missing_java_in_one_line(tmp_path: Path) -> None:
    path_of_make = tmp_path / "bin"
    path_of_make.mkdir()
    for tool in ("sh", "make"):
        for directory in os.environ["PATH"].split(os.pathsep):
            if (Path(directory) / tool).exists():
                (path_of_make / tool).symlink_to(Path(directory) / tool)
                break
    done = make("java", f"PYTHON={sys.executable}", PATH=str(path_of_make))
    assert done.returncode != 0
    assert re.search(r"\b17\b.*\b21\b.*'java'", done.stderr.splitlines()[0])


def test_make_reports_a_missing_python_in_one_line(tmp_path: Path) -> None:
    done = make("setup", "PYTHON=python3.99", f"VENV={tmp_path}/venv")
    assert done.returncode != 0
    assert "'python3.99'" in done.stderr.splitlines()[0]


@pytest.mark.slow
def test_make_reports_an_unreachable_package_index_in_one_line(tmp_path: Path) -> None:
    done = make(
        "setup",
        f"PYTHON={sys.executable}",
        f"VENV={tmp_path}/venv",
        PIP_INDEX_URL="http://127.0.0.1:9/simple",
        PIP_RETRIES="0",
        PIP_NO_CACHE_DIR="1",
    )
    assert done.returncode != 0
    lines = [line for line in done.stderr.splitlines() if not line.startswith(("make", "Setting"))]
    assert len(lines) == 1
    assert f"{tmp_path}/venv/setup.log" in lines[0]
    assert not (tmp_path / "venv" / ".ready").exists()
