"""A streaming query without Spark: its input, its checkpoint, and its runs.

The scenarios use these queries. Like a run in Spark, each run continues at the checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from tests.pyspark_kafka.sink.exactly_once.runs import Killed, Rows, Run, World, at, kill

Input = Sequence[Sequence[Rows]]
"""The rows of each partition of each batch."""

INPUT: Input = (
    ([b"a0", b"a1"], [b"b0"]),
    ([b"c0"], []),
    ([], []),
    ([b"d0"], [b"e0", b"e1"]),
)
SHORT: Input = INPUT[:1]
MIDDLE: Input = (([b"a0", b"a1"], [b"b0"]), ([b"c0"], [b"d0"]))


def flat(batches: Iterable[Iterable[Rows]]) -> list[bytes]:
    return sorted(row for partitions in batches for rows in partitions for row in rows)


@dataclass
class Query:
    """A streaming query: its input, and the checkpoint that all its runs share."""

    first: Run
    input: Input = INPUT
    completed: int = -1
    run_count: int = 1

    @classmethod
    def of(cls, world: World, input: Input = INPUT, **changes: object) -> Query:  # noqa: A002
        run = Run(world=world, topic=world.topic(), sink_id=world.name())
        return cls(first=replace(run, **changes), input=input)  # type: ignore[arg-type]

    @property
    def world(self) -> World:
        return self.first.world

    def restarted(self) -> Run:
        self.run_count += 1
        return self.first.successor(f"run-{self.run_count}")

    def drive(self, run: Run) -> None:
        """Write the batches from the checkpoint to the end of the input."""
        for batch_id in range(self.completed + 1, len(self.input)):
            run.write(batch_id, *self.input[batch_id])
            self.completed = max(self.completed, batch_id)

    def drive_until_killed(self, run: Run, *, place: int) -> bool:
        """Run until the process is killed at a failpoint.

        Return whether the run reached that failpoint.
        """
        with at(place, kill) as failpoints, suppress(Killed):
            self.drive(run)
        return failpoints.is_done

    def rows(self) -> list[bytes]:
        """Return all rows that a consumer must read in the end."""
        return flat(self.input)

    def committed(self) -> list[bytes]:
        return self.world.committed(self.first.topic)

    def check(self, where: str = "in the end") -> None:
        found, expected = self.committed(), self.rows()
        assert found == expected, f"{where}: {found} instead of {expected}"
