"""Which implementation a process gets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pyspark_kafka.records.implementations import KERNEL_IS_BUILT, needs_kernel

PROJECT = Path(__file__).parents[3]
SHOW = "import pyspark_kafka.records as r; print(r.IMPLEMENTATION, r.decode.__module__, r.encode.__module__)"
WITHOUT_KERNEL = "import sys; sys.modules['pyspark_kafka.records._kernel'] = None; "


def run(code: str, asked: str | None) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "PYSPARK_KAFKA_RECORDS"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    if asked is not None:
        environment["PYSPARK_KAFKA_RECORDS"] = asked
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )


PURE = "pure pyspark_kafka.records._pure pyspark_kafka.records._pure_encode\n"
CYTHON = "cython pyspark_kafka.records._kernel pyspark_kafka.records._kernel\n"


def test_unset_takes_the_kernel_if_there_is_one() -> None:
    expected = "cython" if KERNEL_IS_BUILT else "pure"
    assert run(SHOW, None).stdout.split()[0] == expected
    assert run(WITHOUT_KERNEL + SHOW, None).stdout == PURE


def test_pure_is_pure() -> None:
    assert run(SHOW, "pure").stdout == PURE


@needs_kernel
def test_cython_is_the_kernel() -> None:
    assert run(SHOW, "cython").stdout == CYTHON


def test_what_cannot_load_raises() -> None:
    failed = run(WITHOUT_KERNEL + SHOW, "cython")
    assert failed.returncode == 1
    assert "OptionError: PYSPARK_KAFKA_RECORDS=cython: it cannot be loaded" in failed.stderr
    assert "set PYSPARK_KAFKA_RECORDS=pure" in failed.stderr


def test_what_does_not_exist_raises() -> None:
    assert "PYSPARK_KAFKA_RECORDS=fast: choose from cython, pure" in run(SHOW, "fast").stderr


@needs_kernel
@pytest.mark.full  # mypy reads all of the package anew
@pytest.mark.timeout(300)
def test_the_kernel_is_what_its_stub_says() -> None:
    command = [sys.executable, "-m", "mypy.stubtest", "pyspark_kafka.records._kernel"]
    command += ["--mypy-config-file", "pyproject.toml"]
    environment = os.environ | {"MYPYPATH": str(PROJECT / "connector")}
    done = subprocess.run(
        command, cwd=PROJECT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
