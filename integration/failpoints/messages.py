"""The messages between the test harness and a process that the harness has started.

Invariant: messages are plain values. A process returns the result of its function as pickled bytes,
as in Spark.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from integration.failpoints.hook import InjectedFault


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request to run a function of `sink_calls` in a child process.

    With `warms_up`, the fork server itself runs the function. The call loads modules that would
    otherwise be loaded on first use, so all later child processes inherit the loaded modules.
    """

    function: str
    arguments: tuple[Any, ...]
    faults: tuple[InjectedFault, ...] = ()
    warms_up: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The first message of a process."""

    process_id: int


@dataclass(frozen=True, slots=True)
class FaultReached:
    """The process has reached the failpoint of a fault and is about to inject the fault."""

    fault: InjectedFault


@dataclass(frozen=True, slots=True)
class Resume:
    """A request to resume a stalled process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsLost:
    """The sink has logged that brokers aborted these transactions of a decision."""

    transactional_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The function returned `value`. `reached` contains the reached failpoints, in order."""

    value: bytes
    reached: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The function raised an error.

    `kind` is the name of the error's class, and `text` is the traceback.
    """

    kind: str
    text: str
    reached: tuple[str, ...]

    @property
    def line(self) -> str:
        """The last line of the traceback, which contains the error."""
        return self.text.strip().splitlines()[-1]


@dataclass(frozen=True, slots=True)
class Died:
    """The process was killed."""


Outcome = Finished | Failed | Died
