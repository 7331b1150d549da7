"""Incremental fetch sessions (KIP-227): the leader stores the partitions that a client fetches.

The cache creates and evicts sessions, and checks session ids and session epochs. A session contains
its partitions in the order in which they are served, and the offsets that were last sent to the
client. A partition in a session is idle if the client has received all data of the partition. In a
follower's session, a partition can be idle only if the follower is in sync. A fetch does not
process idle partitions. A partition becomes active again when it changes. Invariants: there are at
most `slots` sessions. Session ids are unique and never 0. The epoch of a session is the epoch that
its next request must contain. Source: Kafka's `FetchSession`. Kafka divides the cache into eight
shards, and visits all partitions of a session during each fetch.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import field
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.frozen import dataclass
from broker_ref.protocol.errors import ApiError
from broker_ref.protocol.identifiers import Uuid
from broker_ref.replication.remote_replica import LastFetch, RemoteReplica

INVALID_SESSION_ID: Final = 0
"""The session id of full fetch requests without a session."""

INITIAL_EPOCH: Final = 0
"""The session epoch of a full fetch request that creates a session."""

FINAL_EPOCH: Final = -1
"""The session epoch of a full fetch request that closes its session and creates no session."""

MIN_EVICTION_MS: Final = 120_000
"""The idle time after which a session may be evicted by any new session."""

_MAX_EPOCH: Final = 2**31 - 1

PartitionPlace = tuple[Uuid | str, int]
"""The topic id (before Fetch version 13, the topic name) and the partition index."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchPartition:
    """A partition in a fetch request; `log_start_offset` is the log start offset of a follower."""

    partition: int
    fetch_offset: int
    partition_max_bytes: int
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1
    log_start_offset: int = -1


@dataclass(slots=True, kw_only=True)
class CachedPartition:
    """A partition in a fetch session, with the offsets that the client has received.

    `topic` is None if the broker does not know the topic id.
    """

    place: PartitionPlace
    topic: str | None
    topic_id: Uuid
    requested: FetchPartition
    high_watermark: int = -1
    log_start_offset: int = -1

    def is_up_to_date(self, *, high_watermark: int, log_start_offset: int) -> bool:
        """Return whether the client has already received both offsets in a response."""
        return self.high_watermark == high_watermark and self.log_start_offset == log_start_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSessionKey:
    """The purgatory key of a fetch session.

    Operations with this key are checked when one of the session's partitions changes, and when the
    session is removed.
    """

    session_id: int


@dataclass(slots=True, kw_only=True)
class FetchSession:
    """A fetch session; the sessions of followers are privileged.

    `active` contains the partitions that are not idle, in the order in which they are served.
    `changed` contains the partitions that have changed since the last request.
    """

    session_id: int
    privileged: bool
    by_topic_id: bool
    partitions: dict[PartitionPlace, CachedPartition]
    created_ms: int
    last_used_ms: int
    epoch: int
    is_removed: bool = False
    cached_size: int = 0
    evictable_by_all: bool = False
    evictable_by_privileged: bool = False
    active: dict[PartitionPlace, CachedPartition] = field(default_factory=dict)
    changed: dict[PartitionPlace, None] = field(default_factory=dict)
    last_fetch: LastFetch
    client: Hashable = None
    """The values of the last request that determine what the client may read."""
    watched: dict[PartitionPlace, Hashable] = field(default_factory=dict)
    """The keys of the partitions that have been idle since they were added to the session."""
    _idle: dict[PartitionPlace, RemoteReplica | None] = field(default_factory=dict)

    @property
    def has_idle(self) -> bool:
        """Return whether any partition is idle."""
        return bool(self._idle)

    def begin_idle(self, place: PartitionPlace, follower: RemoteReplica | None) -> None:
        """Mark a partition as idle until it changes. `follower` is None for a consumer."""
        self.active.pop(place, None)
        self._idle[place] = follower
        if follower is not None:
            follower.begin_idle(self.last_fetch)

    def end_idle(self, place: PartitionPlace) -> None:
        """Mark a partition as active, so that the next requests check it."""
        partition = self.partitions.get(place)
        if partition is not None:
            self.active.setdefault(place, partition)
        follower = self._idle.pop(place, None)
        if follower is not None:
            follower.end_idle()

    def begin_request(self, client: Hashable, *, is_valid: bool = True, now_ms: int) -> None:
        """Prepare the session for a new request, and store the time of the request.

        In an idle partition, a follower counts as caught up at the time of its latest request. All
        partitions become active if `is_valid` is false or if the request comes from another client.
        """
        if not is_valid or client != self.client:
            self.client = client
            for place in tuple(self._idle):
                self.end_idle(place)
        self.changed.clear()
        self.last_fetch.time_ms = now_ms

    def update(
        self,
        requested: Mapping[PartitionPlace, CachedPartition],
        forgotten: Iterable[PartitionPlace],
    ) -> None:
        """Add, update and remove partitions according to a request."""
        for place, partition in requested.items():
            known = self.partitions.get(place)
            if known is None:
                self.partitions[place] = partition
            else:
                known.requested = partition.requested
            self.end_idle(place)
        for place in forgotten:
            self.partitions.pop(place, None)
            self.end_idle(place)
            self.active.pop(place, None)

    def move_to_end(self, place: PartitionPlace) -> None:
        """Move a partition behind the other partitions after its records have been sent.

        The partitions of a session are therefore served in turn.
        """
        for partitions in (self.partitions, self.active):
            partition = partitions.pop(place, None)
            if partition is not None:
                partitions[place] = partition

    @property
    def _eviction_key(self) -> tuple[bool, int, int]:
        return self.privileged, self.cached_size, self.session_id


class FetchSessionCache:
    """The cache of the fetch sessions on one broker, which contains at most `slots` sessions.

    `wake` is called with the key of each removed session, so that a waiting fetch completes.
    """

    def __init__(
        self,
        *,
        slots: int,
        random_bytes: Callable[[int], bytes],
        wake: Callable[[FetchSessionKey], None],
    ) -> None:
        self._slots = slots
        self._random_bytes = random_bytes
        self._wake = wake
        self._sessions: dict[int, FetchSession] = {}
        self._watching: dict[Hashable, dict[int, PartitionPlace]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def create(
        self,
        partitions: dict[PartitionPlace, CachedPartition],
        *,
        privileged: bool,
        by_topic_id: bool,
        now_ms: int,
    ) -> int:
        """Create a session and return its id, or `INVALID_SESSION_ID` if the cache is full."""
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
            active=dict(partitions),
            last_fetch=LastFetch(time_ms=now_ms),
        )
        self._sessions[session.session_id] = session
        self._touch(session, now_ms)
        return session.session_id

    def remove(self, session_id: int) -> None:
        """Remove a session, if it exists."""
        session = self._sessions.pop(session_id, None)
        if session is None:
            return
        for place in tuple(session.watched):
            self._unwatch(session, place)
        session.is_removed = True
        self._wake(FetchSessionKey(session_id=session_id))

    def resume(
        self,
        session_id: int,
        epoch: int,
        *,
        by_topic_id: bool,
        requested: Mapping[PartitionPlace, CachedPartition],
        forgotten: Iterable[PartitionPlace],
        now_ms: int,
    ) -> FetchSession | None:
        """Apply the next request to a session and return the session.

        If no partitions remain in the session, close the session and return None. Raises: ApiError
        with FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH, or
        FETCH_SESSION_TOPIC_ID_ERROR if the client has switched between topic names and topic ids.
        """
        session = self._sessions.get(session_id)
        if session is None:
            raise ApiError(
                ErrorCode.fetch_session_id_not_found,
                f"Fetch session {session_id} does not exist. Send a full fetch request.",
            )
        if session.epoch != epoch:
            raise ApiError(
                ErrorCode.invalid_fetch_session_epoch,
                f"Fetch session {session_id} has epoch {session.epoch}, not {epoch}.",
            )
        if session.by_topic_id != by_topic_id:
            raise ApiError(
                ErrorCode.fetch_session_topic_id_error,
                f"Fetch session {session_id} identifies topics by "
                f"{'id' if session.by_topic_id else 'name'}, but the request does not. Create a "
                "new session.",
            )
        forgotten = tuple(forgotten)
        session.update(requested, forgotten)
        for place in forgotten:
            self._unwatch(session, place)
        if not session.partitions:
            self.remove(session_id)
            return None
        self._touch(session, now_ms)
        session.epoch = next_epoch(session.epoch)
        return session

    def watch(self, session: FetchSession, place: PartitionPlace, key: Hashable) -> None:
        """Mark the partition at `place` as active when the partition with this key changes."""
        self._watching.setdefault(key, {})[session.session_id] = place
        session.watched[place] = key

    def _unwatch(self, session: FetchSession, place: PartitionPlace) -> None:
        key = session.watched.pop(place, None)
        watching = self._watching.get(key, {})
        # If a topic was deleted and created again, the places of both topic ids have the same key.
        if watching.get(session.session_id) == place:
            del watching[session.session_id]
            if not watching:
                del self._watching[key]

    def partitions_changed(self, keys: Iterable[Hashable]) -> list[FetchSessionKey]:
        """Handle changes to partitions, and return the keys of the sessions that watch them."""
        woken = []
        for key in keys:
            for session_id, place in self._watching.get(key, {}).items():
                session = self._sessions[session_id]
                session.end_idle(place)
                session.changed[place] = None
                woken.append(FetchSessionKey(session_id=session_id))
        return woken

    def _touch(self, session: FetchSession, now_ms: int) -> None:
        session.last_used_ms = now_ms
        session.cached_size = len(session.partitions)
        session.evictable_by_all = now_ms - session.created_ms > MIN_EVICTION_MS
        session.evictable_by_privileged = not session.privileged or session.evictable_by_all

    def _evict_for(self, *, privileged: bool, size: int, now_ms: int) -> bool:
        """Evict a session to make room for a new session; return whether a session was evicted.

        The least recently used session is evicted if it has been unused for `MIN_EVICTION_MS`.
        Otherwise, the session with the lowest priority is evicted if its priority is lower than
        that of the new session. Sessions of followers have a higher priority than sessions of
        consumers, and sessions with more partitions have a higher priority than sessions with fewer
        partitions.
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
    """Return the next session epoch, which wraps around to 1 because 0 means a new session."""
    if epoch < 0:
        return FINAL_EPOCH
    return 1 if epoch == _MAX_EPOCH else epoch + 1
