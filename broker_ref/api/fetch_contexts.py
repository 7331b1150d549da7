"""Fetch contexts: the partitions to read and the answers to send, with or without a session.

Purpose: determine the partitions to read from a request and its session (KIP-227), and which of
their answers are sent. Invariant: a session stores exactly what was sent. Must not know: how
partitions are read. Source: `org.apache.kafka.server.FetchContext` and `FetchSession`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import Broker, Call
from broker_ref.api.fetch_messages import NOT_DIVERGING, FetchRequest, PartitionAnswer
from broker_ref.protocol.errors import ApiError
from broker_ref.protocol.identifiers import Uuid
from broker_ref.replication.fetch_session_cache import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    INVALID_SESSION_ID,
    CachedPartition,
    FetchSession,
    FetchSessionCache,
    PartitionPlace,
)

FIRST_VERSION_BY_TOPIC_ID: Final = 13

Answers = dict[PartitionPlace, PartitionAnswer]


@dataclass(slots=True, kw_only=True)
class SessionlessFetchContext:
    """A full fetch without a session; all answers are sent."""

    remembers: ClassVar[bool] = False
    """Whether the client has received earlier answers in this session."""

    partitions: dict[PartitionPlace, CachedPartition]

    def close(self, answers: Answers, now_ms: int) -> tuple[int, Answers]:
        """Return the session id and the answers to send."""
        del now_ms
        return INVALID_SESSION_ID, answers


@dataclass(slots=True, kw_only=True)
class FullFetchContext(SessionlessFetchContext):
    """A full fetch that creates a session if the cache has room; all answers are sent."""

    sessions: FetchSessionCache
    from_follower: bool
    by_topic_id: bool

    def close(self, answers: Answers, now_ms: int) -> tuple[int, Answers]:
        """Return the id of the new session and all answers."""
        partitions = {place: self.partitions[place] for place in answers}
        for place, partition in partitions.items():
            _note(partition, answers[place])
        session_id = self.sessions.create(
            partitions,
            privileged=self.from_follower,
            by_topic_id=self.by_topic_id,
            now_ms=now_ms,
        )
        return session_id, answers


@dataclass(slots=True, kw_only=True)
class IncrementalFetchContext(SessionlessFetchContext):
    """A fetch within a session; only answers with changes are sent."""

    remembers: ClassVar[bool] = True
    session: FetchSession
    epoch: int
    """The session's epoch until the next request."""

    def close(self, answers: Answers, now_ms: int) -> tuple[int, Answers]:
        """Return the answers with changes; partitions with records move to the end.

        Raises: ApiError (INVALID_FETCH_SESSION_EPOCH) if the session's epoch has changed meanwhile.
        """
        del now_ms
        if self.session.epoch != self.epoch:
            raise ApiError(
                ErrorCode.invalid_fetch_session_epoch,
                f"Fetch session {self.session.session_id} advanced to epoch {self.session.epoch} "
                "while this request waited; the request was sent twice.",
            )
        sent: Answers = {}
        for place, answer in answers.items():
            partition = self.partitions[place]
            known = partition.is_up_to_date(
                high_watermark=answer.high_watermark, log_start_offset=answer.log_start_offset
            )
            if known and not answer.records and not answer.is_urgent:
                continue
            _note(partition, answer)
            sent[place] = answer
            if answer.records:
                self.session.served(place)
        return self.session.session_id, sent


def open_context(broker: Broker, call: Call, request: FetchRequest) -> SessionlessFetchContext:
    """Return the context of a request. Raises: ApiError if its session id or epoch is invalid."""
    asked = _asked(broker, call, request)
    by_topic_id = call.version >= FIRST_VERSION_BY_TOPIC_ID
    sessions = broker.fetch_sessions
    if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
        sessions.remove(request.session_id)
        if request.session_epoch == FINAL_EPOCH:
            return SessionlessFetchContext(partitions=asked)
        return FullFetchContext(
            partitions=asked,
            sessions=sessions,
            from_follower=replica_id_of(request) >= 0,
            by_topic_id=by_topic_id,
        )
    session = sessions.resume(
        request.session_id,
        request.session_epoch,
        by_topic_id=by_topic_id,
        asked=asked,
        forgotten=_forgotten(request, by_topic_id=by_topic_id),
        now_ms=call.now_ms,
    )
    if session is None:
        return SessionlessFetchContext(partitions=asked)
    if by_topic_id:
        _resolve(broker, session.partitions)
    return IncrementalFetchContext(
        partitions=session.partitions.copy(), session=session, epoch=session.epoch
    )


def replica_id_of(request: FetchRequest) -> int:
    """Return the broker that fetches, or a negative number for a consumer."""
    if request.replica_id != -1:
        return request.replica_id
    return request.replica_state.replica_id


def _note(partition: CachedPartition, answer: PartitionAnswer) -> None:
    """Store the answer that was sent; -1 forces the next answer to be sent.

    That is so after an error or a diverging epoch: the follower then truncates and does not apply
    the high watermark. Kafka treats it as sent, so that the follower's high watermark may lag until
    it changes again.
    """
    diverges = answer.diverging_epoch is not NOT_DIVERGING
    partition.high_watermark = -1 if diverges else answer.high_watermark
    partition.log_start_offset = answer.log_start_offset


def _asked(
    broker: Broker, call: Call, request: FetchRequest
) -> dict[PartitionPlace, CachedPartition]:
    """Return the partitions in the request; the last entry wins if one is repeated."""
    asked: dict[PartitionPlace, CachedPartition] = {}
    by_topic_id = call.version >= FIRST_VERSION_BY_TOPIC_ID
    for topic in request.topics:
        identity = topic.topic_id if by_topic_id else topic.topic
        name = _name(broker, topic.topic_id) if by_topic_id else topic.topic
        for partition in topic.partitions:
            place = (identity, partition.partition)
            asked[place] = CachedPartition(
                place=place, topic=name, topic_id=topic.topic_id, asked=partition
            )
    return asked


def _forgotten(request: FetchRequest, *, by_topic_id: bool) -> Iterable[PartitionPlace]:
    for topic in request.forgotten_topics_data:
        for partition in topic.partitions:
            yield (topic.topic_id if by_topic_id else topic.topic), partition


def _resolve(broker: Broker, partitions: Mapping[PartitionPlace, CachedPartition]) -> None:
    """Resolve topics that were unknown when the session added them."""
    for partition in partitions.values():
        if partition.topic is None:
            partition.topic = _name(broker, partition.topic_id)


def _name(broker: Broker, topic_id: Uuid) -> str | None:
    found = broker.metadata.topics_by_id.get(topic_id)
    return None if found is None else found.name
