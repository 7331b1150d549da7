"""Queues the events of a node that a test has paused.

Purpose: queue the events of a node while `Faults.pause` pauses it, and return them afterwards, in
order. To others it looks like a process that was stopped with SIGSTOP: connections stay open and
nothing is answered. Invariant: no event is lost except `TimePassed`, which is sent again when the
node resumes. Must not know: what an event means.
"""

from __future__ import annotations

from collections.abc import Sequence

from broker_ref.events import Event, TimePassed
from broker_ref.faults import Faults


class PauseGate:
    """The queued events of one node."""

    def __init__(self, faults: Faults, *, node_id: int) -> None:
        self._faults = faults
        self._node_id = node_id
        self._kept: list[Event] = []

    @property
    def is_on(self) -> bool:
        """Return whether the node is paused and has no deadlines."""
        return self._faults.is_paused(self._node_id)

    def due(self, event: Event) -> Sequence[Event]:
        """Return the events that the node has to handle now."""
        if self.is_on:
            if not isinstance(event, TimePassed):
                self._kept.append(event)
            return ()
        if not self._kept:
            return (event,)
        kept, self._kept = self._kept, []
        return (*kept, event)
