"""docs/failpoints.md: where processes were killed, and what became of it.

Purpose: render the results of a run beside those of other backends, which are read from the page.
Invariant: every number was counted; a page that is rendered from what was parsed from it is the
same. What it must not know: how cases are run.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from integration.failpoints.matrix import Result, StallCase
from integration.failpoints.scenarios import SCENARIOS, SLOW_SCENARIOS
from pyspark_kafka.sink.exactly_once.steps import Step

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "failpoints.md"
_NONE: Final = "-"

_HEAD: Final = """\
# Failpoints

Every step of [exactly once](exactly-once-protocol.md), and every request in it, has a failpoint
before and after it. A process is killed there (`SIGKILL`); Spark's part is then played to its end,
and a `read_committed` reader has to see each row once, with no transaction left open and a group's
offsets where the last batch ended. Between two requests nothing changes outside of a process: in
every situation it is killed, in all ways, at one of the failpoints that lie between them, and at
each of the others at least once in some situation.

`make failpoints` runs all of it and writes this page, `make test` runs a sample. Which failpoints
there are is found out by recording: a step or request that no situation meets fails the test. (Of
`read_log` in roll-forward there is no *after*: it reads until it has found what it looks for.)

## Situations

"""
_KILLS: Final = """
## Kills

How many cases were run at each failpoint, each with the process alone and, where that makes a
difference, with Spark's driver, with another attempt at the task, or with an error in its place.
With `transaction.version` 1 only those situations are run in which the end of a transaction matters.

"""
_STALLS: Final = """
## Stalls

A process is stopped (`SIGSTOP`) at a failpoint, another driver or another attempt at the task does
the batch in its place, and then it wakes: right after that, or amid the next batch. The zombie must
do no harm.

"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Cases that ended well, of all."""

    well: int = 0
    all: int = 0

    def __str__(self) -> str:
        if not self.all:
            return _NONE
        return str(self.all) if self.well == self.all else f"**{self.well} of {self.all}**"

    def with_one(self, *, is_well: bool) -> Tally:
        return Tally(well=self.well + is_well, all=self.all + 1)


Failpoints = Mapping[str, Tally]


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Of one backend: kills and stalls by failpoint."""

    kills: Failpoints = field(default_factory=dict)
    stalls: Failpoints = field(default_factory=dict)


def findings(results: Iterable[Result]) -> Findings:
    """Count results by their failpoints."""
    kills: dict[str, Tally] = defaultdict(Tally)
    stalls: dict[str, Tally] = defaultdict(Tally)
    for result in results:
        of = stalls if isinstance(result.case, StallCase) else kills
        failpoint = result.case.failpoint
        of[failpoint] = of[failpoint].with_one(is_well=result.error is None)
    return Findings(kills=dict(kills), stalls=dict(stalls))


def render(by_backend: Mapping[str, Findings]) -> str:
    """The page; backends in the order given."""
    situations = "".join(
        f"- `{each.name}`: {each.title}\n" for each in (*SCENARIOS, *SLOW_SCENARIOS)
    )
    kills = {backend: each.kills for backend, each in by_backend.items()}
    stalls = {backend: each.stalls for backend, each in by_backend.items() if each.stalls}
    parts = [_HEAD, situations, _KILLS, _table(kills)]
    if stalls:
        parts += [_STALLS, _table(stalls)]
    return "".join(parts)


def parse(text: str) -> dict[str, Findings]:
    """What a rendered page says of each backend."""
    kills, _, stalls = text.partition(_STALLS.strip().splitlines()[0])
    of_kills, of_stalls = _parsed(kills), _parsed(stalls)
    return {
        backend: Findings(kills=of_kills[backend], stalls=of_stalls.get(backend, {}))
        for backend in of_kills
    }


def write(backend: str, results: Sequence[Result]) -> None:
    """Put the results of a backend into the page, beside those of the others."""
    known = parse(PAGE.read_text()) if PAGE.exists() else {}
    known[backend] = findings(results)
    PAGE.write_text(render(dict(sorted(known.items(), reverse=True))))


def _table(by_backend: Mapping[str, Failpoints]) -> str:
    columns = [f"{when}, {backend}" for backend in by_backend for when in ("before", "after")]
    lines = [
        "| step | request | " + " | ".join(columns) + " |",
        "| --- | --- | " + " | ".join("---:" for _ in columns) + " |",
    ]
    totals = {backend: Tally() for backend in by_backend}
    for place in _places(by_backend):
        step, _, request = place.partition("/")
        cells = [
            str(tallies.get(f"{place.replace('/', '.')}.{when}", Tally()))
            for tallies in by_backend.values()
            for when in ("before", "after")
        ]
        lines.append(f"| {step} | {request} | " + " | ".join(cells) + " |")
    for backend, tallies in by_backend.items():
        totals[backend] = Tally(
            well=sum(each.well for each in tallies.values()),
            all=sum(each.all for each in tallies.values()),
        )
    told = [f"{total.well} of {total.all} on {backend}" for backend, total in totals.items()]
    return "\n".join(lines) + f"\n\nEnded well: {', '.join(told)}.\n"


def _places(by_backend: Mapping[str, Failpoints]) -> list[str]:
    """`step` and `step/request` in the order of steps, the step itself first."""
    titles = [step.title for step in Step]
    found = {_place(failpoint, titles) for tallies in by_backend.values() for failpoint in tallies}
    return sorted(found, key=lambda place: (titles.index(place.partition("/")[0]), place))


def _place(failpoint: str, titles: Sequence[str]) -> str:
    name = failpoint.rpartition(".")[0]
    if name in titles:
        return name
    title, _, request = name.rpartition(".")
    return f"{title}/{request}"


_CELL: Final = re.compile(r"(?:\*\*(\d+) of )?(\d+)(?:\*\*)?")


def _parsed(text: str) -> dict[str, dict[str, Tally]]:
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("| ")
    ]
    if not rows:
        return {}
    columns = [tuple(column.split(", ", 1)) for column in rows[0][2:]]
    found: dict[str, dict[str, Tally]] = {backend: {} for _, backend in columns}
    for step, request, *cells in rows[2:]:
        place = f"{step}.{request}" if request else step
        for (when, backend), cell in zip(columns, cells, strict=True):
            match = _CELL.fullmatch(cell)
            if match is not None:
                everything = int(match[2])
                well = everything if match[1] is None else int(match[1])
                found[backend][f"{place}.{when}"] = Tally(well=well, all=everything)
    return found
