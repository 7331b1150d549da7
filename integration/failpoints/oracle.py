"""The oracle of the failpoint matrix: compares what a reader sees with what was written.

Purpose: check that each row is there once, that no transaction is open, and that offsets are those
of the last batch. Invariant: it reads through another client than the one under test. What it must
not know: which faults were injected.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from integration.failpoints.driver import Checkpoint, Workload
from integration.failpoints.lanes import Lane


class DeliveryError(AssertionError):
    """Rows or offsets are not as exactly-once delivery requires."""


def check_rows(seen: Iterable[tuple[bytes, int]], written: Iterable[tuple[bytes, int]]) -> None:
    """Raise `DeliveryError` unless each row is there once."""
    found, wanted = Counter(seen), Counter(written)
    lost, duplicates = wanted - found, found - wanted
    if lost or duplicates:
        raise DeliveryError(f"rows lost: {_few(lost)}; duplicate rows: {_few(duplicates)}")


def check(lane: Lane, sink_id: str, workload: Workload, starts: Sequence[int]) -> None:
    """Check rows and transactions. Raise `DeliveryError`, or `NotSettledError` for an open
    transaction.
    """
    lane.await_closed(sink_id)
    check_rows(lane.read(starts), workload.all_rows())


def check_offsets(lane: Lane, group_id: str, checkpoint: Checkpoint) -> None:
    """Raise `DeliveryError` unless the group's offsets are the end of the last batch."""
    wanted = dict(checkpoint.ends(checkpoint.done - 1))
    found = lane.committed(group_id)
    if found != wanted:
        raise DeliveryError(
            f"group {group_id} has offsets {found}, and the last batch ended at {wanted}"
        )


def _few(rows: Counter[tuple[bytes, int]]) -> str:
    shown = [f"{value.decode()} in partition {p}, {n} x" for (value, p), n in rows.items()]
    return "none" if not shown else f"{len(shown)} ({'; '.join(sorted(shown)[:4])})"
