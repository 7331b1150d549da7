"""`build/reports/benchmarks.json`: the results, one object per ratio.

Purpose: define the file's format, and replace older results of the same cases. Invariant: each pair
of `case` and `peer` is in the file once; an interrupted run keeps the results of the cases that it
has completed. What it must not know: how results are measured or rendered.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Final

from integration import reports

RESULTS: Final = reports.DIRECTORY / "benchmarks.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One ratio. The ratios are None if the comparison failed; `error` is the reason.

    `at_most`: the ratio is ours divided by the peer's, and the target is an upper bound. Otherwise
    it is the peer's divided by ours, and the target is a lower bound. The CPU seconds are medians
    per million rows, of driver, workers and JVM; None if the case has no rows to count.
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
        """Whether the median reaches the target; None without a target."""
        if self.target is None:
            return None
        if self.ratio_median is None:
            return False
        if self.at_most:
            return self.ratio_median <= self.target
        return self.ratio_median >= self.target


def load(path: Path = RESULTS) -> list[Result]:
    """Return the file's results; none without a file. Raise `ValueError` for another format."""
    if not path.exists():
        return []
    known = {field.name for field in fields(Result)}
    results = []
    for row in json.loads(path.read_text()):
        if not isinstance(row, dict) or set(row) != known:
            raise ValueError(f"{path.name} has an unknown format: remove it and run all cases")
        results.append(Result(**row))
    return results


def merge(old: Iterable[Result], new: Sequence[Result], *, order: Sequence[str]) -> list[Result]:
    """Return the results with those of re-run cases replaced, in the order of the cases.

    `order` names all existing cases; results of other cases are dropped.
    """
    replaced = {result.of_case for result in new}
    kept = [result for result in old if result.of_case not in replaced]
    all_known = [result for result in [*kept, *new] if result.of_case in order]
    return sorted(all_known, key=lambda result: order.index(result.of_case))


def incomplete(results: Iterable[Result], *, order: Collection[str]) -> list[str]:
    """Return the cases that have no results, or whose results contain an error."""
    found = {result.of_case for result in results}
    failed = {result.of_case for result in results if result.error is not None}
    return [case for case in order if case not in found or case in failed]


def save(results: Sequence[Result], path: Path = RESULTS) -> None:
    """Write the file, completely or not at all."""
    reports.write_json(path, [asdict(result) for result in results])
