"""The matrix: records scenarios, derives cases from the recordings and runs the cases.

Invariant: the failpoint of each case was reached in a recorded run of its scenario.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Final

from integration.failpoints.driver import Injection, ProcessKey, ProcessKind
from integration.failpoints.hook import Action, InjectedFault
from integration.failpoints.scenarios import BATCH, SCENARIOS, FailureMode, Scenario, Target, Wake
from integration.failpoints.session import Session
from integration.failpoints.step_requests import READ_ONLY, never_reached, undeclared
from integration.failpoints.trial import Trial

PARALLEL: Final = 3
_ACTIONS: Final = {FailureMode.FAILS: Action.FAIL}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """The failpoints that a scenario reaches if only the scenario's own faults are injected."""

    scenario: Scenario
    reached: dict[ProcessKey, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A case in which a process of a scenario fails at a failpoint."""

    scenario: Scenario
    process_key: ProcessKey
    failpoint: str
    mode: FailureMode

    def __str__(self) -> str:
        return f"{self.scenario.name}: {self.process_key} {self.mode.value} at {self.failpoint}"

    def run(self, session: Session) -> list[str]:
        """Run the case and return the timeline.

        Raises the same errors as `Trial.run`, with the timeline in a note.
        """
        fault = InjectedFault(failpoint=self.failpoint, action=_ACTIONS.get(self.mode, Action.KILL))
        injection = Injection(
            process_key=self.process_key,
            fault=fault,
            kills_driver=self.mode is FailureMode.WITH_DRIVER,
        )
        with session.lanes.lane() as lane:
            trial = Trial(
                server=session.server,
                lane=lane,
                scenario=self.scenario,
                injections=[injection],
                attempts_max=2 if self.mode is FailureMode.RETRIED else 1,
            )
            with _timeline_in_errors(trial):
                trial.run()
        return trial.timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class StallCase:
    """A case in which a process stalls at a failpoint and wakes after its successor has taken over.

    For `wake` and `lost_task`, see `Trial.run_with_zombie`.
    """

    scenario: Scenario
    process_key: ProcessKey
    failpoint: str
    wake: Wake
    lost_task: bool = False

    def __str__(self) -> str:
        successor = "another attempt continues" if self.lost_task else "another driver continues"
        is_last = self.wake is Wake.AFTERWARDS
        when = "afterwards" if is_last else f"during a later batch at {self.wake.value}"
        return (
            f"{self.scenario.name}: {self.process_key} stalls at {self.failpoint}, {successor}, "
            f"the stalled process wakes {when}"
        )

    def run(self, session: Session) -> list[str]:
        """Run the case and return the timeline. See `Case.run`."""
        fault = InjectedFault(failpoint=self.failpoint, action=Action.STALL)
        with session.lanes.lane() as lane:
            trial = Trial(
                server=session.server,
                lane=lane,
                scenario=self.scenario,
                injections=[Injection(process_key=self.process_key, fault=fault)],
                attempts_max=2 if self.lost_task else 1,
            )
            with _timeline_in_errors(trial):
                trial.run_with_zombie(self.wake, lost_task=self.lost_task)
        return trial.timeline


AnyCase = Case | StallCase


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of a case; `error` is None if it passed."""

    case: AnyCase
    seconds: float
    error: str | None


@contextmanager
def _timeline_in_errors(trial: Trial) -> Iterator[None]:
    """Add the timeline to an error as a note."""
    try:
        yield
    except Exception as error:
        error.add_note("\n".join(f"    {line}" for line in trial.timeline))
        raise


def record(session: Session, scenarios: Sequence[Scenario] = SCENARIOS) -> list[Recording]:
    """Run each scenario and record the failpoints that it reaches. Every scenario must pass."""

    def run(scenario: Scenario) -> Recording:
        with session.lanes.lane() as lane:
            trial = Trial(server=session.server, lane=lane, scenario=scenario)
            with _timeline_in_errors(trial):
                trial.run()
            return Recording(scenario=scenario, reached=trial.reached)

    with ThreadPoolExecutor(PARALLEL) as executor:
        return list(executor.map(run, scenarios))


def cases(recordings: Iterable[Recording]) -> list[Case]:
    """Derive the cases in which a process fails.

    The cases cover every failpoint and every gap between two requests. Within a gap, a process
    changes no external state. Therefore, only one failpoint per gap is tested with all failure
    modes. Each of the other failpoints is tested once, in one scenario. A read-only request does
    not change external state. Therefore, in the gap after such a request, the process only raises
    an error and is not killed. The error is tested because error handling depends on the step.
    """
    found: list[Case] = []
    known: set[str] = set()
    for recording in recordings:
        for target in recording.scenario.targets:
            if not target.modes:
                continue
            process_key, gaps = _target_gaps(recording, target, target.kills)
            for gap in gaps:
                new = [failpoint for failpoint in gap.failpoints if failpoint not in known]
                chosen, *others = new or gap.failpoints[:1]
                known.update(new)
                modes = target.modes
                if gap.follows_read:
                    modes = tuple(mode for mode in modes if mode is FailureMode.FAILS)
                    modes = modes or target.modes[-1:] if new else modes
                pairs = [(chosen, mode) for mode in modes]
                pairs += [(other, target.modes[-1]) for other in others]
                found += [
                    Case(
                        scenario=recording.scenario,
                        process_key=process_key,
                        failpoint=failpoint,
                        mode=mode,
                    )
                    for failpoint, mode in pairs
                ]
    return found


def stalls(recordings: Iterable[Recording]) -> list[StallCase]:
    """Derive the cases in which a process stalls.

    There is one case for each combination of a gap between requests, a wake-up time and a kind of
    successor.

    Targets in batch 0 are omitted, because no decision precedes the first batch.
    """
    return [
        StallCase(
            scenario=recording.scenario,
            process_key=process_key,
            failpoint=gap.failpoints[0],
            wake=wake,
            lost_task=lost_task,
        )
        for recording in recordings
        for target in recording.scenario.targets
        if target.batch == BATCH
        for process_key, gaps in [_target_gaps(recording, target, target.stalls)]
        for lost_task in _successors(recording.scenario, target)
        for wake in recording.scenario.wakes
        for gap in gaps
    ]


def _successors(scenario: Scenario, target: Target) -> tuple[bool, ...]:
    """Return the values of `lost_task` to test for a stalled process.

    If `lost_task` is true, the successor of the process is the next attempt of the task. Otherwise,
    the successor is the next driver.
    """
    if target.kind is not ProcessKind.TASK or scenario.fails:
        return (False,)
    return (True,) if scenario.wraps else (False, True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gap:
    """Failpoints without a request between them.

    If `follows_read` is true, the request before these failpoints is read-only.
    """

    failpoints: list[str]
    follows_read: bool = False


def _target_gaps(
    recording: Recording, target: Target, prefixes: tuple[str, ...]
) -> tuple[ProcessKey, list[_Gap]]:
    """Return the key of a target's process, and the gaps between the requests of this process.

    The first gap begins after the failpoints of the preconditions. The gaps contain only failpoints
    whose names start with one of the `prefixes`.
    """
    process_key = ProcessKey(
        driver_run=target.driver_run,
        batch=target.batch,
        kind=target.kind,
        partition=target.partition,
    )
    reached = recording.reached.get(process_key)
    if reached is None:
        raise LookupError(f"scenario {recording.scenario.name} did not run {process_key}")
    begin = 0
    if process_key.driver_run == 0 and process_key.batch == BATCH:
        preconditions = [p for p in recording.scenario.preconditions if p.kind is process_key.kind]
        begin = max(
            (reached.index(precondition.failpoint) + 1 for precondition in preconditions), default=0
        )
    return process_key, _gaps(reached[begin:], prefixes)


def _gaps(reached: Sequence[str], prefixes: tuple[str, ...]) -> list[_Gap]:
    """Return the gaps that contain failpoints whose names start with one of the `prefixes`.

    A failpoint that is reached repeatedly belongs only to the gap in which it is first reached. In
    the first gap, `follows_read` is false.
    """
    gaps = [_Gap(failpoints=[])]
    known: set[str] = set()
    for before, failpoint in zip(["", *reached], reached, strict=False):
        name, _, when = failpoint.rpartition(".")
        if when == "after" and before == f"{name}.before":
            follows_read = name.rpartition(".")[2] in READ_ONLY
            if not gaps[-1].failpoints:
                follows_read = gaps.pop().follows_read and follows_read
            gaps.append(_Gap(failpoints=[], follows_read=follows_read))
        if failpoint not in known and failpoint.startswith(prefixes):
            known.add(failpoint)
            gaps[-1].failpoints.append(failpoint)
    return [gap for gap in gaps if gap.failpoints]


def coverage_errors(recordings: Iterable[Recording]) -> list[str]:
    """Return a line for each step or request that is undeclared or that no scenario reaches."""
    reached = {point for each in recordings for points in each.reached.values() for point in points}
    return [
        *(f"no scenario reaches {name}" for name in sorted(never_reached(reached))),
        *(
            f"{name} is reached but not declared in step_requests.py"
            for name in sorted(undeclared(reached))
        ),
    ]


def run(
    session: Session, chosen: Iterable[AnyCase], *, parallel: int = PARALLEL
) -> Iterator[Result]:
    """Run cases in parallel."""

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

    with ThreadPoolExecutor(parallel) as executor:
        yield from executor.map(one, chosen)


def shuffled(chosen: Sequence[AnyCase], seed: int) -> list[AnyCase]:
    """Return the cases in random order, so any part of the list is a random sample."""
    cases = list(chosen)
    Random(seed).shuffle(cases)  # noqa: S311
    return cases
