"""What a reader sees in the end, compared with what went in.

Purpose: exactly once, nothing open, offsets as committed. Invariant: reads as a user would, through
another client than the one under test. What it must not know: what befell the processes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from integration.failpoints.driver import Checkpoint, Work
from integration.failpoints.lanes import Lane


class Wrong(AssertionError):  # noqa: N818
    """The promise is broken; the message says how."""


def check_rows(seen: Iterable[tuple[bytes, int]], written: Iterable[tuple[bytes, int]]) -> None:
    """Each row once. Raises `Wrong` naming the first of those that are not."""
    found, wanted = Counter(seen), Counter(written)
    lost, too_many = wanted - found, found - wanted
    if lost or too_many:
        raise Wrong(f"rows lost: {_few(lost)}; rows too many: {_few(too_many)}")


def check(lane: Lane, x: str, work: Work, starts: Sequence[int]) -> None:
    """Raises `Wrong`, or `NotSettled` where something is still open."""
    lane.await_closed(x)
    check_rows(lane.read(starts), work.all_rows())


def check_offsets(lane: Lane, group_id: str, checkpoint: Checkpoint) -> None:
    """The group is where the last batch ended. Raises `Wrong`."""
    wanted = dict(checkpoint.ends(checkpoint.done - 1))
    found = lane.committed(group_id)
    if found != wanted:
        raise Wrong(f"group {group_id} is at {found}, and the last batch ended at {wanted}")


def _few(rows: Counter[tuple[bytes, int]]) -> str:
    shown = [f"{value.decode()} in partition {p}, {n} x" for (value, p), n in rows.items()]
    return "none" if not shown else f"{len(shown)} ({'; '.join(sorted(shown)[:4])})"
