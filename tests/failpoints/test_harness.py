"""The failpoint harness detects lost rows, duplicates, open transactions and missed faults."""

from __future__ import annotations

from dataclasses import replace

import pytest

from integration.failpoints import __main__ as command
from integration.failpoints import oracle, report
from integration.failpoints.driver import (
    DriverRun,
    Injection,
    ProcessKey,
    ProcessKind,
    Workload,
    _ProcessFailedError,
)
from integration.failpoints.hook import Action, InjectedFault
from integration.failpoints.lanes import NotSettledError
from integration.failpoints.matrix import (
    Case,
    Recording,
    Result,
    StallCase,
    cases,
    coverage_errors,
    stalls,
)
from integration.failpoints.oracle import DeliveryError
from integration.failpoints.processes import Process
from integration.failpoints.report import Tally
from integration.failpoints.scenarios import (
    BATCH,
    SCENARIOS,
    WRAPPING_SCENARIOS,
    FailureMode,
    Loss,
    Precondition,
    Scenario,
    Wake,
)
from integration.failpoints.session import Session
from integration.failpoints.sink_calls import Sink
from integration.failpoints.step_requests import never_reached, undeclared
from integration.failpoints.trial import NotReachedError, Trial

PLAIN = SCENARIOS[0]
COMMIT = ProcessKey(driver_run=0, batch=BATCH, kind=ProcessKind.COMMIT)


def a_recording(*failpoints: str, scenario: Scenario = PLAIN) -> Recording:
    reached = {
        ProcessKey(driver_run=0, batch=BATCH, kind=target.kind): failpoints
        if target.kind is ProcessKind.COMMIT
        else ()
        for target in scenario.targets
    }
    return Recording(scenario=scenario, reached=reached)


def test_of_failpoints_between_two_requests_one_is_killed_in_all_modes() -> None:
    reached = (
        "a.before",
        "a.x.before",
        "a.x.after",
        "a.after",
        "b.before",
        "b.x.before",
        "b.x.after",
    )
    found = [(case.failpoint, case.mode) for case in cases([a_recording(*reached)])]
    in_all_modes = ["a.before", "a.x.after", "b.x.after"]
    assert [point for point, mode in found if mode is FailureMode.ALONE] == in_all_modes
    assert {point for point, _ in found} == set(reached), "a failpoint is never killed"
    assert len(found) == 3 * len(in_all_modes) + 4
    assert [
        case.failpoint for case in stalls([a_recording(*reached)]) if case.wake is Wake.AFTERWARDS
    ] == in_all_modes


def test_no_process_is_killed_again_after_a_request_that_changes_nothing() -> None:
    reached = (
        "a.before",
        "a.list_offsets.before",
        "a.list_offsets.after",
        "a.flush.before",
        "a.flush.after",
    )
    other = replace(PLAIN, name="other")
    found = cases([a_recording(*reached), a_recording(*reached, scenario=other)])
    after_read = {case.mode for case in found if case.failpoint == "a.list_offsets.after"}
    assert after_read == {FailureMode.FAILS}
    assert len([case for case in found if case.failpoint == "a.flush.after"]) == 6
    assert {case.failpoint for case in found} == set(reached)


def test_zombies_wake_when_their_ids_are_in_use_again() -> None:
    scenario = next(each for each in WRAPPING_SCENARIOS if each.name == "wrapped-task")
    reached = ("task.check.before", "task.init.before", "task.init.init_producer_id.before")
    process_key = ProcessKey(driver_run=0, batch=BATCH, kind=ProcessKind.TASK)
    found = stalls([Recording(scenario=scenario, reached={process_key: reached})])
    assert [(case.failpoint, case.wake, case.lost_task) for case in found] == [
        (reached[-1], Wake.BEFORE_VERIFICATION, True),
        (reached[-1], Wake.AFTER_DECISION, True),
    ]
    assert not cases([Recording(scenario=scenario, reached={process_key: reached})])


def test_each_task_but_the_empty_ones_has_rows() -> None:
    sink = Sink(options={}, is_streaming=True)
    workload = Workload(sink=sink, batches=2, tasks=5, empty_tasks=frozenset({2}))
    with_rows = [[bool(workload.rows(batch, task)) for task in range(5)] for batch in range(2)]
    assert with_rows == [[True, True, False, True, True], [True, True, False, True, False]]


def test_a_known_failpoint_represents_its_group_in_another_scenario() -> None:
    reached = ("a.before", "a.x.before", "a.x.after", "a.after")
    other = replace(PLAIN, name="other")
    found = cases([a_recording(*reached), a_recording(*reached, scenario=other)])
    assert [case.failpoint for case in found if case.scenario is other] == 3 * ["a.before"] + 3 * [
        "a.x.after"
    ]


def test_steps_and_requests_that_no_scenario_reaches_are_reported() -> None:
    reached = {"commit.decide.before", "commit.decide.flush.before"}
    missing = never_reached(reached)
    assert not missing & reached
    assert missing >= {
        "commit.decide.after",
        "commit.decide.end_transactions.before",
        "commit.mark.flush.before",
    }
    (error, *_) = coverage_errors([a_recording(*reached)])
    assert "abort.fence.after" in error


def test_undeclared_requests_are_reported() -> None:
    declared = {"commit.mark.flush.before", "abort.sweep.init_producer_ids.after"}
    unknown = {"commit.mark.list_topics.before", "no.step.before"}
    assert undeclared(declared | unknown) == unknown
    assert "no.step.before" in coverage_errors([a_recording("no.step.before")])[-1]


def test_lost_and_duplicate_rows_are_reported() -> None:
    row, other = (b"1:0:0", 0), (b"1:0:1", 1)
    oracle.check_rows([other, row], [row, other])
    with pytest.raises(DeliveryError, match=r"\b1:0:1\b") as caught:
        oracle.check_rows([row], [row, other])
    assert (caught.value.lost, caught.value.duplicates) == ({other: 1}, {})
    with pytest.raises(DeliveryError, match=r"\b1:0:0\b") as caught:
        oracle.check_rows([row, row, row], [row])
    assert (caught.value.lost, caught.value.duplicates) == ({}, {row: 2})


def test_results_are_counted_by_failpoint() -> None:
    kill = Case(
        scenario=PLAIN, process_key=COMMIT, failpoint="commit.mark.after", mode=FailureMode.ALONE
    )
    stall = StallCase(
        scenario=PLAIN,
        process_key=COMMIT,
        failpoint="commit.mark.after",
        wake=Wake.AFTERWARDS,
    )
    results = [
        Result(case=kill, seconds=1, error=None),
        Result(case=kill, seconds=1, error="no"),
        Result(case=stall, seconds=1, error=None),
    ]
    found = report.findings(results)
    assert found.kills == {"commit.mark.after": Tally(passed=1, all=2)}
    assert found.stalls == {"commit.mark.after": Tally(passed=1, all=1)}
    text = report.render("broker_ref", results)
    assert "| commit.mark |  | - | **1 of 2** | - | 1 |" in text
    assert "2 of 3" in text
    assert [row["error"] for row in report.rows(results)] == [None, "no", None]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--sample", "-5"), "'-5'"),
        (("--at-once", "0"), "'0'"),
    ],
)
def test_invalid_arguments_are_rejected(
    arguments: tuple[str, ...], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(arguments)
    assert ended.value.code == 2
    assert error in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(240)
class TestWithProcesses:
    """Tests that require a cluster."""

    def trial(self, session: Session, **how: object) -> None:
        with session.lanes.lane() as lane:
            Trial(server=session.server, lane=lane, **how).run()  # type: ignore[arg-type]

    def kill(
        self, failpoint: str, *, process_key: ProcessKey = COMMIT, action: Action = Action.KILL
    ) -> list[Injection]:
        fault = InjectedFault(failpoint=failpoint, action=action)
        return [Injection(process_key=process_key, fault=fault, kills_driver=action is Action.KILL)]

    def test_at_least_once_writes_are_detected(self, session: Session) -> None:
        failing = replace(PLAIN, fails=frozenset({1}), failures=1)
        with pytest.raises(DeliveryError) as caught:
            self.trial(session, scenario=failing, transactional=False)
        assert not caught.value.lost
        assert caught.value.duplicates

    def test_a_failpoint_that_is_not_reached_is_reported(self, session: Session) -> None:
        with pytest.raises(NotReachedError, match=rf"{COMMIT}.*no\.such\.failpoint"):
            self.trial(session, scenario=PLAIN, injections=self.kill("no.such.failpoint"))

    def test_a_precondition_that_is_not_reached_is_reported(self, session: Session) -> None:
        precondition = Precondition(kind=ProcessKind.COMMIT, failpoint="no.such.failpoint")
        with pytest.raises(NotReachedError, match=r"no\.such\.failpoint"):
            self.trial(session, scenario=replace(PLAIN, preconditions=(precondition,)))

    def test_a_loss_that_does_not_happen_is_reported(self, session: Session) -> None:
        """The rows are not decided, so the next batch writes them and reports no loss."""
        precondition = Precondition(kind=ProcessKind.COMMIT, failpoint="commit.decide.before")
        losing = replace(PLAIN, preconditions=(precondition,), loss_between_runs=Loss.FENCED)
        with pytest.raises(NotReachedError) as caught:
            self.trial(session, scenario=losing)
        assert precondition.failpoint not in str(caught.value)

    def test_a_failed_retry_is_reported(
        self, session: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(DriverRun, "_start_task", start_first_attempts_alone)
        first = ProcessKey(driver_run=0, batch=BATCH, kind=ProcessKind.TASK)
        faults = [
            Injection(
                process_key=first,
                fault=InjectedFault(failpoint="task.check.before", action=Action.KILL),
            )
        ]
        with pytest.raises(DeliveryError) as caught:
            self.trial(session, scenario=PLAIN, injections=faults, attempts_max=2)
        assert not caught.value.lost | caught.value.duplicates

    def test_a_driver_run_that_fails_without_a_fault_is_reported(self, session: Session) -> None:
        failing = replace(PLAIN, fails=frozenset({1}))
        with pytest.raises(DeliveryError) as caught:
            self.trial(session, scenario=failing)
        assert not caught.value.lost | caught.value.duplicates

    def test_an_open_transaction_is_reported(
        self, session: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("integration.failpoints.lanes.SETTLE_TIMEOUT_S", 0.5)
        monkeypatch.setattr(Trial, "_run_to_the_end", run_once)
        with pytest.raises(NotSettledError, match="Ongoing"):
            self.trial(session, scenario=PLAIN, injections=self.kill("commit.decide.before"))

    def wrapped(self, session: Session) -> None:
        scenario = next(each for each in WRAPPING_SCENARIOS if each.name == "wrapped-task")
        case = StallCase(
            scenario=scenario,
            process_key=ProcessKey(driver_run=0, batch=BATCH, kind=ProcessKind.TASK),
            failpoint="task.init.init_producer_id.before",
            wake=Wake.BEFORE_VERIFICATION,
            lost_task=True,
        )
        case.run(session)

    def test_ids_that_are_not_in_use_again_are_reported(
        self, session: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("integration.failpoints.trial.GENERATIONS", 4)
        with pytest.raises(NotReachedError, match="generation"):
            self.wrapped(session)

    def test_a_zombie_that_fails_a_batch_of_the_owner_is_reported(
        self, session: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Trial, "_takes_over", lambda _: False)
        with pytest.raises(DeliveryError) as caught:
            self.wrapped(session)
        assert not caught.value.lost | caught.value.duplicates


_start_task = DriverRun._start_task


def start_first_attempts_alone(
    driver_run: DriverRun, batch: int, planned: bytes, partition: int, *, attempt: int
) -> tuple[ProcessKey, Process]:
    """Replace `_start_task`. A second attempt of a task fails the batch."""
    if attempt > 0:
        raise _ProcessFailedError("the test allows no second attempt")
    return _start_task(driver_run, batch, planned, partition, attempt=attempt)


def run_once(trial: Trial, workload: object, checkpoint: object) -> None:
    """Replace `_run_to_the_end`. Run the driver once and accept any outcome."""
    trial._driver_run(workload, checkpoint).run()  # type: ignore[arg-type]
