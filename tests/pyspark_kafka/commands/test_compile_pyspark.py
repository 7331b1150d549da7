"""Tests of the `compile-pyspark` command."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from pyspark_kafka.__main__ import main


def test_processes_import_modules_from_bytecode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "python" / "lib" / "pyspark.zip"
    archive.parent.mkdir(parents=True)
    with zipfile.ZipFile(archive, "w") as opened:
        opened.writestr("package/__init__.py", "")
        opened.writestr("package/module.py", "ANSWER = 42")
        opened.writestr("package/module.pyc", b"bytecode of another Python version")
        opened.writestr("package/invalid.py", "print 'Python 2'")
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert main(["compile-pyspark"]) == 0
    code = "from package import module; print(module.ANSWER, module.__file__)"
    printed = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(archive)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert printed == ["42", str(archive / "package" / "module.pyc")]
    with zipfile.ZipFile(archive) as opened:
        assert opened.read("package/module.py") == b"ANSWER = 42"
    assert [path.name for path in archive.parent.iterdir()] == ["pyspark.zip"]

    written = archive.stat().st_mtime_ns
    assert main(["compile-pyspark"]) == 0
    assert archive.stat().st_mtime_ns == written, "the archive already contains the bytecode"


def test_a_directory_without_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert main(["compile-pyspark"]) == 1
