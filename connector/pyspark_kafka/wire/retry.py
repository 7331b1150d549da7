"""Pauses between tries.

Purpose: exponential backoff with jitter, bounded by a deadline (`ExponentialBackoff` of Kafka's
clients). Invariant: time, sleep and randomness are arguments. What it must not know: what is tried.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

_FACTOR_MAX: Final = 1_000_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """A monotonic time in seconds, a sleep in seconds, and a random number in [0, 1)."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    random: Callable[[], float] = random.random

    def left_s(self, deadline: float) -> float:
        """Return the seconds until `deadline`, 0 after it."""
        return max(0.0, deadline - self.now())


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Pauses from `first_s`, times `multiplier` up to `longest_s`, with a relative `jitter`.

    The defaults are those of `retry.backoff.ms` and `retry.backoff.max.ms`.
    """

    first_s: float = 0.1
    longest_s: float = 1.0
    multiplier: float = 2.0
    jitter: float = 0.2

    def pause_s(self, tries: int, random_number: float) -> float:
        """Return the pause after this number of tries (1 or more); `random_number` is in [0, 1)."""
        try:
            factor = min(self.multiplier ** (tries - 1), _FACTOR_MAX)
        except OverflowError:
            factor = _FACTOR_MAX
        pause_s = min(self.first_s * factor, self.longest_s)
        jittered_s = pause_s * (1 + self.jitter * (2 * random_number - 1))
        return min(jittered_s, self.longest_s)

    def pause(self, tries: int, *, clock: Clock, deadline: float) -> bool:
        """Sleep; return False if the deadline has passed."""
        clock.sleep(min(self.pause_s(tries, clock.random()), clock.left_s(deadline)))
        return clock.now() < deadline
