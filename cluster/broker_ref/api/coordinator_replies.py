"""Delayed responses from handlers that call the group coordinator or the transaction coordinator.

The coordinator sets all deadlines, so a handler's `Wait` has no deadline of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar

from broker_ref.api.contract import Wait
from broker_ref.coordination.replies import Reply
from broker_ref.frozen import dataclass

Result = TypeVar("Result")

NEVER_MS: Final = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayedReply(Generic[Result]):
    """A coordinator's reply, and the function that converts its result to a response."""

    reply: Reply[Result]
    respond: Callable[[Result], object]

    def try_complete(self, now_ms: int) -> object | None:
        """Return the response if the coordinator has replied."""
        del now_ms
        return None if self.reply.result is None else self.respond(self.reply.result)

    def expire(self, now_ms: int) -> object:
        """Raise AssertionError, because the wait has no deadline and cannot expire."""
        raise AssertionError(
            f"A wait without a deadline expired at {now_ms} ms, before the coordinator replied."
        )


def respond_to(reply: Reply[Result], respond: Callable[[Result], object]) -> object:
    """Return the response if the coordinator has replied, otherwise a `Wait`."""
    if reply.result is not None:
        return respond(reply.result)
    operation = DelayedReply(reply=reply, respond=respond)
    return Wait(operation=operation, keys=(reply,), deadline_ms=NEVER_MS)
