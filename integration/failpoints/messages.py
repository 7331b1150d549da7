"""The messages between the harness and a process that it started.

Invariant: messages are plain values; a function returns bytes, which its process has pickled as
Spark does. What it must not know: the functions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from integration.failpoints.hook import InjectedFault


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Run this function of `sink_calls` in a child, or with `warms_up` in the server itself.

    A warm-up loads what is otherwise loaded on first use, so that all children have it.
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
    """The failpoint of a fault is reached, and the fault is about to be injected."""

    fault: InjectedFault


@dataclass(frozen=True, slots=True)
class Resume:
    """Lets a stalled process continue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsLost:
    """The sink has logged that brokers aborted these transactions of a decision."""

    transactional_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The function returned. `reached` are the failpoints, in order."""

    value: bytes
    reached: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The function raised. `kind` is the name of the error's class, `text` the traceback."""

    kind: str
    text: str
    reached: tuple[str, ...]

    @property
    def line(self) -> str:
        """The last line of the traceback, which is the error."""
        return self.text.strip().splitlines()[-1]


@dataclass(frozen=True, slots=True)
class Died:
    """The process was killed."""


Outcome = Finished | Failed | Died
