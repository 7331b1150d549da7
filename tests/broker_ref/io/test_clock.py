"""Tests of the clock: it never decreases or stops, and follows forward jumps of the wall clock."""

from __future__ import annotations

from dataclasses import dataclass

from broker_ref.io.clock import SystemClock


@dataclass
class Clocks:
    wall: float = 1_700_000_000.0
    monotonic: float = 50.0

    def pass_seconds(self, seconds: float) -> None:
        self.wall += seconds
        self.monotonic += seconds

    def system_clock(self) -> SystemClock:
        return SystemClock(wall_seconds=lambda: self.wall, monotonic_seconds=lambda: self.monotonic)


def test_the_clock_returns_wall_clock_milliseconds() -> None:
    clocks = Clocks()
    clock = clocks.system_clock()
    clocks.pass_seconds(1.5)
    assert clock.now_ms() == 1_700_000_001_500


def test_the_clock_advances_while_the_wall_clock_is_behind() -> None:
    clocks = Clocks()
    clock = clocks.system_clock()
    clocks.wall -= 3600
    assert clock.now_ms() == 1_700_000_000_000
    clocks.pass_seconds(2)
    assert clock.now_ms() == 1_700_000_002_000


def test_the_clock_follows_a_wall_clock_that_jumps_ahead() -> None:
    clocks = Clocks()
    clock = clocks.system_clock()
    clocks.wall += 7200  # A laptop was suspended, and its monotonic clock stopped.
    assert clock.now_ms() == 1_700_007_200_000
    clocks.wall -= 7200
    assert clock.now_ms() == 1_700_007_200_000
