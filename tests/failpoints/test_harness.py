"""The matrix itself: it finds what is wrong, and says what it did not meet."""

from __future__ import annotations

from dataclasses import replace

import pytest

from integration.failpoints import __main__ as command
from integration.failpoints import report, verdict
from integration.failpoints.driver import Assignment, Kind, Life, Seat, _PartFailed
from integration.failpoints.hook import Action, Order
from integration.failpoints.lanes import NotSettled
from integration.failpoints.matrix import (
    Case,
    Recording,
    Result,
    StallCase,
    cases,
    coverage_errors,
    stalls,
)
from integration.failpoints.processes import Process
from integration.failpoints.report import Tally
from integration.failpoints.scenarios import (
    BATCH,
    SCENARIOS,
    Death,
    Loss,
    Premise,
    Scenario,
)
from integration.failpoints.session import Session
from integration.failpoints.trial import NotMet, Trial
from integration.failpoints.verdict import Wrong

PLAIN = SCENARIOS[0]
COMMIT = Seat(life=0, batch=BATCH, kind=Kind.COMMIT)


def a_recording(*failpoints: str, scenario: Scenario = PLAIN) -> Recording:
    met = {
        Seat(life=0, batch=BATCH, kind=focus.kind): failpoints if focus.kind is Kind.COMMIT else ()
        for focus in scenario.focus
    }
    return Recording(scenario=scenario, met=met)


def test_failpoints_with_nothing_between_them_are_one_moment() -> None:
    met = ("a.before", "a.x.before", "a.x.after", "a.after", "b.before", "b.x.before", "b.x.after")
    found = [(case.failpoint, case.death) for case in cases([a_recording(*met)])]
    in_all_ways = ["a.before", "a.x.after", "b.x.after"]
    assert [point for point, death in found if death is Death.ALONE] == in_all_ways
    assert {point for point, _ in found} == set(met), "each is met in some way"
    assert len(found) == 3 * len(in_all_ways) + 4
    assert [case.failpoint for case in stalls([a_recording(*met)], amid=False)] == in_all_ways


def test_a_failpoint_that_is_known_stands_for_a_moment_in_another_scenario() -> None:
    met = ("a.before", "a.x.before", "a.x.after", "a.after")
    other = replace(PLAIN, name="other")
    found = cases([a_recording(*met), a_recording(*met, scenario=other)])
    assert [case.failpoint for case in found if case.scenario is other] == 3 * ["a.before"] + 3 * [
        "a.x.after"
    ]


def test_steps_and_requests_that_no_scenario_meets_are_reported() -> None:
    errors = coverage_errors([a_recording("commit.decide.before", "commit.decide.flush.before")])
    assert "no scenario meets commit.decide.after" in errors
    assert "no scenario meets commit.decide.end_transactions.before" in errors
    assert "no scenario meets commit.mark.flush.before" in errors
    assert not any("commit.decide.before" in error for error in errors)
    assert not any("commit.decide.flush" in error for error in errors)


def test_undeclared_requests_are_reported() -> None:
    errors = coverage_errors([a_recording("commit.mark.list_topics.before", "no.step.before")])
    assert "commit.mark.list_topics.before is met, and step_requests.py lacks it" in errors
    assert "no.step.before is met, and step_requests.py lacks it" in errors


def test_rows_that_are_lost_or_come_twice_are_named() -> None:
    row, other = (b"1:0:0", 0), (b"1:0:1", 1)
    verdict.check_rows([other, row], [row, other])
    with pytest.raises(
        Wrong, match=r"rows lost: 1 .1:0:1 in partition 1, 1 x.; rows too many: none"
    ):
        verdict.check_rows([row], [row, other])
    with pytest.raises(Wrong, match=r"rows too many: 1 .1:0:0 in partition 0, 2 x."):
        verdict.check_rows([row, row, row], [row])


def test_results_are_counted_by_failpoint() -> None:
    kill = Case(scenario=PLAIN, seat=COMMIT, failpoint="commit.mark.after", death=Death.ALONE)
    stall = StallCase(scenario=PLAIN, seat=COMMIT, failpoint="commit.mark.after")
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
    assert "2 of 3 cases passed" in text
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
    """What needs the cluster."""

    def trial(self, session: Session, **how: object) -> None:
        with session.lanes.lane() as lane:
            Trial(server=session.server, lane=lane, **how).run()  # type: ignore[arg-type]

    def kill(
        self, failpoint: str, *, seat: Seat = COMMIT, action: Action = Action.KILL
    ) -> list[Assignment]:
        order = Order(failpoint=failpoint, action=action)
        return [Assignment(seat=seat, order=order, takes_driver=action is Action.KILL)]

    def test_writing_at_least_once_is_found_out(self, session: Session) -> None:
        failing = replace(PLAIN, fails=frozenset({1}), failures=1)
        with pytest.raises(Wrong, match="rows lost: none; rows too many: "):
            self.trial(session, scenario=failing, transactional=False)

    def test_a_failpoint_that_is_not_met_is_found_out(self, session: Session) -> None:
        with pytest.raises(
            NotMet, match=r"commit of batch 1, life 0 did not meet no.such.failpoint"
        ):
            self.trial(session, scenario=PLAIN, assignments=self.kill("no.such.failpoint"))

    def test_a_premise_that_is_not_met_is_found_out(self, session: Session) -> None:
        premise = Premise(kind=Kind.COMMIT, failpoint="no.such.failpoint")
        with pytest.raises(NotMet, match=r"life 0 did not meet no.such.failpoint"):
            self.trial(session, scenario=replace(PLAIN, premises=(premise,)))

    def test_a_loss_that_did_not_come_about_is_found_out(self, session: Session) -> None:
        """What is taken away was not decided yet: it is written again as a matter of course."""
        premise = Premise(kind=Kind.COMMIT, failpoint="commit.decide.before")
        losing = replace(PLAIN, premises=(premise,), loss_between_lives=Loss.FENCED)
        with pytest.raises(NotMet, match="no decided rows were lost"):
            self.trial(session, scenario=losing)

    def test_a_retry_that_does_not_help_is_found_out(
        self, session: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Life, "_start_task", start_first_attempts_alone)
        first = Seat(life=0, batch=BATCH, kind=Kind.TASK)
        orders = [
            Assignment(seat=first, order=Order(failpoint="task.check.before", action=Action.KILL))
        ]
        with pytest.raises(Wrong, match="failed with nothing that befell it"):
            self.trial(session, scenario=PLAIN, assignments=orders, attempts_max=2)

    def test_a_life_that_fails_for_no_reason_is_found_out(self, session: Session) -> None:
        failing = replace(PLAIN, fails=frozenset({1}))
        with pytest.raises(Wrong, match="failed with nothing that befell it"):
            self.trial(session, scenario=failing)

    def test_a_transaction_that_is_left_open_is_found_out(
        self, session: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("integration.failpoints.lanes.SETTLE_TIMEOUT_S", 0.5)
        monkeypatch.setattr(Trial, "_live_to_the_end", live_once)
        with pytest.raises(NotSettled, match=r"is Ongoing.* ends at .* and can be read up to"):
            self.trial(session, scenario=PLAIN, assignments=self.kill("commit.decide.before"))


_start_task = Life._start_task


def start_first_attempts_alone(
    life: Life, batch: int, planned: bytes, partition: int, *, attempt: int
) -> tuple[Seat, Process]:
    """In place of starting any attempt: a second one fails the batch."""
    if attempt > 0:
        raise _PartFailed("no second attempt is made")
    return _start_task(life, batch, planned, partition, attempt=attempt)


def live_once(trial: Trial, work: object, checkpoint: object) -> None:
    """In place of lives until all is done: one, with whatever befalls it."""
    trial._life(work, checkpoint).run()  # type: ignore[arg-type]
