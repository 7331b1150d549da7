"""A follower's side of an incremental fetch session (KIP-227).

    session epoch   request
         0          full: it names every partition, and the leader may open a session
         n > 0      incremental: it names what has changed since the previous request

Purpose: build fetch requests that keep the leader's session equal to the wanted partitions and
offsets. Invariant: after a response the leader's session equals `sent`; where that is uncertain,
the next request is full. A request without changes does no work per partition. Must not know: the
use of the fetched records. Source: Kafka's `FetchSessionHandler`.
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
    """The limits of a fetch in time and bytes."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int


class FetchSessionHandler:
    """The session with one leader. Requests and responses alternate."""

    def __init__(self) -> None:
        self._id = NO_SESSION
        self._epoch = FULL
        self._wanted: dict[SessionKey, FetchPartition] = {}
        self._sent: dict[SessionKey, FetchPartition] = {}
        self._changed: dict[SessionKey, None] = {}

    @property
    def sent(self) -> Mapping[SessionKey, FetchPartition]:
        """The partitions in the leader's session after the last request."""
        return self._sent

    @property
    def is_empty(self) -> bool:
        """Whether no partition is wanted."""
        return not self._wanted

    def want(self, key: SessionKey, partition: FetchPartition) -> None:
        """Fetch a partition from the given offset."""
        self._wanted[key] = partition
        self._changed[key] = None

    def drop(self, key: SessionKey) -> None:
        """Stop fetching a partition."""
        if self._wanted.pop(key, None) is not None:
            self._changed[key] = None

    def next_request(self, replica: ReplicaState, limits: FetchLimits) -> FetchRequest:
        """Return the next request to send."""
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
        """Process a response; return False where it ends the session with an error."""
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
        """Reset after a failed request: the next one closes the session and is full."""
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
