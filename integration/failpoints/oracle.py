"""The oracle of the failpoint matrix: compares the rows in the topic with the written rows.

Checks that the topic contains each row once, that no transaction is open, and that the committed
offsets are the end offsets of the last batch. Invariant: the oracle does not use the client under
test.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from integration.failpoints.driver import Checkpoint, Workload
from integration.failpoints.lanes import Lane


class DeliveryError(AssertionError):
    """Rows or offsets violate exactly-once delivery.

    `lost` and `duplicates` contain the lost and the duplicate rows, if any, with their partitions.
    """

    def __init__(
        self,
        what: str,
        *,
        lost: Counter[tuple[bytes, int]] | None = None,
        duplicates: Counter[tuple[bytes, int]] | None = None,
    ) -> None:
        super().__init__(what)
        self.lost = lost or Counter()
        self.duplicates = duplicates or Counter()


def check_rows(seen: Iterable[tuple[bytes, int]], written: Iterable[tuple[bytes, int]]) -> None:
    """Raise `DeliveryError` unless each written row was seen exactly once."""
    found, wanted = Counter(seen), Counter(written)
    lost, duplicates = wanted - found, found - wanted
    if lost or duplicates:
        raise DeliveryError(
            f"rows lost: {_few(lost)}; duplicate rows: {_few(duplicates)}",
            lost=lost,
            duplicates=duplicates,
        )


def check(lane: Lane, sink_id: str, workload: Workload, starts: Sequence[int]) -> None:
    """Check the rows and the transactions.

    Raises `DeliveryError` if they violate exactly-once delivery, and `NotSettledError` if a
    transaction stays open.
    """
    lane.await_closed(sink_id)
    check_rows(lane.read(starts), workload.all_rows())


def check_offsets(lane: Lane, group_id: str, checkpoint: Checkpoint) -> None:
    """Raise `DeliveryError` unless the group's offsets are the end offsets of the last batch."""
    wanted = dict(checkpoint.ends(checkpoint.done - 1))
    found = lane.committed(group_id)
    if found != wanted:
        raise DeliveryError(
            f"group {group_id} has offsets {found}, but the last batch ended at {wanted}"
        )


def _few(rows: Counter[tuple[bytes, int]]) -> str:
    shown = [f"{value.decode()} in partition {p}, {n} x" for (value, p), n in rows.items()]
    return "none" if not shown else f"{len(shown)} ({'; '.join(sorted(shown)[:4])})"
