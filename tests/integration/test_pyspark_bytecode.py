"""Tests of bytecode in archives of modules."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

from integration.pyspark_bytecode import add_bytecode, has_bytecode


def test_modules_are_imported_from_bytecode(tmp_path: Path) -> None:
    archive = tmp_path / "modules.zip"
    with zipfile.ZipFile(archive, "w") as opened:
        opened.writestr("package/__init__.py", "")
        opened.writestr("package/module.py", "ANSWER = 42")
        opened.writestr("package/invalid.py", "print 'Python 2'")
    assert not has_bytecode(archive)
    add_bytecode(archive)
    assert has_bytecode(archive)
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
    assert [path.name for path in tmp_path.iterdir()] == ["modules.zip"]
