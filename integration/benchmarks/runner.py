"""The runner of a benchmark case, which measures our implementation and its peers in turn.

Each implementation runs once per round. If `Case.warms_up` is true, each implementation also runs
once before the first round. Invariant: if a peer fails, only the comparisons with this peer fail.
If our implementation fails, all comparisons of the case fail. A comparison requires the same number
of rounds from both implementations.
"""

from __future__ import annotations

import re
import statistics
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import indent
from typing import Final

from integration.benchmarks.cases import Case, Comparison
from integration.benchmarks.measure import CPU_SECONDS, Sample
from integration.benchmarks.ratios import order_of_round, ratio_of
from integration.benchmarks.resources import Resources
from integration.benchmarks.results import Result
from integration.benchmarks.sides import Side, VerifiableSide

OURS: Final = "ours"
_ERROR_CHARACTERS_MAX: Final = 300
_PYTHON_ERROR: Final = re.compile(r"(\w+\.)*\w*(Error|Exception): ")

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """The numbers of records and rounds of a case."""

    records: int
    rounds: int


def run_case(case: Case, resources: Resources, extent: Extent, say: Say) -> list[Result]:
    """Run a case. Return the result of each comparison, with its ratio or its error."""
    sides: dict[str, Side] = {OURS: case.ours, **case.peers}
    failures: dict[str, str] = {}
    samples: dict[str, list[Sample]] = {name: [] for name in sides}
    first = -1 if case.warms_up else 0
    for number in range(first, extent.rounds):
        is_warm_up = number < 0
        for name in order_of_round(list(sides), number):
            if name in failures or OURS in failures:
                continue
            try:
                sample = _run(sides[name], resources, extent.records, is_first=number == first)
            except Exception as error:  # After any error, the other sides and cases continue.
                failures[name] = _in_one_line(error)
                say(f"  {name}: FAILED: {failures[name]}")
                say(indent(traceback.format_exc(), "    | "))
                continue
            if not is_warm_up:
                samples[name].append(sample)
        say("  warmed up" if is_warm_up else f"  round {number + 1} of {extent.rounds}")
    return [
        result_of(case, comparison, extent, samples, failures, engine=resources.engine)
        for comparison in case.comparisons
    ]


def _run(side: Side, resources: Resources, records: int, *, is_first: bool) -> Sample:
    if is_first and isinstance(side, VerifiableSide):
        side.verify(resources, records)
    return side.run(resources, records)


def result_of(
    case: Case,
    comparison: Comparison,
    extent: Extent,
    samples: Mapping[str, Sequence[Sample]],
    failures: Mapping[str, str],
    *,
    engine: str,
) -> Result:
    """Return the result of one comparison, with its ratio or its error."""
    ratio, error = None, None
    for name in (OURS, comparison.peer):
        if name in failures:
            error = f"{name}: {failures[name]}"
    ours, peers = samples[OURS], samples[comparison.peer]
    if error is None:
        values = [[sample[comparison.quantity] for sample in taken] for taken in (ours, peers)]
        above, below = values if comparison.at_most else values[::-1]
        try:
            ratio = ratio_of(above, below)
        except ValueError as refused:
            error = str(refused)
    has_ratio = ratio is not None
    return Result(
        case=case.name + comparison.suffix,
        peer=comparison.peer,
        ratio_median=None if ratio is None else ratio.median,
        ratio_min=None if ratio is None else ratio.minimum,
        ratio_max=None if ratio is None else ratio.maximum,
        target=comparison.target,
        at_most=comparison.at_most,
        quantity=comparison.quantity,
        of_case=case.name,
        title=case.title,
        rounds=extent.rounds,
        records=extent.records,
        engine=engine,
        cpu_seconds=_median_cpu(ours) if has_ratio else None,
        peer_cpu_seconds=_median_cpu(peers) if has_ratio else None,
        error=error,
    )


def _median_cpu(samples: Sequence[Sample]) -> float | None:
    taken = [sample[CPU_SECONDS] for sample in samples if CPU_SECONDS in sample]
    return statistics.median(taken) if taken else None


def _in_one_line(error: Exception) -> str:
    """Return the last line of the Python traceback in an error, or else its type and first line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    of_python = [line for line in lines if _PYTHON_ERROR.match(line)]
    text = of_python[-1] if of_python else f"{type(error).__name__}: {' '.join(lines[:1])}"
    return text[:_ERROR_CHARACTERS_MAX]
