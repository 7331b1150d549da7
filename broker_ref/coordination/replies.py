"""A result that is available now or later.

Purpose: the coordinator's result for a request that may wait for other members or for replication.
Invariant: only the first completion counts, and it wakes the waiting request. A reply is its own
purgatory key, so that no other request is checked. Must not know: requests, connections.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Result = TypeVar("Result")

Wake = Callable[[Hashable], None]
"""Checks the delayed operations of a key."""


class Reply(Generic[Result]):
    """A future result."""

    __slots__ = ("_wake", "result")

    def __init__(self, wake: Wake) -> None:
        self.result: Result | None = None
        self._wake = wake

    @property
    def is_done(self) -> bool:
        """Whether the result is available."""
        return self.result is not None

    def complete(self, result: Result) -> None:
        """Set the result, unless it is set already."""
        if self.result is None:
            self.result = result
            self._wake(self)
