"""Tests of the choice of an implementation in a process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pyspark_kafka.records.implementations import KERNEL_IS_BUILT, needs_kernel

PROJECT = Path(__file__).parents[3]
SHOW = (
    "import pyspark_kafka.records as r; "
    "print(r.IMPLEMENTATION, r.decode.__module__, r.encode.__module__)"
)
WITHOUT_KERNEL = "import sys; sys.modules['pyspark_kafka.records._kernel'] = None; "


def run(code: str, selected: str | None) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "PYSPARK_KAFKA_RECORDS"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    if selected is not None:
        environment["PYSPARK_KAFKA_RECORDS"] = selected
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )


PURE = "pure pyspark_kafka.records._pure pyspark_kafka.records._pure_encode\n"
CYTHON = "cython pyspark_kafka.records._kernel pyspark_kafka.records._kernel\n"


def test_default_is_the_kernel_if_it_is_built() -> None:
    expected = "cython" if KERNEL_IS_BUILT else "pure"
    assert run(SHOW, None).stdout.split()[0] == expected
    assert run(WITHOUT_KERNEL + SHOW, None).stdout == PURE


def test_pure_selects_the_implementation_in_python() -> None:
    assert run(SHOW, "pure").stdout == PURE


@needs_kernel
def test_cython_selects_the_kernel() -> None:
    assert run(SHOW, "cython").stdout == CYTHON


def test_an_implementation_that_cannot_be_loaded_raises() -> None:
    failed = run(WITHOUT_KERNEL + SHOW, "cython")
    assert failed.returncode == 1
    assert "OptionError" in failed.stderr
    assert "PYSPARK_KAFKA_RECORDS" in failed.stderr
    assert "'pure'" in failed.stderr


def test_an_unknown_implementation_raises() -> None:
    failed = run(SHOW, "fast")
    assert failed.returncode == 1
    assert "PYSPARK_KAFKA_RECORDS" in failed.stderr
    assert "cython, pure" in failed.stderr


@needs_kernel
@pytest.mark.full  # mypy checks the whole package
@pytest.mark.timeout(300)
def test_the_kernel_matches_its_stub() -> None:
    command = [sys.executable, "-m", "mypy.stubtest", "pyspark_kafka.records._kernel"]
    command += ["--mypy-config-file", "pyproject.toml"]
    environment = os.environ | {"MYPYPATH": str(PROJECT / "connector")}
    done = subprocess.run(
        command, cwd=PROJECT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
