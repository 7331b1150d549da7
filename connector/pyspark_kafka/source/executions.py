"""Detects repeated executions of a plan, and shares values among the tasks of an executor.

Tasks of one Spark query have the same execution id. They agree on a value through a file in the
directory that Spark creates for each executor (`SparkFiles`): the first task writes the file, and
all other tasks read it. In local mode there is only one executor.
"""

from __future__ import annotations

import logging
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Final, TypeVar, cast

from pyspark import SparkFiles, TaskContext

T = TypeVar("T")

log = logging.getLogger(__name__)

_EXECUTION_ID: Final = "spark.sql.execution.id"
"""`SQLExecution.EXECUTION_ID_KEY`. RDD jobs do not have this property."""
_PREFIX: Final = "pyspark_kafka-"
_FILES_MAX: Final = 16
"""The number of executions per plan whose files are retained. Executions can overlap."""
_KNOWN_MAX: Final = 16

_known: Final[dict[str, object]] = {}
"""A cache of the latest values that this process has read or written."""


def later_execution(plan_id: str) -> str | None:
    """Return the id of this execution, or None if it is the first execution of the plan.

    The first execution is the one in which this executor runs the plan for the first time.
    """
    context = TaskContext.get()
    if context is None:
        return None
    current = context.getLocalProperty(_EXECUTION_ID) or f"stage-{context.stageId()}"
    first = _agree(plan_id, lambda: current)
    return None if first == current else current


def agree(plan_id: str, execution: str, propose: Callable[[], T]) -> T:
    """Return the value that the first task of this executor proposed for an execution of a plan.

    `propose` is called if there is no value yet. Errors from `propose` are not caught. If the file
    with the value cannot be written, only the tasks of this Python worker share the value. The
    files of old executions are deleted.
    """
    return _agree(f"{plan_id}-{execution}", propose, old=f"{plan_id}-*")


def _agree(name: str, propose: Callable[[], T], *, old: str = "") -> T:
    if name not in _known:
        value = _read_or_write(Path(SparkFiles.getRootDirectory()), name, propose, old)
        while len(_known) >= _KNOWN_MAX:
            _known.pop(next(iter(_known)))
        _known[name] = value
    return cast("T", _known[name])


def _read_or_write(directory: Path, name: str, propose: Callable[[], object], old: str) -> object:
    path = directory / f"{_PREFIX}{name}"
    if path.exists():
        return _load(path)
    value = propose()
    try:
        # The link is created after the write, so other tasks never read an incomplete file.
        with NamedTemporaryFile(dir=directory) as file:
            file.write(pickle.dumps(value))
            file.flush()
            os.link(file.name, path)
        _delete_all_but_latest([*directory.glob(f"{_PREFIX}{old}")] if old else [])
    except FileExistsError:
        return _load(path)
    except OSError as error:
        log.warning(
            "The tasks of this executor cannot share end offsets. If a DataFrame is read more than "
            "once, the tasks may stop at different end offsets: %s",
            error,
        )
    return value


def _delete_all_but_latest(paths: list[Path]) -> None:
    for path in sorted(paths, key=lambda path: path.stat().st_mtime)[:-_FILES_MAX]:
        path.unlink(missing_ok=True)


def _load(path: Path) -> object:
    value: object = pickle.loads(path.read_bytes())  # noqa: S301 - written by a task of this plan
    return value
