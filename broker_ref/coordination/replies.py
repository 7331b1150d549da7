"""An answer that is given now or later.

Purpose: what the coordinator hands out for a request that may have to wait for other members or
for the log's replicas. Invariant: completed once; the first completion counts, and wakes who waits
for it. A reply is its own key for that: nobody else's wait is looked at. What it must not know:
requests, connections, and who waits.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Result = TypeVar("Result")

Wake = Callable[[Hashable], None]
"""Has those asked again who wait for a key."""


class Reply(Generic[Result]):
    """What will be a result."""

    __slots__ = ("_wake", "result")

    def __init__(self, wake: Wake) -> None:
        self.result: Result | None = None
        self._wake = wake

    @property
    def is_done(self) -> bool:
        """Whether there is a result."""
        return self.result is not None

    def complete(self, result: Result) -> None:
        """Give the result; what was given before stays."""
        if self.result is None:
            self.result = result
            self._wake(self)
