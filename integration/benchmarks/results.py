"""The benchmark results in `build/reports/benchmarks.json`, with one JSON object per comparison.

Defines the format of the file and replaces older results of the same cases. Invariant: the file
contains each pair of `case` and `peer` at most once, and an interrupted run keeps the results of
its completed cases.
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
    """The result of one comparison of our implementation with a peer.

    If the comparison failed, the ratios are None and `error` is the reason. With `at_most`, the
    ratio is our value divided by the peer's value, and `target` is an upper bound. Otherwise, the
    ratio is the peer's value divided by our value, and `target` is a lower bound. The CPU seconds
    are medians per million rows, summed over the driver, the workers and the JVM. The CPU seconds
    are None if the case does not count rows.
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
        """Return whether the median meets the target, or None if there is no target."""
        if self.target is None:
            return None
        if self.ratio_median is None:
            return False
        if self.at_most:
            return self.ratio_median <= self.target
        return self.ratio_median >= self.target


def load(path: Path = RESULTS) -> list[Result]:
    """Return the results in the file, or an empty list if the file does not exist.

    Raises `ValueError` if the format of the file is unknown.
    """
    if not path.exists():
        return []
    known = {field.name for field in fields(Result)}
    results = []
    for row in json.loads(path.read_text()):
        if not isinstance(row, dict) or set(row) != known:
            raise ValueError(f"{path.name} has an unknown format. Remove it and run all cases.")
        results.append(Result(**row))
    return results


def merge(old: Iterable[Result], new: Sequence[Result], *, order: Sequence[str]) -> list[Result]:
    """Return the new results, and the old results of the cases that have no new results.

    `order` contains the names of all existing cases in the order in which their results are
    returned. Results of other cases are dropped.
    """
    replaced = {result.of_case for result in new}
    kept = [result for result in old if result.of_case not in replaced]
    all_known = [result for result in [*kept, *new] if result.of_case in order]
    return sorted(all_known, key=lambda result: order.index(result.of_case))


def incomplete(results: Iterable[Result], *, order: Collection[str]) -> list[str]:
    """Return the names of the cases that have no results or a result with an error."""
    found = {result.of_case for result in results}
    failed = {result.of_case for result in results if result.error is not None}
    return [case for case in order if case not in found or case in failed]


def save(results: Sequence[Result], path: Path = RESULTS) -> None:
    """Write the results to the file atomically."""
    reports.write_json(path, [asdict(result) for result in results])
