"""The result of a request that may complete later.

A coordinator returns a `Reply` for a request that may have to wait for other members or for
replication. Invariants: the first completion wakes the waiting request, and later completions have
no effect. Each reply is a separate purgatory key, so the completion of a reply does not trigger
checks of other delayed operations.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Result = TypeVar("Result")

Wake = Callable[[Hashable], None]
"""A callback that checks the delayed operations of a key."""


class Reply(Generic[Result]):
    """The result of a request, which may become available later."""

    __slots__ = ("_wake", "result")

    def __init__(self, wake: Wake) -> None:
        self.result: Result | None = None
        self._wake = wake

    @property
    def is_done(self) -> bool:
        """Return whether the result is available."""
        return self.result is not None

    def complete(self, result: Result) -> None:
        """Set the result if it is not yet set."""
        if self.result is None:
            self.result = result
            self._wake(self)
