"""The tutorial's code blocks run and print the output that the page contains."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.code_blocks import TUTORIAL

_RUN = "import sys; from tests.docs.code_blocks import run; sys.stdout.write(run(sys.stdin.read()))"


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_tutorial_prints_what_it_shows() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _RUN],
        cwd=Path(__file__).parents[2],
        env={"PYSPARK_PYTHON": sys.executable, **os.environ},
        input=TUTORIAL.read_text(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == TUTORIAL.read_text()
