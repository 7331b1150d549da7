"""Reads this machine's wall clock, for comparison with brokers' timestamps."""

from __future__ import annotations

import time


def wall_clock_ms() -> int:
    """Return the current time in milliseconds since the Unix epoch, like Kafka's timestamps."""
    return time.time_ns() // 1_000_000
