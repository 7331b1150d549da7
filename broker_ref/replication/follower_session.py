"""A follower's side of an incremental fetch session (KIP-227).

    session epoch   the request is
         0          full: it names every partition, and the leader may open a session
         n > 0      incremental: it names what has changed since the request before it

Purpose: what a fetch request has to say so that the leader knows which partitions are wanted, and
from where. Invariant: after an answered request the leader has what `sent` holds; where that is not
certain, the next request is full. A request in which nothing changed costs nothing for any
partition. What it must not know: what is done with what was fetched.
Source: Kafka's `FetchSessionHandler`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.protocol.identifiers import Uuid
from broker_ref.replication.follower_messages import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    ReplicaState,
)

NO_SESSION: Final = 0
FULL: Final = 0
SESSION_EPOCH_MAX: Final = 2**31 - 1

SessionKey = tuple[Uuid, int]
"""Topic id and partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchLimits:
    """How long a fetch may wait, and how much it may bring."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int


class FollowerSession:
    """The session with one leader. Requests and answers alternate."""

    def __init__(self) -> None:
        self._id = NO_SESSION
        self._epoch = FULL
        self._wanted: dict[SessionKey, FetchPartition] = {}
        self._sent: dict[SessionKey, FetchPartition] = {}
        self._changed: dict[SessionKey, None] = {}

    @property
    def sent(self) -> Mapping[SessionKey, FetchPartition]:
        """What was asked for by the last request and those before it."""
        return self._sent

    @property
    def is_empty(self) -> bool:
        """Whether nothing is wanted."""
        return not self._wanted

    def want(self, key: SessionKey, partition: FetchPartition) -> None:
        """Fetch a partition, from there."""
        self._wanted[key] = partition
        self._changed[key] = None

    def drop(self, key: SessionKey) -> None:
        """Fetch a partition no more."""
        if self._wanted.pop(key, None) is not None:
            self._changed[key] = None

    def next_request(self, replica: ReplicaState, limits: FetchLimits) -> FetchRequest:
        """The next request to send."""
        forgotten: list[SessionKey] = []
        if self._epoch == FULL:
            changed = dict(self._wanted)
            self._sent = dict(self._wanted)
        else:
            changed = {}
            for key in self._changed:
                wanted = self._wanted.get(key)
                if wanted is None:
                    if self._sent.pop(key, None) is not None:
                        forgotten.append(key)
                elif wanted != self._sent.get(key):
                    changed[key] = self._sent[key] = wanted
        self._changed.clear()
        return FetchRequest(
            replica_state=replica,
            max_wait_ms=limits.max_wait_ms,
            min_bytes=limits.min_bytes,
            max_bytes=limits.max_bytes,
            session_id=self._id,
            session_epoch=self._epoch,
            topics=_by_topic(changed),
            forgotten_topics_data=_forgotten(forgotten),
        )

    def answered(self, response: FetchResponse) -> bool:
        """Take the answer's session in; False where it says that there is none to go on with."""
        if response.error_code is ErrorCode.fetch_session_id_not_found:
            self._id = NO_SESSION
            self._epoch = FULL
            return False
        if response.error_code is not ErrorCode.none:
            self.failed()
            return False
        if response.session_id == NO_SESSION:
            self._id = NO_SESSION
            self._epoch = FULL
        elif self._epoch == FULL:
            self._id = response.session_id
            self._epoch = 1
        else:
            self._epoch = self._epoch + 1 if self._epoch < SESSION_EPOCH_MAX else 1
        return True

    def failed(self) -> None:
        """Nothing is known of the session: the next request closes it and asks for all anew."""
        self._epoch = FULL


def _by_topic(partitions: Mapping[SessionKey, FetchPartition]) -> tuple[FetchTopic, ...]:
    by_topic: dict[Uuid, list[FetchPartition]] = {}
    for (topic_id, _), partition in partitions.items():
        by_topic.setdefault(topic_id, []).append(partition)
    return tuple(
        FetchTopic(topic_id=topic_id, partitions=tuple(found))
        for topic_id, found in by_topic.items()
    )


def _forgotten(keys: list[SessionKey]) -> tuple[ForgottenTopic, ...]:
    by_topic: dict[Uuid, list[int]] = {}
    for topic_id, partition in keys:
        by_topic.setdefault(topic_id, []).append(partition)
    return tuple(
        ForgottenTopic(topic_id=topic_id, partitions=tuple(found))
        for topic_id, found in by_topic.items()
    )
