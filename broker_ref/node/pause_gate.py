"""A node that a test has paused: it takes nothing in, and goes on as if it had only been slow.

Purpose: keep the events that come to a node while `Faults.pause` has it stand still, and hand them
on afterwards, in order. To others it looks like a process that was sent SIGSTOP: connections stay
open and nothing answers. Invariant: no event is lost but `TimePassed`, which is to be sent again
when the node goes on. What it must not know: what an event means.
"""

from __future__ import annotations

from collections.abc import Sequence

from broker_ref.events import Event, TimePassed
from broker_ref.faults import Faults


class PauseGate:
    """What has come to one node while it was paused."""

    def __init__(self, faults: Faults, *, node_id: int) -> None:
        self._faults = faults
        self._node_id = node_id
        self._kept: list[Event] = []

    @property
    def is_on(self) -> bool:
        """Whether the node is paused: it is to have no deadlines."""
        return self._faults.is_paused(self._node_id)

    def due(self, event: Event) -> Sequence[Event]:
        """The events that the node is to take in now that this one has come."""
        if self.is_on:
            if not isinstance(event, TimePassed):
                self._kept.append(event)
            return ()
        if not self._kept:
            return (event,)
        kept, self._kept = self._kept, []
        return (*kept, event)
