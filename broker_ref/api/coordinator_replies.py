"""How handlers wait for the coordinator of groups or of transactions.

Purpose: a response now where the coordinator's reply is there, else a `Wait` for it. Invariant: the
coordinator sets every deadline, so the wait itself has none that counts. What it must not know:
what is replied.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from broker_ref.api.contract import Wait
from broker_ref.coordination.replies import Reply

Result = TypeVar("Result")

NEVER_MS: Final = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayedReply(Generic[Result]):
    """A reply, and the response that it makes."""

    reply: Reply[Result]
    respond: Callable[[Result], object]

    def try_complete(self, now_ms: int) -> object | None:
        """The response, where there is a reply."""
        del now_ms
        return None if self.reply.result is None else self.respond(self.reply.result)

    def expire(self, now_ms: int) -> object:
        """Not before the end of time."""
        raise AssertionError(f"a coordinator's reply was waited for until {now_ms}")


def answer(reply: Reply[Result], respond: Callable[[Result], object]) -> object:
    """The response to a reply that is there, or a `Wait` for it."""
    if reply.result is not None:
        return respond(reply.result)
    operation = DelayedReply(reply=reply, respond=respond)
    return Wait(operation=operation, keys=(reply,), deadline_ms=NEVER_MS)
