"""The clock of a node: milliseconds since 1970 that never decrease.

Purpose: Kafka's timestamps and a node's deadlines use one clock, which must be close to the wall
clock, but a wall clock that jumps back must not delay every deadline. Invariant: `now_ms()` never
decreases and advances with the monotonic clock; it jumps forward if the wall clock is ahead (after
a suspend). Must not know: nodes, sockets.
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
        """Return milliseconds since 1970-01-01 UTC."""
        monotonic = self._monotonic_seconds()
        ahead_seconds = self._wall_seconds() - (monotonic + self._offset_seconds)
        if ahead_seconds > _AHEAD_MAX_SECONDS:
            self._offset_seconds += ahead_seconds
        return int((monotonic + self._offset_seconds) * 1000)
