"""A limit on the time in which producers must make progress after a fault.

A fault is active while a node is down or paused, a link is cut or slow, a disk fails, or leaders
are replaced. Invariant: if no fault has been active for `PROGRESS_LIMIT_MS`, every idempotent
producer has received an acknowledgment during that time. At the end of a run, all clients must
finish.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from integration.simulation.invariants import InvariantViolationError
from integration.simulation.producers import IdempotentProducer

PROGRESS_LIMIT_MS: Final = 5_000
"""The limit is several session and request timeouts, and at least ten producer intervals."""


class Progress:
    """The acknowledgments of producers since the last fault."""

    def __init__(self) -> None:
        self._calm_since_ms: int | None = None
        self._acknowledged: dict[IdempotentProducer, int] = {}

    def check(
        self, producers: Iterable[IdempotentProducer], *, has_fault: bool, now_ms: int
    ) -> None:
        """Raise `InvariantViolationError` if a producer makes no progress."""
        if has_fault:
            self._calm_since_ms = None
            return
        if self._calm_since_ms is None:
            self._calm_since_ms = now_ms
            self._acknowledged = {each: each.acknowledged for each in producers}
        elif now_ms - self._calm_since_ms >= PROGRESS_LIMIT_MS:
            for producer, acknowledged in self._acknowledged.items():
                if producer.acknowledged == acknowledged:
                    raise InvariantViolationError(
                        f"{producer.name} has received no acknowledgment for "
                        f"{now_ms - self._calm_since_ms} ms, although no fault was active"
                    )
            self._calm_since_ms = None
