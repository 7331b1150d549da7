"""Polling of a condition until a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable

INTERVAL_S = 0.02


def eventually(condition: Callable[[], bool], *, timeout_s: float = 30.0) -> None:
    """Wait until `condition()` returns True; fail the test after the timeout."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, f"the condition did not hold within {timeout_s} s"
        time.sleep(INTERVAL_S)
