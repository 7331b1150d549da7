"""Queues the events of a paused node.

A test pauses a node with `Faults.pause`. When the node resumes, it handles the queued events in
order. A paused node behaves like a process that has received SIGSTOP: its connections stay open,
and no request receives a response. Invariant: no event is lost except `TimePassed`, which is sent
again when the node resumes.
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
        """Return whether the node is paused. Its deadlines then do not expire."""
        return self._faults.is_paused(self._node_id)

    def due(self, event: Event) -> Sequence[Event]:
        """Return the events that the node must handle.

        The result is empty if the node is paused.
        """
        if self._faults.is_paused(self._node_id):
            if not isinstance(event, TimePassed):
                self._kept.append(event)
            return ()
        if not self._kept:
            return (event,)
        kept, self._kept = self._kept, []
        return (*kept, event)
