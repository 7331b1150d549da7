"""Fetch contexts: the partitions to read and the responses to send, with or without a session.

A request and its session (KIP-227) determine which partitions are read and which partition
responses are sent. Invariant: a session stores exactly the values that were sent. Source:
`org.apache.kafka.server.FetchContext` and `FetchSession`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import ClassVar, Final

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import Broker, Call
from broker_ref.api.fetch_messages import NOT_DIVERGING, FetchRequest, PartitionResponse
from broker_ref.frozen import dataclass
from broker_ref.protocol.errors import ApiError
from broker_ref.protocol.identifiers import Uuid
from broker_ref.replication.broker_states import BrokerStates
from broker_ref.replication.fetch_session_cache import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    INVALID_SESSION_ID,
    CachedPartition,
    FetchSession,
    FetchSessionCache,
    FetchSessionKey,
    PartitionPlace,
)
from broker_ref.replication.remote_replica import RemoteReplica
from broker_ref.security.acls import AclOperation, ResourceType

FIRST_VERSION_BY_TOPIC_ID: Final = 13

PartitionResponses = dict[PartitionPlace, PartitionResponse]


@dataclass(slots=True, kw_only=True)
class SessionlessFetchContext:
    """A full fetch without a session. All partition responses are sent."""

    is_incremental: ClassVar[bool] = False
    """Whether the client has already received responses in this session."""

    partitions: dict[PartitionPlace, CachedPartition]

    @property
    def has_idle(self) -> bool:
        """Return whether the request belongs to a session with idle partitions."""
        return False

    @property
    def is_obsolete(self) -> bool:
        """Return whether the request no longer receives changes from its session."""
        return False

    def keys(self) -> tuple[Hashable, ...]:
        """Return the keys that a waiting request watches in addition to its partitions."""
        return ()

    def take_changed(self) -> list[CachedPartition]:
        """Return the watched partitions of the session that have changed since the last call."""
        return []

    def begin_idle(
        self, cached: CachedPartition, key: Hashable, follower: RemoteReplica | None
    ) -> bool:
        """Make a partition idle if possible, and return whether it is idle."""
        del cached, key, follower
        return False

    def close(self, responses: PartitionResponses, now_ms: int) -> tuple[int, PartitionResponses]:
        """Return the session id and the partition responses to send."""
        del now_ms
        return INVALID_SESSION_ID, responses


@dataclass(slots=True, kw_only=True)
class FullFetchContext(SessionlessFetchContext):
    """A full fetch that creates a session if the cache has room.

    All partition responses are sent.
    """

    sessions: FetchSessionCache
    from_follower: bool
    by_topic_id: bool

    def close(self, responses: PartitionResponses, now_ms: int) -> tuple[int, PartitionResponses]:
        """Return the id of the new session and all partition responses."""
        partitions = {place: self.partitions[place] for place in responses}
        for place, partition in partitions.items():
            _update_cached(partition, responses[place])
        session_id = self.sessions.create(
            partitions,
            privileged=self.from_follower,
            by_topic_id=self.by_topic_id,
            now_ms=now_ms,
        )
        return session_id, responses


@dataclass(slots=True, kw_only=True)
class IncrementalFetchContext(SessionlessFetchContext):
    """A fetch in an existing session. Only partition responses with changes are sent."""

    is_incremental: ClassVar[bool] = True
    sessions: FetchSessionCache
    session: FetchSession
    epoch: int
    """The epoch of the session when the request was accepted."""
    from_follower: bool

    @property
    def has_idle(self) -> bool:
        """Return whether the session has idle partitions."""
        return self.session.has_idle

    @property
    def is_obsolete(self) -> bool:
        """Return whether the session was removed or has received a later request."""
        return self.session.is_removed or self._is_superseded

    @property
    def _is_superseded(self) -> bool:
        return self.session.epoch != self.epoch

    def keys(self) -> tuple[Hashable, ...]:
        """Return the session's purgatory key, which covers all of its watched partitions."""
        return (FetchSessionKey(session_id=self.session.session_id),)

    def take_changed(self) -> list[CachedPartition]:
        """Return the watched partitions that have changed since the last call."""
        if self._is_superseded:
            return []
        changed, self.session.changed = self.session.changed, {}
        found = [self.session.partitions[each] for each in changed if each in self.session.active]
        self.partitions.update((partition.place, partition) for partition in found)
        return found

    def begin_idle(
        self, cached: CachedPartition, key: Hashable, follower: RemoteReplica | None
    ) -> bool:
        """Make a partition idle if the client is a consumer or an in-sync follower.

        Return whether the partition is idle now.
        """
        if follower is None and self.from_follower:
            return False
        self.sessions.watch(self.session, cached.place, key)
        self.session.begin_idle(cached.place, follower)
        return True

    def close(self, responses: PartitionResponses, now_ms: int) -> tuple[int, PartitionResponses]:
        """Return the session id and the partition responses to send.

        Partitions with records move to the end of the session's order. If the session was removed
        while the request waited, the response still contains the session id, as in Kafka. The
        client's next request then fails with FETCH_SESSION_ID_NOT_FOUND.

        Raises: ApiError (INVALID_FETCH_SESSION_EPOCH) if the epoch of the session has changed.
        """
        del now_ms
        if self._is_superseded:
            raise ApiError(
                ErrorCode.invalid_fetch_session_epoch,
                f"Fetch session {self.session.session_id} advanced to epoch {self.session.epoch} "
                "while this request was waiting, because the client sent another request.",
            )
        sent: PartitionResponses = {}
        for place, response in responses.items():
            partition = self.partitions[place]
            known = partition.is_up_to_date(
                high_watermark=response.high_watermark, log_start_offset=response.log_start_offset
            )
            if known and not response.records and not response.must_respond:
                continue
            _update_cached(partition, response)
            sent[place] = response
            if response.records:
                self.session.move_to_end(place)
        return self.session.session_id, sent


def open_context(broker: Broker, call: Call, request: FetchRequest) -> SessionlessFetchContext:
    """Return the context for a request.

    Raises: ApiError if the session id or the session epoch is invalid.
    """
    requested = _requested_partitions(broker, call, request)
    by_topic_id = call.version >= FIRST_VERSION_BY_TOPIC_ID
    sessions = broker.fetch_sessions
    if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
        sessions.remove(request.session_id)
        if request.session_epoch == FINAL_EPOCH:
            return SessionlessFetchContext(partitions=requested)
        return FullFetchContext(
            partitions=requested,
            sessions=sessions,
            from_follower=replica_id_of(request) >= 0,
            by_topic_id=by_topic_id,
        )
    session = sessions.resume(
        request.session_id,
        request.session_epoch,
        by_topic_id=by_topic_id,
        requested=requested,
        forgotten=_forgotten(request, by_topic_id=by_topic_id),
        now_ms=call.now_ms,
    )
    if session is None:
        return SessionlessFetchContext(partitions=requested)
    from_follower = replica_id_of(request) >= 0
    if from_follower:
        _begin_follower_request(broker, call, request, session)
    else:
        _begin_consumer_request(broker, call, request, session)
    if by_topic_id:
        _resolve(broker, session.active)
    return IncrementalFetchContext(
        partitions=session.active.copy(),
        sessions=sessions,
        session=session,
        epoch=session.epoch,
        from_follower=from_follower,
    )


def _begin_follower_request(
    broker: Broker, call: Call, request: FetchRequest, session: FetchSession
) -> None:
    """Check the follower's authorization and broker epoch once for all partitions."""
    replica_id, replica_epoch = replica_id_of(request), request.replica_state.replica_epoch
    is_stale = BrokerStates(metadata=broker.metadata).is_stale(replica_id, replica_epoch)
    may_fetch = call.auth.allows(AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER)
    session.begin_request(
        (replica_id, replica_epoch), is_valid=may_fetch and not is_stale, now_ms=call.now_ms
    )


def _begin_consumer_request(
    broker: Broker, call: Call, request: FetchRequest, session: FetchSession
) -> None:
    """Make all partitions of the session active if the client or the ACLs have changed."""
    client = (
        call.version,
        request.isolation_level,
        request.rack_id,
        call.principal,
        call.client_host,
        broker.metadata.acls.version,
    )
    session.begin_request(client, now_ms=call.now_ms)


def replica_id_of(request: FetchRequest) -> int:
    """Return the broker id of a follower, or a negative number for a consumer."""
    if request.replica_id != -1:
        return request.replica_id
    return request.replica_state.replica_id


def _update_cached(partition: CachedPartition, response: PartitionResponse) -> None:
    """Store the values that are sent, so that the next response contains only changes.

    After an error or a diverging epoch, a high watermark of -1 is stored, so the next response
    contains the partition. A follower that receives a diverging epoch truncates its log and does
    not apply the high watermark. Kafka stores the high watermark even after a diverging epoch. In
    Kafka, the follower's high watermark may therefore lag until the partition changes again.
    """
    diverges = response.diverging_epoch is not NOT_DIVERGING
    partition.high_watermark = -1 if diverges else response.high_watermark
    partition.log_start_offset = response.log_start_offset


def _requested_partitions(
    broker: Broker, call: Call, request: FetchRequest
) -> dict[PartitionPlace, CachedPartition]:
    """Return the partitions in the request. If a partition is repeated, the last entry is used."""
    requested: dict[PartitionPlace, CachedPartition] = {}
    by_topic_id = call.version >= FIRST_VERSION_BY_TOPIC_ID
    for topic in request.topics:
        identity = topic.topic_id if by_topic_id else topic.topic
        name = _name(broker, topic.topic_id) if by_topic_id else topic.topic
        for partition in topic.partitions:
            place = (identity, partition.partition)
            requested[place] = CachedPartition(
                place=place, topic=name, topic_id=topic.topic_id, requested=partition
            )
    return requested


def _forgotten(request: FetchRequest, *, by_topic_id: bool) -> Iterable[PartitionPlace]:
    for topic in request.forgotten_topics_data:
        for partition in topic.partitions:
            yield (topic.topic_id if by_topic_id else topic.topic), partition


def _resolve(broker: Broker, partitions: Mapping[PartitionPlace, CachedPartition]) -> None:
    """Resolve the names of topics that were unknown when they were added to the session."""
    for partition in partitions.values():
        if partition.topic is None:
            partition.topic = _name(broker, partition.topic_id)


def _name(broker: Broker, topic_id: Uuid) -> str | None:
    found = broker.metadata.topics_by_id.get(topic_id)
    return None if found is None else found.name
