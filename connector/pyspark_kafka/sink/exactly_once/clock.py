"""The clock for comparisons of the driver's times with the brokers'."""

from __future__ import annotations

import time


def wall_clock_ms() -> int:
    """Return milliseconds since the epoch, as in Kafka's timestamps."""
    return time.time_ns() // 1_000_000
