"""A streaming query without Spark: its input, its checkpoint, and the runs that share them.

Purpose: what scenarios are played with. Invariant: a run goes on where the checkpoint stands when
it starts, as Spark's would. What it must not know: what goes wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from tests.pyspark_kafka.sink.exactly_once.play import Killed, Rows, Run, World, at, kill

Input = Sequence[Sequence[Rows]]
"""Of each batch the rows of each partition."""

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
        """From where the checkpoint stands to the end of the input."""
        for batch_id in range(self.completed + 1, len(self.input)):
            run.write(batch_id, *self.input[batch_id])
            self.completed = max(self.completed, batch_id)

    def drive_until_killed(self, run: Run, *, place: int) -> bool:
        """Whether it came to that."""
        with at(place, kill) as failpoints, suppress(Killed):
            self.drive(run)
        return failpoints.is_done

    def rows(self) -> list[bytes]:
        """All that a reader is to see in the end."""
        return flat(self.input)

    def committed(self) -> list[bytes]:
        """What a reader sees now."""
        return self.world.committed(self.first.topic)

    def check(self, where: str = "in the end") -> None:
        """Whether a reader sees each row once."""
        found, wanted = self.committed(), self.rows()
        assert found == wanted, f"{where}: {found} instead of {wanted}"
