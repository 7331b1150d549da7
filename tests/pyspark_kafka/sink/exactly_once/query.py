"""A streaming query without Spark: its input, its checkpoint, and the runs that share them.

Purpose: the queries of scenarios. Invariant: a run continues from the checkpoint when it starts, as
Spark's does. Must not know: failures.
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
    """A streaming query: its input, and its checkpoint, which all its runs share."""

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
        """Write from the checkpoint to the end of the input."""
        for batch_id in range(self.completed + 1, len(self.input)):
            run.write(batch_id, *self.input[batch_id])
            self.completed = max(self.completed, batch_id)

    def drive_until_killed(self, run: Run, *, place: int) -> bool:
        """Return whether the failpoint was reached."""
        with at(place, kill) as failpoints, suppress(Killed):
            self.drive(run)
        return failpoints.is_done

    def rows(self) -> list[bytes]:
        """All rows that a reader must see in the end."""
        return flat(self.input)

    def committed(self) -> list[bytes]:
        """What a reader sees now."""
        return self.world.committed(self.first.topic)

    def check(self, where: str = "in the end") -> None:
        """Check that a reader sees each row once."""
        found, expected = self.committed(), self.rows()
        assert found == expected, f"{where}: {found} instead of {expected}"
