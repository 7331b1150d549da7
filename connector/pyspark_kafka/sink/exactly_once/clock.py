"""The clock that the protocol goes by where it has to compare its own times with brokers'."""

from __future__ import annotations

import time


def wall_clock_ms() -> int:
    """Milliseconds since the epoch, as brokers count."""
    return time.time_ns() // 1_000_000
