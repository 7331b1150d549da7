"""A node's clock, which returns milliseconds since 1970 and never goes backwards.

A node uses the same clock for timestamps and deadlines. The clock must be close to the wall clock,
but setting the wall clock back must not delay all deadlines. Invariants: `now_ms()` never decreases
and advances with the monotonic clock. If the wall clock is ahead of the node's clock, for example
because the machine was suspended, the node's clock jumps forward.
"""

from __future__ import annotations

import time
from collections.abc import Callable

_AHEAD_MAX_SECONDS = 1.0


class SystemClock:
    """A clock that starts at the wall-clock time and advances with the monotonic clock."""

    def __init__(
        self,
        *,
        wall_seconds: Callable[[], float] = time.time,
        monotonic_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wall_seconds = wall_seconds
        self._monotonic_seconds = monotonic_seconds
        self._offset_seconds = wall_seconds() - monotonic_seconds()

    def now_ms(self) -> int:
        """Return the number of milliseconds since 1970-01-01 UTC."""
        monotonic = self._monotonic_seconds()
        ahead_seconds = self._wall_seconds() - (monotonic + self._offset_seconds)
        if ahead_seconds > _AHEAD_MAX_SECONDS:
            self._offset_seconds += ahead_seconds
        return int((monotonic + self._offset_seconds) * 1000)
