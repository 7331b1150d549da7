"""The timers of the members of consumer groups.

Invariant: a member has at most one timer of each kind. A new timer replaces the previous one.
Source: Kafka's `CoordinatorTimer` and the keys in `GroupMetadataManager`.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from broker_ref.schedule import Schedule, Timer


class TimerKind(Enum):
    """The kind of a timer: the action that a member must perform before the timer expires."""

    SESSION = "send a heartbeat"
    REBALANCE = "revoke partitions"
    JOIN = "rejoin with the classic protocol"
    SYNC = "send SyncGroup with the classic protocol"


class MemberTimers:
    """The timers of all members in a shard."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._timers: dict[tuple[str, str], dict[TimerKind, Timer]] = {}

    def start(
        self,
        kind: TimerKind,
        group_id: str,
        member_id: str,
        deadline_ms: int,
        elapsed: Callable[[int], None],
    ) -> None:
        """Start or restart a timer."""
        self.cancel(kind, group_id, member_id)
        timers = self._timers.setdefault((group_id, member_id), {})
        timers[kind] = self._schedule.at(deadline_ms, elapsed)

    def is_running(self, kind: TimerKind, group_id: str, member_id: str) -> bool:
        """Return whether a timer has been started and has not expired."""
        timer = self._timers.get((group_id, member_id), {}).get(kind)
        return timer is not None and timer.is_pending

    def cancel(self, kind: TimerKind, group_id: str, member_id: str) -> None:
        """Cancel a timer, if it is running."""
        timer = self._timers.get((group_id, member_id), {}).pop(kind, None)
        if timer is not None:
            timer.cancel()

    def cancel_member(self, group_id: str, member_id: str) -> None:
        """Cancel all timers of a member."""
        for timer in self._timers.pop((group_id, member_id), {}).values():
            timer.cancel()

    def cancel_all(self) -> None:
        """Cancel all timers."""
        for group_id, member_id in tuple(self._timers):
            self.cancel_member(group_id, member_id)
