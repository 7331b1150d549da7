"""A gate that blocks a Spark task after its first rows until the test opens the gate.

With a gate, a test can act during a read or a write, however fast it is. The gate is a directory
that the test and the Python workers of the tasks share. Every wait has a deadline.
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
    """A gate that is closed until `open`. Tasks that start later do not wait."""

    directory: Path

    def __post_init__(self) -> None:
        self.directory.mkdir()

    def await_tasks(self, count: int) -> None:
        """Wait until `count` tasks have processed their first rows and are waiting at the gate."""
        eventually(
            lambda: len(list(self.directory.glob("waiting-*"))) >= count, timeout_s=TIMEOUT_S
        )

    def open(self) -> None:
        (self.directory / "open").touch()

    def rows(self) -> ArrowFunction:
        """Return a function for `mapInArrow` that passes batches on and waits after the first."""
        directory = str(self.directory)

        def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for number, batch in enumerate(batches):
                yield batch
                if number == 0:
                    _wait(directory)

        return rows

    def endless_rows(self, *, batch_rows: int = 500) -> ArrowFunction:
        """Return a function for `mapInArrow` that creates rows until the gate opens.

        The input has one number per task. After the gate opens, the function creates the same
        number of rows again. A row consists of the number of its task and its own number, such as
        `2:17`. `made` returns the rows.
        """
        directory = str(self.directory)

        def endless_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            (task,) = [value for batch in batches for value in batch.column(0).to_pylist()]
            deadline_s, made, rows_max = time.monotonic() + TIMEOUT_S, 0, None
            while rows_max is None or made < rows_max:
                assert time.monotonic() < deadline_s, "the test did not open the gate"
                values = [f"{task}:{made + n}".encode() for n in range(batch_rows)]
                yield pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())})
                made += batch_rows
                Path(directory, f"waiting-{task}").touch()
                if rows_max is None and Path(directory, "open").exists():
                    rows_max = 2 * made
                elif rows_max is None:
                    time.sleep(_INTERVAL_S)  # Limit the rate of rows.
            Path(directory, f"made-{task}").write_text(str(made))

        return endless_rows

    def made(self) -> list[bytes]:
        """Return all rows that the tasks of `endless_rows` created."""
        return [
            f"{path.name.removeprefix('made-')}:{n}".encode()
            for path in self.directory.glob("made-*")
            for n in range(int(path.read_text()))
        ]


def _wait(directory: str) -> None:
    from pyspark import TaskContext  # noqa: PLC0415, runs in the worker

    context = TaskContext.get()
    assert context is not None
    Path(directory, f"waiting-{context.partitionId()}").touch()
    deadline_s = time.monotonic() + TIMEOUT_S
    while not Path(directory, "open").exists():
        assert time.monotonic() < deadline_s, "the test did not open the gate"
        time.sleep(_INTERVAL_S)
