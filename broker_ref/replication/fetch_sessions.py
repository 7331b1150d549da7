"""Fetch sessions: what a client fetches, kept between its requests (KIP-227).

Purpose: the cache of sessions, who is let in when it is full, and the check of ids and epochs; of
each session the partitions in the order in which they are next served, and what the client was
last told of each. Invariant: never more than `slots` sessions; an id is unique among them and
never 0; a session's epoch is the one that its next request must carry. What it must not know:
logs, responses, and where randomness comes from. Source: Kafka's `FetchSession`, whose cache is
split into eight shards; this one is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.protocol.errors import ApiError
from broker_ref.protocol.identifiers import Uuid

INVALID_SESSION_ID: Final = 0
"""No session: the client sends full requests."""

INITIAL_EPOCH: Final = 0
"""A full request that asks for a new session."""

FINAL_EPOCH: Final = -1
"""A full request that wants no session, and ends the one it names."""

MIN_EVICTION_MS: Final = 120_000
"""A session unused for longer may go for any other; one younger than this has protection."""

_MAX_EPOCH: Final = 2**31 - 1

PartitionPlace = tuple[Uuid | str, int]
"""A partition as the session knows it: its topic's id, or name before version 13, and its index."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchPartition:
    """What a fetch asks of a partition; `log_start_offset` is a follower's own."""

    partition: int
    fetch_offset: int
    partition_max_bytes: int
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1
    log_start_offset: int = -1


@dataclass(slots=True, kw_only=True)
class FetchedPartition:
    """A partition that is fetched, and what its client was last told of it.

    `topic` is None as long as no topic with the id is known.
    """

    place: PartitionPlace
    topic: str | None
    topic_id: Uuid
    asked: FetchPartition
    high_watermark: int = -1
    log_start_offset: int = -1

    def is_told(self, *, high_watermark: int, log_start_offset: int) -> bool:
        """Whether the client knows these offsets."""
        return self.high_watermark == high_watermark and self.log_start_offset == log_start_offset


@dataclass(slots=True, kw_only=True)
class FetchSession:
    """The state of one session; followers' are privileged."""

    session_id: int
    privileged: bool
    by_topic_id: bool
    partitions: dict[PartitionPlace, FetchedPartition]
    created_ms: int
    last_used_ms: int
    epoch: int
    cached_size: int = 0
    evictable_by_all: bool = False
    evictable_by_privileged: bool = False

    def update(
        self,
        asked: Mapping[PartitionPlace, FetchedPartition],
        forgotten: Iterable[PartitionPlace],
    ) -> None:
        """Take in what a request adds, changes, and no longer wants."""
        for place, partition in asked.items():
            known = self.partitions.get(place)
            if known is None:
                self.partitions[place] = partition
            else:
                known.asked = partition.asked
        for place in forgotten:
            self.partitions.pop(place, None)

    def served(self, place: PartitionPlace) -> None:
        """Put a partition whose records went out behind all others, so that none starves."""
        partition = self.partitions.pop(place, None)
        if partition is not None:
            self.partitions[place] = partition

    @property
    def _eviction_key(self) -> tuple[bool, int, int]:
        return self.privileged, self.cached_size, self.session_id


class FetchSessions:
    """The sessions of one broker, at most `slots` of them."""

    def __init__(self, *, slots: int, random_bytes: Callable[[int], bytes]) -> None:
        self._slots = slots
        self._random_bytes = random_bytes
        self._sessions: dict[int, FetchSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def create(
        self,
        partitions: dict[PartitionPlace, FetchedPartition],
        *,
        privileged: bool,
        by_topic_id: bool,
        now_ms: int,
    ) -> int:
        """The id of a new session, or `INVALID_SESSION_ID` where there is no room for it."""
        if len(self._sessions) >= self._slots and not self._evict_for(
            privileged=privileged, size=len(partitions), now_ms=now_ms
        ):
            return INVALID_SESSION_ID
        session = FetchSession(
            session_id=self._new_id(),
            privileged=privileged,
            by_topic_id=by_topic_id,
            partitions=partitions,
            created_ms=now_ms,
            last_used_ms=now_ms,
            epoch=next_epoch(INITIAL_EPOCH),
        )
        self._sessions[session.session_id] = session
        self._touch(session, now_ms)
        return session.session_id

    def remove(self, session_id: int) -> None:
        """Forget a session, if it is there."""
        self._sessions.pop(session_id, None)

    def resume(
        self,
        session_id: int,
        epoch: int,
        *,
        by_topic_id: bool,
        asked: Mapping[PartitionPlace, FetchedPartition],
        forgotten: Iterable[PartitionPlace],
        now_ms: int,
    ) -> FetchSession | None:
        """The session with what its next request brings; None where no partition is left in it.

        One without partitions is closed. Raises: ApiError with FETCH_SESSION_ID_NOT_FOUND,
        INVALID_FETCH_SESSION_EPOCH, or FETCH_SESSION_TOPIC_ID_ERROR where the client went from
        names to ids or back.
        """
        session = self._sessions.get(session_id)
        if session is None:
            raise ApiError(
                ErrorCode.fetch_session_id_not_found,
                f"There is no fetch session {session_id}: send a full request.",
            )
        if session.epoch != epoch:
            raise ApiError(
                ErrorCode.invalid_fetch_session_epoch,
                f"Fetch session {session_id} is at epoch {session.epoch}, not {epoch}.",
            )
        if session.by_topic_id != by_topic_id:
            raise ApiError(
                ErrorCode.fetch_session_topic_id_error,
                f"Fetch session {session_id} names topics by "
                f"{'id' if session.by_topic_id else 'name'}: begin a new one to change that.",
            )
        session.update(asked, forgotten)
        if not session.partitions:
            self.remove(session_id)
            return None
        self._touch(session, now_ms)
        session.epoch = next_epoch(session.epoch)
        return session

    def _touch(self, session: FetchSession, now_ms: int) -> None:
        session.last_used_ms = now_ms
        session.cached_size = len(session.partitions)
        session.evictable_by_all = now_ms - session.created_ms > MIN_EVICTION_MS
        session.evictable_by_privileged = not session.privileged or session.evictable_by_all

    def _evict_for(self, *, privileged: bool, size: int, now_ms: int) -> bool:
        """Make room for a new session, which must be worth more than what goes.

        The least recently used goes if it is stale; otherwise the one that is worth least of
        those that the newcomer may take the place of: followers' are worth more than consumers',
        those with more partitions more than those with fewer.
        """
        if not self._sessions:
            return False
        oldest = min(self._sessions.values(), key=lambda each: (each.last_used_ms, each.session_id))
        if now_ms - oldest.last_used_ms > MIN_EVICTION_MS:
            self.remove(oldest.session_id)
            return True
        evictable = [
            each
            for each in self._sessions.values()
            if (each.evictable_by_privileged if privileged else each.evictable_by_all)
        ]
        least = min(evictable, key=lambda each: each._eviction_key, default=None)
        if least is None or (privileged, size, 0) < least._eviction_key:
            return False
        self.remove(least.session_id)
        return True

    def _new_id(self) -> int:
        while True:
            candidate = int.from_bytes(self._random_bytes(4)) & 0x7FFF_FFFF
            if candidate != INVALID_SESSION_ID and candidate not in self._sessions:
                return candidate


def next_epoch(epoch: int) -> int:
    """The epoch after `epoch`; it wraps to 1, as 0 means a new session."""
    if epoch < 0:
        return FINAL_EPOCH
    return 1 if epoch == _MAX_EPOCH else epoch + 1
