"""The matrix: scenarios recorded, cases made of what was met, and run.

Purpose: `record`, `cases`, `stalls`, `run`. Invariant: a case stands for a failpoint that a recorded
run of its scenario has met. What it must not know: what failpoints mean.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from integration.failpoints.driver import Assignment, Kind, Seat
from integration.failpoints.hook import Action, Order
from integration.failpoints.scenarios import BATCH, SCENARIOS, Death, Focus, Scenario
from integration.failpoints.session import Session
from integration.failpoints.step_requests import never_met, undeclared
from integration.failpoints.trial import Trial

AT_ONCE: Final = 3
_ACTIONS: Final = {Death.FAILS: Action.FAIL}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A scenario run with no more than its premises, and the failpoints that were met."""

    scenario: Scenario
    met: dict[Seat, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A process of a scenario ends at a failpoint."""

    scenario: Scenario
    seat: Seat
    failpoint: str
    death: Death

    def __str__(self) -> str:
        return f"{self.scenario.name}: {self.seat} {self.death.value} at {self.failpoint}"

    def run(self, session: Session) -> list[str]:
        """The story; raises what `Trial.run` raises, with the story in a note."""
        order = Order(failpoint=self.failpoint, action=_ACTIONS.get(self.death, Action.KILL))
        assignment = Assignment(
            seat=self.seat, order=order, takes_driver=self.death is Death.WITH_DRIVER
        )
        with session.lanes.lane() as lane:
            trial = Trial(
                server=session.server,
                lane=lane,
                scenario=self.scenario,
                assignments=[assignment],
                attempts_max=2 if self.death is Death.RETRIED else 1,
            )
            with _telling(trial):
                trial.run()
        return trial.story


@dataclass(frozen=True, slots=True, kw_only=True)
class StallCase:
    """A process of a scenario stalls at a failpoint, and wakes when its successor has gone on.

    `lost_task`, `amid`: see `Trial.run_with_zombie`.
    """

    scenario: Scenario
    seat: Seat
    failpoint: str
    lost_task: bool = False
    amid: bool = False

    def __str__(self) -> str:
        successor = "another attempt goes on" if self.lost_task else "another driver goes on"
        when = "amid its next batch" if self.amid else "after that"
        return (
            f"{self.scenario.name}: {self.seat} stalls at {self.failpoint}, {successor}, "
            f"it wakes {when}"
        )

    def run(self, session: Session) -> list[str]:
        """As `Case.run`."""
        order = Order(failpoint=self.failpoint, action=Action.STALL)
        with session.lanes.lane() as lane:
            trial = Trial(
                server=session.server,
                lane=lane,
                scenario=self.scenario,
                assignments=[Assignment(seat=self.seat, order=order)],
                attempts_max=2 if self.lost_task else 1,
            )
            with _telling(trial):
                trial.run_with_zombie(lost_task=self.lost_task, amid=self.amid)
        return trial.story


AnyCase = Case | StallCase


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What became of a case: `error` None where it ended well."""

    case: AnyCase
    seconds: float
    error: str | None


@contextmanager
def _telling(trial: Trial) -> Iterator[None]:
    """What is raised tells what had happened before."""
    try:
        yield
    except Exception as error:
        error.add_note("\n".join(f"    {line}" for line in trial.story))
        raise


def record(session: Session, scenarios: Sequence[Scenario] = SCENARIOS) -> list[Recording]:
    """Run each scenario, which has to end well, and say what was met."""

    def run(scenario: Scenario) -> Recording:
        with session.lanes.lane() as lane:
            trial = Trial(server=session.server, lane=lane, scenario=scenario)
            with _telling(trial):
                trial.run()
            return Recording(scenario=scenario, met=trial.met)

    with ThreadPoolExecutor(AT_ONCE) as executor:
        return list(executor.map(run, scenarios))


def cases(recordings: Iterable[Recording]) -> list[Case]:
    """Every failpoint, and every process in focus at each moment that differs from the one before.

    Between two requests nothing changes outside of the process. Of the failpoints that it meets
    there, one is enough to die at in all ways; the others are taken once, whatever the scenario.
    """
    found: list[Case] = []
    known: set[str] = set()
    for recording in recordings:
        for focus in recording.scenario.focus:
            seat, failpoints = _in_focus(recording, focus)
            for moment in _moments(failpoints):
                new = [failpoint for failpoint in moment if failpoint not in known]
                chosen, *others = new or moment[:1]
                known.update(new)
                pairs = [(chosen, death) for death in focus.deaths]
                pairs += [(other, focus.deaths[-1]) for other in others]
                found += [
                    Case(scenario=recording.scenario, seat=seat, failpoint=failpoint, death=death)
                    for failpoint, death in pairs
                ]
    return found


def stalls(recordings: Iterable[Recording], *, amid: bool) -> list[StallCase]:
    """Every process in focus that is of the first life, stalled at each such moment.

    A zombie of a later life would be one of a scenario that is there without it.
    """
    found = [
        StallCase(scenario=recording.scenario, seat=seat, failpoint=moment[0], amid=amid)
        for recording in recordings
        for focus in recording.scenario.focus
        if focus.life == 0 and focus.batch == BATCH and not recording.scenario.premises
        for seat, failpoints in [_in_focus(recording, focus)]
        for moment in _moments(failpoints)
    ]
    of_lost_tasks = [
        replace(case, lost_task=True)
        for case in found
        if case.seat.kind is Kind.TASK and not case.scenario.fails
    ]
    return [*found, *of_lost_tasks]


def _in_focus(recording: Recording, focus: Focus) -> tuple[Seat, list[str]]:
    """The process, and the failpoints that it meets behind those that its premises name."""
    seat = Seat(life=focus.life, batch=focus.batch, kind=focus.kind, partition=focus.partition)
    met = recording.met.get(seat)
    if met is None:
        raise LookupError(f"scenario {recording.scenario.name} has no {seat}")
    begin = 0
    if seat.life == 0 and seat.batch == BATCH:
        premises = [p for p in recording.scenario.premises if p.kind is seat.kind]
        begin = max((met.index(premise.failpoint) + 1 for premise in premises), default=0)
    return seat, [failpoint for failpoint in met[begin:] if failpoint.startswith(focus.within)]


def _moments(failpoints: Sequence[str]) -> list[list[str]]:
    """Failpoints with no request between them, each failpoint once: where it is first met."""
    moments: list[list[str]] = [[]]
    known: set[str] = set()
    for before, failpoint in zip(["", *failpoints], failpoints, strict=False):
        if failpoint.endswith(".after") and before == failpoint.replace(".after", ".before"):
            moments.append([])
        if failpoint not in known:
            known.add(failpoint)
            moments[-1].append(failpoint)
    return [moment for moment in moments if moment]


def coverage_errors(recordings: Iterable[Recording]) -> list[str]:
    """Compare what the scenarios met with the declared steps and requests; a line per difference."""
    met = {point for each in recordings for points in each.met.values() for point in points}
    return [
        *(f"no scenario meets {name}" for name in sorted(never_met(met))),
        *(f"{name} is met, and step_requests.py lacks it" for name in sorted(undeclared(met))),
    ]


def run(
    session: Session,
    chosen: Iterable[AnyCase],
    *,
    until_s: float | None = None,
    at_once: int = AT_ONCE,
) -> Iterator[Result]:
    """Run cases, a few at once; none is begun after `until_s` (`time.monotonic()`)."""
    left = iter(chosen)

    def one(case: AnyCase) -> Result:
        begun_s = time.monotonic()
        error = None
        try:
            case.run(session)
        except Exception as failed:
            error = "\n".join(
                [f"{type(failed).__name__}: {failed}", *getattr(failed, "__notes__", ())]
            )
        return Result(case=case, seconds=time.monotonic() - begun_s, error=error)

    with ThreadPoolExecutor(at_once) as executor:
        running: set[Future[Result]] = set()
        while True:
            in_time = until_s is None or time.monotonic() < until_s
            while in_time and len(running) < at_once and (case := next(left, None)) is not None:
                running.add(executor.submit(one, case))
            if not running:
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            yield from (future.result() for future in done)


def shuffled(chosen: Sequence[AnyCase], seed: int) -> list[AnyCase]:
    """In an order that the seed says: what is run of it first is a sample."""
    order = list(chosen)
    Random(seed).shuffle(order)  # noqa: S311
    return order
