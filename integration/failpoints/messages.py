"""What is said between a process of the matrix and who started it.

Invariant: plain values; what a part returns is bytes, pickled in that process as Spark does. What it
must not know: parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from integration.failpoints.hook import Order


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Run this function of `parts`; with `warms_up` in the server itself.

    Much is loaded or made when it is first used: children then have it from the beginning.
    """

    part: str
    arguments: tuple[Any, ...]
    orders: tuple[Order, ...] = ()
    warms_up: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The first word of a process."""

    process_id: int


@dataclass(frozen=True, slots=True)
class At:
    """The failpoint of an order is met, and the order is about to be carried out."""

    order: Order


@dataclass(frozen=True, slots=True)
class GoOn:
    """To a process that is stalled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsLost:
    """The sink has logged that brokers aborted these transactions of a decision."""

    transactional_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The part returned. `met` are the failpoints, in order."""

    value: bytes
    met: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The part raised. `kind` is the name of the error's class, `text` its traceback."""

    kind: str
    text: str
    met: tuple[str, ...]

    @property
    def line(self) -> str:
        """The last line: the error itself."""
        return self.text.strip().splitlines()[-1]


@dataclass(frozen=True, slots=True)
class Died:
    """The process was killed."""


Outcome = Finished | Failed | Died
