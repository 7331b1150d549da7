"""Exponential backoff with jitter, limited by a deadline (`ExponentialBackoff` in Kafka's clients).

The functions for time, sleep and random numbers are fields of `Clock`, so tests can replace them.
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
    """Functions that read the monotonic clock, sleep, and generate random numbers in [0, 1).

    All times are in seconds.
    """

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    random: Callable[[], float] = random.random

    def left_s(self, deadline: float) -> float:
        """Return the seconds until `deadline`, or 0 if it has passed."""
        return max(0.0, deadline - self.now())


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Calculates how long to wait before a retry.

    The backoff grows from `first_s` to `longest_s` by a factor of `multiplier`, and varies randomly
    by `jitter`. The defaults are the same as those of `retry.backoff.ms` and
    `retry.backoff.max.ms`.
    """

    first_s: float = 0.1
    longest_s: float = 1.0
    multiplier: float = 2.0
    jitter: float = 0.2

    def backoff_s(self, attempts: int, random_number: float) -> float:
        """Return the backoff after `attempts` attempts.

        `random_number` in [0, 1) sets the jitter.
        """
        try:
            factor = min(self.multiplier ** (attempts - 1), _FACTOR_MAX)
        except OverflowError:
            factor = _FACTOR_MAX
        backoff_s = min(self.first_s * factor, self.longest_s)
        jittered_s = backoff_s * (1 + self.jitter * (2 * random_number - 1))
        return min(jittered_s, self.longest_s)

    def sleep(self, attempts: int, *, clock: Clock, deadline: float) -> bool:
        """Back off after `attempts` failed attempts. Return False if the deadline has passed."""
        clock.sleep(min(self.backoff_s(attempts, clock.random()), clock.left_s(deadline)))
        return clock.now() < deadline
