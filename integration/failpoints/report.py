"""The report of a matrix run: the number of passed cases per failpoint, as Markdown and JSON.

Invariant: every number in the report is a count of results. docs/failpoints.md explains the table.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from integration.failpoints.matrix import Result, StallCase
from pyspark_kafka.sink.exactly_once.steps import Step

_NONE: Final = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """The number of passed cases and the total number of cases."""

    passed: int = 0
    all: int = 0

    def __str__(self) -> str:
        if not self.all:
            return _NONE
        return str(self.all) if self.passed == self.all else f"**{self.passed} of {self.all}**"

    def with_one(self, *, has_passed: bool) -> Tally:
        return Tally(passed=self.passed + has_passed, all=self.all + 1)


Failpoints = Mapping[str, Tally]


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """The tallies of kill cases and of stall cases, by failpoint."""

    kills: Failpoints = field(default_factory=dict)
    stalls: Failpoints = field(default_factory=dict)


def findings(results: Iterable[Result]) -> Findings:
    """Count results by failpoint."""
    kills: dict[str, Tally] = defaultdict(Tally)
    stalls: dict[str, Tally] = defaultdict(Tally)
    for result in results:
        of = stalls if isinstance(result.case, StallCase) else kills
        failpoint = result.case.failpoint
        of[failpoint] = of[failpoint].with_one(has_passed=result.error is None)
    return Findings(kills=dict(kills), stalls=dict(stalls))


def rows(results: Iterable[Result]) -> list[dict[str, Any]]:
    """Return one dictionary per case."""
    return [
        {
            "case": str(result.case),
            "failpoint": result.case.failpoint,
            "seconds": round(result.seconds, 3),
            "error": result.error,
        }
        for result in results
    ]


def render(backend: str, results: Sequence[Result]) -> str:
    """Return the Markdown report of a run on one backend."""
    found = findings(results)
    failed = [result for result in results if result.error is not None]
    lines = [
        f"# Failpoint results on {backend}",
        "",
        f"{len(results) - len(failed)} of {len(results)} cases passed.",
        "docs/failpoints.md explains the cases.",
        "",
        "| step | request | kills before | kills after | stalls before | stalls after |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for step, request in _rows({*found.kills, *found.stalls}):
        name = f"{step}.{request}" if request else step
        cells = [
            str(tallies.get(f"{name}.{when}", Tally()))
            for tallies in (found.kills, found.stalls)
            for when in ("before", "after")
        ]
        lines.append(f"| {step} | {request} | {' | '.join(cells)} |")
    if failed:
        lines += ["", "## Failed cases"]
        lines += [f"\n{result.case}\n\n```\n{result.error}\n```" for result in failed]
    return "\n".join(lines) + "\n"


def _rows(failpoints: Iterable[str]) -> list[tuple[str, str]]:
    """Return the step and the request for each row of the table.

    The request is empty if the row is about the step itself.
    """
    titles = [step.title for step in Step]
    found = {_step_and_request(failpoint, titles) for failpoint in failpoints}
    return sorted(found, key=lambda row: (titles.index(row[0]), row[1]))


def _step_and_request(failpoint: str, titles: Sequence[str]) -> tuple[str, str]:
    name = failpoint.rpartition(".")[0]
    if name in titles:
        return name, ""
    title, _, request = name.rpartition(".")
    return title, request
