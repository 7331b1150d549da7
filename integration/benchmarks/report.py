"""The report of a benchmark run, as Markdown and as lines for a terminal.

Invariant: a report contains ratios and CPU seconds. It contains no wall-clock times and nothing
that identifies a machine. docs/benchmarks.md explains the tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from integration.benchmarks.results import Result


def render(results: Sequence[Result], environment: Mapping[str, str]) -> str:
    """Return the report as Markdown. `environment` maps names to versions and settings."""
    lines = ["# Benchmark results", "", "docs/benchmarks.md explains the columns and peers.", ""]
    for of_case, group in groupby(results, key=lambda result: result.of_case):
        lines += _section(of_case, list(group))
    lines += ["## Environment", "", "| | |", "| --- | --- |"]
    lines += [f"| {name} | {value} |" for name, value in environment.items()]
    return "\n".join(lines) + "\n"


def table(results: Sequence[Result]) -> Iterator[str]:
    """Yield one aligned line per result, for a terminal."""
    width = max((len(result.case) for result in results), default=0)
    peers = max((len(result.peer) for result in results), default=0)
    for result in results:
        yield f"{result.case:{width}}  {result.peer:{peers}}  {_summary(result)}"


def _section(of_case: str, results: Sequence[Result]) -> Iterator[str]:
    first = results[0]
    yield f"## {first.title}"
    yield ""
    yield f"`{of_case}`, {_count(first)}, {first.rounds} rounds, engine `{first.engine}`."
    yield ""
    yield (
        "| case | peer | ratio | target | median | minimum to maximum | CPU s, ours | CPU s, peer |"
    )
    yield "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: |"
    for result in results:
        yield "| " + " | ".join(_cells(result)) + " |"
    yield ""


def _count(result: Result) -> str:
    return f"{result.records:,} records"


def _cells(result: Result) -> list[str]:
    target = "" if result.target is None else _bound(result)
    if result.ratio_median is None:
        # The error may contain the name of a machine. Therefore it is only in the JSON file.
        return [result.case, result.peer, _kind(result), target, "failed", "", "", ""]
    median = f"{result.ratio_median:.2f}"
    if result.is_met is not None:
        median = f"**{median}**" if result.is_met else f"{median} (missed)"
    span = f"{result.ratio_min:.2f} to {result.ratio_max:.2f}"
    used = [
        "" if seconds is None else f"{seconds:.3g}"
        for seconds in (result.cpu_seconds, result.peer_cpu_seconds)
    ]
    return [result.case, result.peer, _kind(result), target, median, span, *used]


def _kind(result: Result) -> str:
    return f"{'ours / peer' if result.at_most else 'peer / ours'}, {result.quantity}"


def _bound(result: Result) -> str:
    return f"{'≤' if result.at_most else '≥'} {result.target:g}"


def _summary(result: Result) -> str:
    if result.ratio_median is None:
        return f"FAILED: {result.error}"
    found = f"{result.ratio_median:8.2f}  ({result.ratio_min:.2f} to {result.ratio_max:.2f})"
    if result.target is None:
        return found
    return f"{found}  target {_bound(result)}: {'reached' if result.is_met else 'MISSED'}"
