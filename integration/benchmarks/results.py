"""`build/bench/results.json`: what was found, one object for each ratio.

Purpose: the file's form, and how the results of some cases take the place of older ones. Invariant:
a `case` and `peer` stand once; a run that ends early leaves what it has found. What it must not
know: how anything is measured, how it is shown.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Final

RESULTS: Final = Path(__file__).resolve().parents[2] / "build" / "bench" / "results.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One ratio. Where `error` says why there is none, the ratios are None.

    `at_most`: the ratio is ours over the peer's, and the target an upper bound; else it is the
    peer's over ours, and a lower one. The CPU seconds are medians for a million rows, of driver,
    workers and JVM; None where the case has no rows to count.
    """

    case: str
    peer: str
    ratio_median: float | None
    ratio_min: float | None
    ratio_max: float | None
    target: float | None
    at_most: bool
    quantity: str
    of_case: str
    title: str
    rounds: int
    records: int
    engine: str
    cpu_seconds: float | None = None
    peer_cpu_seconds: float | None = None
    error: str | None = None

    @property
    def is_met(self) -> bool | None:
        """Whether the median reaches the target; None where there is none to reach."""
        if self.target is None:
            return None
        if self.ratio_median is None:
            return False
        if self.at_most:
            return self.ratio_median <= self.target
        return self.ratio_median >= self.target


def load(path: Path = RESULTS) -> list[Result]:
    """What is there; nothing where there is no file. Raises `ValueError` for another form."""
    if not path.exists():
        return []
    known = {field.name for field in fields(Result)}
    results = []
    for row in json.loads(path.read_text()):
        if not isinstance(row, dict) or set(row) != known:
            raise ValueError(f"{path.name} is of another version: remove it and run all cases")
        results.append(Result(**row))
    return results


def merge(old: Iterable[Result], new: Sequence[Result], *, order: Sequence[str]) -> list[Result]:
    """The new ones instead of all older ones of their cases, in the order of the table.

    `order` names the cases that there are; results of others are dropped.
    """
    replaced = {result.of_case for result in new}
    kept = [result for result in old if result.of_case not in replaced]
    all_known = [result for result in [*kept, *new] if result.of_case in order]
    return sorted(all_known, key=lambda result: order.index(result.of_case))


def incomplete(results: Iterable[Result], *, order: Collection[str]) -> list[str]:
    """The cases that have no results, or an error among them."""
    found = {result.of_case for result in results}
    failed = {result.of_case for result in results if result.error is not None}
    return [case for case in order if case not in found or case in failed]


def save(results: Sequence[Result], path: Path = RESULTS) -> None:
    """Write the file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(".part")
    scratch.write_text(json.dumps([asdict(result) for result in results], indent=2) + "\n")
    scratch.replace(path)
