"""A gate inside a Spark task: the task waits at its first rows until the test lets it go on.

Purpose: to be in the middle of a read or a write for certain, however fast both are. The gate is a
directory, which the tasks' Python workers see as the test does. Every wait has a deadline.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from tests.conformance.eventually import eventually

TIMEOUT_S = 120.0
_INTERVAL_S = 0.02

ArrowFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass(frozen=True)
class Gate:
    """Closed until `open`. Tasks that come later go through."""

    directory: Path

    def __post_init__(self) -> None:
        self.directory.mkdir()

    def await_tasks(self, count: int) -> None:
        """Return once so many tasks wait at the gate with their first rows in hand."""
        eventually(
            lambda: len(list(self.directory.glob("waiting-*"))) >= count, timeout_s=TIMEOUT_S
        )

    def open(self) -> None:
        (self.directory / "open").touch()

    def rows(self) -> ArrowFunction:
        """For `mapInArrow`: hands on what comes, and waits behind the first batch."""
        directory = str(self.directory)

        def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for number, batch in enumerate(batches):
                yield batch
                if number == 0:
                    _wait(directory)

        return rows

    def endless_rows(self, *, batch_rows: int = 500) -> ArrowFunction:
        """For `mapInArrow` on one number per task: rows until the gate opens, and as many again.

        Rows are numbered by the task's number and their own, as `2:17`; `made` counts them.
        """
        directory = str(self.directory)

        def endless_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            (task,) = [value for batch in batches for value in batch.column(0).to_pylist()]
            deadline_s, made, enough = time.monotonic() + TIMEOUT_S, 0, None
            while enough is None or made < enough:
                assert time.monotonic() < deadline_s, "nobody opened the gate"
                values = [f"{task}:{made + n}".encode() for n in range(batch_rows)]
                yield pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())})
                made += batch_rows
                Path(directory, f"waiting-{task}").touch()
                if enough is None and Path(directory, "open").exists():
                    enough = 2 * made
                elif enough is None:
                    time.sleep(_INTERVAL_S)  # the pace of a live source
            Path(directory, f"made-{task}").write_text(str(made))

        return endless_rows

    def made(self) -> list[bytes]:
        """All rows that the tasks of `endless_rows` made."""
        return [
            f"{path.name.removeprefix('made-')}:{n}".encode()
            for path in self.directory.glob("made-*")
            for n in range(int(path.read_text()))
        ]


def _wait(directory: str) -> None:
    from pyspark import TaskContext  # noqa: PLC0415, in the worker

    context = TaskContext.get()
    assert context is not None
    Path(directory, f"waiting-{context.partitionId()}").touch()
    deadline_s = time.monotonic() + TIMEOUT_S
    while not Path(directory, "open").exists():
        assert time.monotonic() < deadline_s, "nobody opened the gate"
        time.sleep(_INTERVAL_S)
