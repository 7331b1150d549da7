"""What happens at a failpoint: it is written down, and an order may be carried out.

Purpose: `met`, which `PYSPARK_KAFKA_FAILPOINTS` names. Invariant: an order is carried out once,
where its failpoint is first met; who gave it is told before it is. What it must not know: what
the process does.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

NAME: Final = f"{__name__}:met"
"""The value of `PYSPARK_KAFKA_FAILPOINTS`."""


class Action(Enum):
    """What becomes of a process at a failpoint."""

    KILL = "killed"
    STALL = "stalled"
    FAIL = "fails"


class FailedHere(OSError):  # noqa: N818
    """What a failpoint raises that is to fail, as a broken connection might."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Do this when the failpoint is met for the first time."""

    failpoint: str
    action: Action


@dataclass(kw_only=True)
class Watch:
    """What this process has been ordered to do, and what it has met.

    `tell` says to who ordered it that the time has come, and `wait` returns when a process that is
    to stall may go on.
    """

    orders: tuple[Order, ...]
    tell: Callable[[Order], None]
    wait: Callable[[], None]
    met: list[str] = field(default_factory=list)

    def meet(self, failpoint: str) -> None:
        is_first = failpoint not in self.met
        self.met.append(failpoint)
        for order in self.orders:
            if is_first and order.failpoint == failpoint:
                self.tell(order)
                self._carry_out(order)

    def _carry_out(self, order: Order) -> None:
        match order.action:
            case Action.KILL:
                os.kill(os.getpid(), signal.SIGKILL)
            case Action.STALL:
                self.wait()
            case Action.FAIL:
                raise FailedHere(f"the test lets {order.failpoint} fail")


_watch: Watch | None = None


def watch(given: Watch) -> None:
    """From now on failpoints of this process are met under this watch."""
    global _watch  # noqa: PLW0603
    _watch = given


def met(failpoint: str) -> None:
    """A failpoint is met."""
    if _watch is not None:
        _watch.meet(failpoint)
