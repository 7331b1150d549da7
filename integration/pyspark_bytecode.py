"""Add bytecode to the archives in which PySpark ships its modules.

    python -m integration.pyspark_bytecode

Each Python process that Spark starts imports PySpark from `pyspark.zip`, which contains only
sources, and compiles them again. With bytecode in the archives of the test environment, starting
such a process takes almost a second less CPU time. Benchmarks use a different environment.
Invariant: an archive is replaced as a whole and keeps its sources.
"""

from __future__ import annotations

import compileall
import tempfile
import warnings
import zipfile
from pathlib import Path
from py_compile import PycInvalidationMode

import pyspark


def archives() -> list[Path]:
    """Return the archives of the installed PySpark."""
    return sorted(Path(pyspark.__file__).parent.glob("python/lib/*.zip"))


def has_bytecode(archive: Path) -> bool:
    with zipfile.ZipFile(archive) as opened:
        return any(name.endswith(".pyc") for name in opened.namelist())


def add_bytecode(archive: Path) -> None:
    """Add the bytecode of this Python version to an archive."""
    with tempfile.TemporaryDirectory(dir=archive.parent) as directory:
        modules, made = Path(directory, "modules"), Path(directory, archive.name)
        with zipfile.ZipFile(archive) as opened:
            opened.extractall(modules)
        compileall.compile_dir(
            modules,
            quiet=2,  # Some modules of PySpark's tests are not valid in all Python versions.
            legacy=True,  # Next to the sources, where imports from an archive expect it.
            stripdir=str(modules),
            prependdir=str(archive),
            invalidation_mode=PycInvalidationMode.UNCHECKED_HASH,
        )
        with zipfile.ZipFile(made, "w") as opened:
            for path in sorted(modules.rglob("*")):
                opened.write(path, path.relative_to(modules))
        made.replace(archive)


if __name__ == "__main__":
    warnings.simplefilter("ignore", SyntaxWarning)
    for each in archives():
        if not has_bytecode(each):
            add_bytecode(each)
