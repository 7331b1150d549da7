"""Tests of the schedule: tasks at intervals and one-time timers, in virtual time."""

from __future__ import annotations

import pytest

from broker_ref.schedule import Schedule


def test_a_task_runs_once_however_late_it_is() -> None:
    schedule, ran = Schedule(1000), list[int]()
    schedule.every(100, ran.append)
    assert schedule.next_deadline_ms() == 1100
    schedule.run(1099)
    schedule.run(1500)
    assert ran == [1500]
    assert schedule.next_deadline_ms() == 1600


def test_timers_run_once_in_the_order_of_their_deadlines() -> None:
    schedule, ran = Schedule(0), list[str]()
    schedule.at(20, lambda _: ran.append("second"))
    schedule.at(10, lambda _: ran.append("first"))
    schedule.at(30, lambda _: ran.append("later"))
    schedule.run(25)
    schedule.run(26)
    assert ran == ["first", "second"]
    assert schedule.next_deadline_ms() == 30


def test_a_cancelled_timer_never_runs() -> None:
    schedule, ran = Schedule(0), list[int]()
    timer = schedule.at(10, ran.append)
    timer.cancel()
    assert schedule.next_deadline_ms() is None
    schedule.run(10)
    assert ran == []


def test_cancelled_timers_are_removed_early() -> None:
    schedule, ran = Schedule(0), list[int]()
    for number in range(100):
        schedule.at(number, ran.append)
    for _ in range(10_000):
        schedule.at(2**40, ran.append).cancel()
    assert len(schedule._timers) <= 200
    for now_ms in range(100):
        assert schedule.next_deadline_ms() == now_ms
        schedule.run(now_ms)
    assert ran == list(range(100))
    assert schedule.next_deadline_ms() is None


def test_a_timer_may_cancel_the_next_and_set_another() -> None:
    schedule, ran = Schedule(0), list[str]()

    def first(now_ms: int) -> None:
        ran.append("first")
        second.cancel()
        schedule.at(now_ms, lambda _: ran.append("set meanwhile"))

    schedule.at(10, first)
    second = schedule.at(10, lambda _: ran.append("second"))
    schedule.run(10)
    assert ran == ["first"]
    assert schedule.next_deadline_ms() == 10
    schedule.run(10)
    assert ran == ["first", "set meanwhile"]


def test_a_failing_timer_does_not_affect_others() -> None:
    schedule, ran = Schedule(0), list[str]()

    def fail(now_ms: int) -> None:
        schedule.at(now_ms, lambda _: ran.append("set meanwhile"))
        raise RuntimeError("a bug")

    schedule.at(10, fail)
    schedule.at(10, lambda _: ran.append("second"))
    with pytest.raises(RuntimeError):
        schedule.run(10)
    schedule.run(10)
    schedule.run(10)
    assert sorted(ran) == ["second", "set meanwhile"]
