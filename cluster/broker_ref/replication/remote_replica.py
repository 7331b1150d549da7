"""The state that a leader tracks for one follower, updated by the follower's fetch requests.

Partitions that are idle in a fetch session are omitted from the follower's requests. For these
partitions, the session stores only the time of its last request. Invariant: `last_caught_up_ms` is
the latest time at which the follower is known to have replicated the leader's entire log. Source:
Kafka's `Replica` and `ReplicaState`.
"""

from __future__ import annotations

from typing import Final

from broker_ref.frozen import dataclass

UNKNOWN_OFFSET: Final = -1
"""The offset of a follower that has not yet fetched from this leader."""


@dataclass(slots=True, kw_only=True)
class LastFetch:
    """The time of the last fetch request in a fetch session."""

    time_ms: int


@dataclass(slots=True, kw_only=True)
class RemoteReplica:
    """A follower; `broker_epoch` is None before its first fetch request."""

    broker_id: int
    log_start_offset: int = UNKNOWN_OFFSET
    log_end_offset: int = UNKNOWN_OFFSET
    broker_epoch: int | None = None
    _last_caught_up_ms: int = 0
    _last_fetch_ms: int = 0
    _leader_end_offset_at_last_fetch: int = UNKNOWN_OFFSET
    _idle_in: LastFetch | None = None

    @property
    def last_caught_up_ms(self) -> int:
        """Return the latest time at which the follower was caught up with the leader's log."""
        if self._idle_in is None:
            return self._last_caught_up_ms
        return max(self._last_caught_up_ms, self._idle_in.time_ms)

    def begin_idle(self, last_fetch: LastFetch) -> None:
        """Treat the follower as caught up at each fetch of its session until `end_idle()`."""
        self._idle_in = last_fetch

    def end_idle(self) -> None:
        """Stop treating the follower as caught up, and store the time of its last fetch request."""
        if self._idle_in is not None:
            self._last_caught_up_ms = self.last_caught_up_ms
            self._last_fetch_ms = max(self._last_fetch_ms, self._idle_in.time_ms)
            self._idle_in = None

    def reset(
        self, *, in_sync: bool, is_new_leader: bool, leader_end_offset: int, now_ms: int
    ) -> None:
        """Reset the state for a new leader epoch; a member of the ISR is considered caught up."""
        self._idle_in = None
        if is_new_leader:
            self.log_start_offset = UNKNOWN_OFFSET
            self.log_end_offset = UNKNOWN_OFFSET
            self.broker_epoch = None
        self._leader_end_offset_at_last_fetch = (
            UNKNOWN_OFFSET if is_new_leader else leader_end_offset
        )
        self._last_fetch_ms = now_ms if in_sync and not is_new_leader else 0
        self._last_caught_up_ms = now_ms if in_sync else 0

    def update_fetch_state(
        self,
        *,
        fetch_offset: int,
        log_start_offset: int,
        broker_epoch: int,
        leader_end_offset: int,
        now_ms: int,
    ) -> None:
        """Update the state after a fetch; the follower has all records below `fetch_offset`.

        If `fetch_offset` is at least the leader's log end offset at the previous fetch request, the
        follower was caught up at the time of that request. This check is necessary because a
        follower may never reach the current log end offset while new records keep arriving.
        """
        self.end_idle()
        if fetch_offset >= leader_end_offset:
            self._last_caught_up_ms = max(self._last_caught_up_ms, now_ms)
        elif fetch_offset >= self._leader_end_offset_at_last_fetch:
            self._last_caught_up_ms = max(self._last_caught_up_ms, self._last_fetch_ms)
        self.log_start_offset = log_start_offset
        self.log_end_offset = fetch_offset
        self.broker_epoch = broker_epoch
        self._leader_end_offset_at_last_fetch = max(
            leader_end_offset, self._leader_end_offset_at_last_fetch
        )
        self._last_fetch_ms = now_ms

    def is_caught_up(self, *, leader_end_offset: int, lag_time_max_ms: int, now_ms: int) -> bool:
        """Return whether the follower has caught up within the last `replica.lag.time.max.ms`."""
        return (
            self.log_end_offset == leader_end_offset
            or now_ms - self.last_caught_up_ms <= lag_time_max_ms
        )
