"""The follower side of an incremental fetch session (KIP-227).

    session epoch   request
         0          full: contains at most 500 partitions; the leader may create a session
         n > 0      incremental: contains the partitions that have changed

The handler creates fetch requests that keep the leader's session in sync with the partitions and
offsets that the follower fetches. Invariants: after a response, the leader's session equals
`session_partitions`. If the two may differ, the next request is a full request. If no partition has
changed, a request requires no per-partition work. A request adds a limited number of partitions,
and does not wait for records if more partitions remain to be added. If the leader does not create a
session, each request contains all partitions. Source: Kafka's `FetchSessionHandler`, which adds all
partitions at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.frozen import dataclass
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

ADDED_PER_REQUEST: Final = 500
"""The maximum number of partitions that one request adds to a session."""

SessionKey = tuple[Uuid, int]
"""A topic id and a partition index."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchLimits:
    """The limits of a fetch request: maximum wait time, minimum bytes and maximum bytes."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int


class FetchSessionHandler:
    """The fetch session with one leader; only one request may be in flight."""

    def __init__(self) -> None:
        self._id = NO_SESSION
        self._epoch = FULL
        self._partitions: dict[SessionKey, FetchPartition] = {}
        self._session_partitions: dict[SessionKey, FetchPartition] = {}
        self._changed: dict[SessionKey, None] = {}
        self._is_sessionless = False

    @property
    def session_partitions(self) -> Mapping[SessionKey, FetchPartition]:
        """Return the partitions in the leader's session after the last request."""
        return self._session_partitions

    @property
    def is_empty(self) -> bool:
        """Return whether there are no partitions to fetch."""
        return not self._partitions

    def add(self, key: SessionKey, partition: FetchPartition) -> None:
        """Add a partition, or change its offset or other fields.

        A changed partition moves behind the others, so that each partition is fetched in turn even
        if every request contains all partitions.
        """
        if self._partitions.get(key) != partition:
            self._partitions.pop(key, None)
            self._partitions[key] = partition
            self._changed[key] = None

    def remove(self, key: SessionKey) -> None:
        """Remove a partition."""
        if self._partitions.pop(key, None) is not None:
            self._changed[key] = None

    def build_request(self, replica: ReplicaState, limits: FetchLimits) -> FetchRequest:
        """Return the next fetch request."""
        if self._epoch == FULL:
            self._session_partitions = {}
            self._changed = dict.fromkeys(self._partitions)
        added_left = len(self._changed) if self._is_sessionless else ADDED_PER_REQUEST
        changed: dict[SessionKey, FetchPartition] = {}
        forgotten: list[SessionKey] = []
        not_sent: dict[SessionKey, None] = {}
        for key in self._changed:
            partition = self._partitions.get(key)
            known = self._session_partitions.get(key)
            if partition is None:
                if known is not None:
                    del self._session_partitions[key]
                    forgotten.append(key)
            elif known is None and not added_left:
                not_sent[key] = None
            elif partition != known:
                added_left -= known is None
                changed[key] = self._session_partitions[key] = partition
        self._changed = not_sent
        return FetchRequest(
            replica_state=replica,
            max_wait_ms=0 if not_sent else limits.max_wait_ms,
            min_bytes=limits.min_bytes,
            max_bytes=limits.max_bytes,
            session_id=self._id,
            session_epoch=self._epoch,
            topics=_by_topic(changed),
            forgotten_topics_data=_forgotten(forgotten),
        )

    def handle_response(self, response: FetchResponse) -> bool:
        """Process a response; return False if it contains an error for the entire request."""
        if response.error_code is ErrorCode.fetch_session_id_not_found:
            self._id = NO_SESSION
            self._epoch = FULL
            return False
        if response.error_code is not ErrorCode.none:
            self.handle_error()
            return False
        self._is_sessionless = response.session_id == NO_SESSION
        if self._is_sessionless:
            self._id = NO_SESSION
            self._epoch = FULL
        elif self._epoch == FULL:
            self._id = response.session_id
            self._epoch = 1
        else:
            self._epoch = self._epoch + 1 if self._epoch < SESSION_EPOCH_MAX else 1
        return True

    def handle_error(self) -> None:
        """Handle a failed request.

        The next request is a full fetch request, which closes the session on the leader.
        """
        self._epoch = FULL


def _by_topic(partitions: Mapping[SessionKey, FetchPartition]) -> tuple[FetchTopic, ...]:
    """Group the partitions by topic in their order. The result can contain a topic repeatedly."""
    return tuple(
        FetchTopic(topic_id=topic_id, partitions=tuple(partition for _, partition in found))
        for topic_id, found in groupby(partitions.items(), key=lambda item: item[0][0])
    )


def _forgotten(keys: list[SessionKey]) -> tuple[ForgottenTopic, ...]:
    by_topic: dict[Uuid, list[int]] = {}
    for topic_id, partition in keys:
        by_topic.setdefault(topic_id, []).append(partition)
    return tuple(
        ForgottenTopic(topic_id=topic_id, partitions=tuple(found))
        for topic_id, found in by_topic.items()
    )
