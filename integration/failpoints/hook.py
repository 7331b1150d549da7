"""The failpoint hook: records each failpoint and injects faults.

The `PYSPARK_KAFKA_FAILPOINTS` environment variable names this module's `reached` function.
Invariant: a fault is injected once, when its failpoint is first reached. The test harness is
notified before the fault is injected.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

NAME: Final = f"{__name__}:reached"
"""The value of `PYSPARK_KAFKA_FAILPOINTS`."""


class Action(Enum):
    """How an injected fault affects the process."""

    KILL = "killed"
    STALL = "stalled"
    FAIL = "fails"


class InjectedError(OSError):
    """The error that `Action.FAIL` raises. It resembles the error for a broken connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectedFault:
    """A failpoint, and the action to perform when the failpoint is first reached."""

    failpoint: str
    action: Action


@dataclass(kw_only=True)
class Recorder:
    """Records the failpoints of this process in order, and injects faults.

    `notify` reports a fault to the test harness before the fault is injected. `wait` blocks a
    stalled process and returns when the process should continue.
    """

    faults: tuple[InjectedFault, ...]
    notify: Callable[[InjectedFault], None]
    wait: Callable[[], None]
    reached: list[str] = field(default_factory=list)

    def reach(self, failpoint: str) -> None:
        is_first = failpoint not in self.reached
        self.reached.append(failpoint)
        for fault in self.faults:
            if is_first and fault.failpoint == failpoint:
                self.notify(fault)
                self._inject(fault)

    def _inject(self, fault: InjectedFault) -> None:
        match fault.action:
            case Action.KILL:
                os.kill(os.getpid(), signal.SIGKILL)
            case Action.STALL:
                self.wait()
            case Action.FAIL:
                raise InjectedError(f"injected at {fault.failpoint}")


_recorder: Recorder | None = None


def install(recorder: Recorder) -> None:
    """Install the recorder of this process."""
    global _recorder  # noqa: PLW0603
    _recorder = recorder


def reached(failpoint: str) -> None:
    """Record a failpoint. The sink calls this function."""
    if _recorder is not None:
        _recorder.reach(failpoint)
