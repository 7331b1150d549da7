"""The `compile-pyspark` command, which adds bytecode to the archives of PySpark.

    pyspark-kafka compile-pyspark

Each Python process that Spark starts imports PySpark from `pyspark.zip`. This archive contains only
source files, so each process compiles them again. With bytecode in the archive, a process starts in
half the time. Invariant: an archive is replaced atomically. The new archive also contains the
source files, which other Python versions still use.
"""

from __future__ import annotations

import argparse
import compileall
import importlib.util
import os
import shutil
import tempfile
import warnings
import zipfile
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from platform import python_version
from py_compile import PycInvalidationMode

from pyspark_kafka.commands.arguments import DONE, AddParser
from pyspark_kafka.errors import PysparkKafkaError

_EPILOG = """\
Stop all Spark applications that use this PySpark first: a running Python process cannot read
modules from an archive that was replaced. An update of PySpark removes the bytecode.
"""


def add_command(add_parser: AddParser) -> None:
    """Add this command's parser, with a default `run` function that returns the exit code."""
    parser = add_parser(
        "compile-pyspark",
        help="make the Python processes of Spark start in less time",
        description="Adds bytecode for this Python version to the archives in python/lib of Spark "
        "(in SPARK_HOME if it is set, otherwise in the installed PySpark). Spark starts several "
        "Python processes in each session, and without bytecode each of them compiles PySpark.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_run)


def _run(_parsed: argparse.Namespace) -> int:
    for archive in archives():
        if has_bytecode(archive):
            print(f"{archive} already contains bytecode for Python {python_version()}.")
            continue
        try:
            add_bytecode(archive)
        except OSError as error:
            raise PysparkKafkaError(
                f"The archive '{archive}' cannot be replaced: {error.strerror}.",
                advice="Run the command as a user who can write to the directory of the archive.",
            ) from None
        print(f"Added bytecode for Python {python_version()} to {archive}.")
    return DONE


def archives() -> Sequence[Path]:
    """Return the archives from which Spark's Python processes import PySpark and Py4J.

    Raises `PysparkKafkaError` if no archive is found.
    """
    home = os.environ.get("SPARK_HOME")
    spec = PathFinder.find_spec("pyspark")
    if home:
        directory = Path(home)
    elif spec is not None and spec.origin is not None:
        directory = Path(spec.origin).parent
    else:
        raise PysparkKafkaError(
            "PySpark is not installed in this Python environment.",
            advice="Run the command with the Python interpreter that runs PySpark, or set "
            "SPARK_HOME.",
        )
    found = sorted(directory.glob("python/lib/*.zip"))
    if not found:
        raise PysparkKafkaError(
            f"The directory '{directory / 'python' / 'lib'}' contains no PySpark archive.",
            advice="Set SPARK_HOME to the directory in which Spark is installed.",
        )
    return found


def has_bytecode(archive: Path) -> bool:
    """Return whether an archive contains bytecode for this Python version."""
    with zipfile.ZipFile(archive) as opened:
        compiled = [name for name in opened.namelist() if name.endswith(".pyc")]
        return bool(compiled) and all(
            opened.read(name).startswith(importlib.util.MAGIC_NUMBER) for name in compiled
        )


def add_bytecode(archive: Path) -> None:
    """Add bytecode for this Python version to an archive. Raises `OSError`."""
    with tempfile.TemporaryDirectory(dir=archive.parent) as directory:
        modules, made = Path(directory, "modules"), Path(directory, archive.name)
        with zipfile.ZipFile(archive) as opened:
            opened.extractall(modules)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            compileall.compile_dir(
                modules,
                quiet=2,  # Some of PySpark's test modules are not valid in all Python versions.
                force=True,
                legacy=True,  # Imports from an archive require bytecode next to the sources.
                stripdir=str(modules),
                prependdir=str(archive),
                invalidation_mode=PycInvalidationMode.UNCHECKED_HASH,
            )
        with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as opened:
            for path in sorted(modules.rglob("*")):
                opened.write(path, path.relative_to(modules))
        shutil.copymode(archive, made)
        made.replace(archive)
