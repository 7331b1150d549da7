"""The time a node is given: milliseconds since 1970 that never go back.

Purpose: Kafka's timestamps and a node's deadlines are on one clock, so that clock must be close
to the wall clock, yet a wall clock that is set back must not freeze every deadline. Invariant:
`now_ms()` never decreases, and advances at the pace of the monotonic clock; it jumps forward when
the wall clock is ahead of it (a resumed laptop). Must not know: nodes, sockets.
"""

from __future__ import annotations

import time
from collections.abc import Callable

_AHEAD_MAX_SECONDS = 1.0


class SystemClock:
    """Wall-clock milliseconds, advanced by the monotonic clock."""

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
        """Milliseconds since 1970-01-01 UTC."""
        monotonic = self._monotonic_seconds()
        ahead_seconds = self._wall_seconds() - (monotonic + self._offset_seconds)
        if ahead_seconds > _AHEAD_MAX_SECONDS:
            self._offset_seconds += ahead_seconds
        return int((monotonic + self._offset_seconds) * 1000)
