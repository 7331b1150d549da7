"""Fetch requests that complete immediately or wait for more bytes.

A fetch reads partitions up to the limits of its response. A waiting fetch checks a partition again
only after the partition has changed. Invariants: a waiting fetch does not read records, and
`_available_bytes` is the sum of the available bytes in all partitions at their last check. A
partition that has not changed since the client's last fetch is not read. If the partition is also
idle in the session, it is not even checked (`fetch_session_cache`). Source:
`kafka.server.ReplicaManager.fetchMessages` and `kafka.server.DelayedFetch`.

A fetch completes in one of these cases:

- At least `min_bytes` bytes are available between the fetch offsets and the end offsets. Each
  partition contributes at most `partition_max_bytes`. A throttled partition contributes nothing.
- A fetch offset is in an older segment than the end offset.
- A fetch offset is beyond the end of the data that the client may read, which can happen after a
  truncation.
- The response for a partition contains an error. The responses in `absent` are an exception.
- The session was removed, for example because a new session replaced it. A removed session no
  longer reports changes to its idle partitions.

A diverging log is not a separate case, because logs diverge only after a leader change.
"""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import suppress
from dataclasses import field
from itertools import groupby

from kio.schema.errors import ErrorCode

from broker_ref.api.endpoints import endpoints_of
from broker_ref.api.fetch_contexts import PartitionResponses, SessionlessFetchContext
from broker_ref.api.fetch_messages import FetchResponse, PartitionResponse, TopicResponse
from broker_ref.api.partition_reader import PartitionReader
from broker_ref.frozen import dataclass
from broker_ref.log.errors import LogError
from broker_ref.log.partition_log import LogPosition
from broker_ref.protocol.errors import ApiError
from broker_ref.replication.fetch_session_cache import CachedPartition, PartitionPlace
from broker_ref.replication.partition import Partition, PartitionKey


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchLimits:
    """The limits that a Fetch request sets for the whole response."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int


@dataclass(slots=True, kw_only=True)
class DelayedFetch:
    """A Fetch request that completes immediately or waits for more bytes.

    `partitions` contains the existing partitions. `absent` contains the error responses for
    partitions that do not exist or that the client may not read.
    """

    reader: PartitionReader
    context: SessionlessFetchContext
    limits: FetchLimits
    partitions: dict[PartitionPlace, CachedPartition] = field(default_factory=dict)
    absent: PartitionResponses = field(default_factory=dict)
    _idle: dict[PartitionPlace, Partition] = field(default_factory=dict)
    """Partitions unchanged since the last response. They are not read until they change."""
    _watched: dict[PartitionPlace, None] = field(default_factory=dict)
    """Unchanged partitions that the session watches."""
    _by_key: dict[Hashable, list[CachedPartition]] = field(default_factory=dict)
    _starts: dict[PartitionPlace, LogPosition] = field(default_factory=dict)
    """The log positions of the fetch offsets when the wait started."""
    _error_responses: PartitionResponses = field(default_factory=dict)
    """The error responses for partitions whose log position could not be determined."""
    _available: dict[PartitionPlace, int] = field(default_factory=dict)
    """The available bytes in each partition. Partitions without available bytes are omitted."""
    _available_bytes: int = 0
    _changed: dict[PartitionPlace, CachedPartition] = field(default_factory=dict)

    def begin(self, now_ms: int) -> FetchResponse | None:
        """Return the response if the fetch completes immediately, otherwise None.

        The fetch state of a follower is updated in both cases.
        """
        if self.context.is_incremental:
            self._find_idle(now_ms)
        responses = self._read()
        for place, response in responses.items():
            self.reader.record_position(self.partitions[place], response, now_ms)
        bytes_read = sum(len(response.records) for response in responses.values())
        if (
            self.limits.max_wait_ms <= 0
            or (not self.partitions and not self.context.has_idle)
            or bytes_read >= self.limits.min_bytes
            or any(response.must_respond for response in responses.values())
        ):
            return self._response(responses, now_ms)
        self._watch()
        if (
            self._is_due({place: self.partitions[place] for place in responses})
            or self._error_responses
        ):
            return self._response(responses, now_ms)
        return None

    def keys(self) -> tuple[Hashable, ...]:
        """Return the keys of the partitions that this fetch is waiting for."""
        return (*self._by_key, *self.context.keys())

    def key_changed(self, key: Hashable) -> None:
        """Mark the partitions with this key for the next check."""
        changed = self._by_key.get(key)
        if changed is None:
            changed = self.context.take_changed()
            self.partitions.update((cached.place, cached) for cached in changed)
        for cached in changed:
            self._changed[cached.place] = cached
            self._idle.pop(cached.place, None)

    def try_complete(self, now_ms: int) -> FetchResponse | None:
        """Return the response if enough bytes are available or there is an error."""
        changed, self._changed = self._changed, {}
        is_due = self.context.is_obsolete or self._is_due(changed)
        return self.expire(now_ms) if is_due else None

    def expire(self, now_ms: int) -> FetchResponse:
        """Return the response with the bytes that are available."""
        return self._response(self._read(), now_ms)

    def _find_idle(self, now_ms: int) -> None:
        """Find the partitions that have not changed since the last response.

        If the client is a follower, update its fetch state in these partitions.
        """
        for place, cached in self.partitions.items():
            try:
                partition = self.reader.locate(cached)
            except ApiError:
                continue
            if cached.is_up_to_date(
                high_watermark=partition.high_watermark,
                log_start_offset=partition.log.log_start_offset,
            ) and self.reader.has_nothing_new(partition, cached):
                self._idle[place] = partition
                follower = None
                if self.reader.is_follower:
                    self.reader.update_follower_fetch_state(partition, cached, now_ms)
                    follower = partition.in_sync_follower(self.reader.replica_id)
                else:
                    try:
                        self._start(partition, cached)
                    except LogError:
                        continue
                if self.context.begin_idle(cached, partition.key, follower):
                    self._watched[place] = None

    def _watch(self) -> None:
        """Store the keys of the partitions to wait for.

        For unchanged partitions, also store the log position of the fetch offset.
        """
        for place, cached in self.partitions.items():
            if place in self._watched:
                continue
            self._by_key.setdefault(_key(cached), []).append(cached)
            idle = self._idle.get(place)
            if idle is not None:
                with suppress(LogError):
                    self._start(idle, cached)

    def _start(self, partition: Partition, cached: CachedPartition) -> LogPosition:
        """Return the log position of the fetch offset.

        Raises: LogError, after storing the error as the response for the partition.
        """
        place = cached.place
        if place not in self._starts:
            try:
                self._starts[place] = partition.log.position_of(cached.requested.fetch_offset)
            except LogError as error:
                # A read at the end offset returns no records and therefore does not detect
                # corruption.
                self._error_responses[place] = self.reader.error_response(cached, error.error_code)
                raise
        return self._starts[place]

    def _read(self) -> PartitionResponses:
        """Read the partitions that may have changed, in order, within the response limits."""
        responses: PartitionResponses = {}
        bytes_left = self.limits.max_bytes
        first = True
        for place, cached in self.partitions.items():
            if place in self._idle:
                continue
            response = self.reader.read(
                cached,
                max_bytes=min(cached.requested.partition_max_bytes, bytes_left),
                at_least_one_batch=first,
            )
            responses[place] = response
            first = first and not response.records
            bytes_left = max(bytes_left - len(response.records), 0)
        return responses

    def _is_due(self, looked_at: dict[PartitionPlace, CachedPartition]) -> bool:
        """Check the given partitions. Return whether the fetch is complete."""
        for place, cached in looked_at.items():
            try:
                available = self._available_in(cached)
            except (ApiError, LogError):
                return True
            if available is None:
                return True
            self._available_bytes += available - self._available.pop(place, 0)
            if available:
                self._available[place] = available
        return self._available_bytes >= self.limits.min_bytes

    def _available_in(self, cached: CachedPartition) -> int | None:
        """Return the available bytes in a partition, or None if the fetch must complete.

        Raises: ApiError or LogError if the partition cannot be read.
        """
        partition = self.reader.locate(cached)
        offset = cached.requested.fetch_offset
        start = self._start(partition, cached)
        end_offset = self.reader.end_offset(partition)
        if offset == end_offset:
            return 0
        if offset > end_offset:
            return None
        if self.reader.is_throttled(partition):
            return 0
        end = partition.log.position_of(end_offset)
        if start.segment_base_offset < end.segment_base_offset:
            return None
        return min(end.position_bytes - start.position_bytes, cached.requested.partition_max_bytes)

    def _response(self, responses: PartitionResponses, now_ms: int) -> FetchResponse:
        try:
            session_id, sent = self.context.close(
                {**responses, **self._error_responses, **self.absent}, now_ms
            )
        except ApiError as error:
            return FetchResponse(error_code=error.error_code)
        for place, response in sent.items():
            if response.records:
                self.reader.record_sent(self.partitions[place], len(response.records))
        leaders = (response.current_leader for response in sent.values())
        return FetchResponse(
            session_id=session_id,
            responses=self._by_topic(sent),
            node_endpoints=endpoints_of(self.reader.broker, leaders, listener=self.reader.listener),
        )

    def _by_topic(self, responses: PartitionResponses) -> tuple[TopicResponse, ...]:
        """Group the partition responses by topic in their original order.

        The result can contain a topic more than once.
        """
        topics = []
        for _, places in groupby(responses, key=lambda place: place[0]):
            of_topic = tuple(places)
            partition = self.context.partitions[of_topic[0]]
            topics.append(
                TopicResponse(
                    topic=partition.topic or "",
                    topic_id=partition.topic_id,
                    partitions=tuple(responses[place] for place in of_topic),
                )
            )
        return tuple(topics)


def start_fetch(
    reader: PartitionReader, context: SessionlessFetchContext, limits: FetchLimits
) -> DelayedFetch:
    """Create a delayed fetch for the partitions of a fetch context.

    A partition that does not exist receives an error response. So does a partition of a topic that
    the client is not authorized to read.
    """
    fetch = DelayedFetch(reader=reader, context=context, limits=limits)
    metadata = reader.broker.metadata
    for place, cached in context.partitions.items():
        index = cached.requested.partition
        if cached.topic is None:
            fetch.absent[place] = _absent(index, ErrorCode.unknown_topic_id)
        elif not reader.may_read(cached.topic):
            fetch.absent[place] = _absent(index, ErrorCode.topic_authorization_failed)
        elif metadata.partition(cached.topic, index) is None:
            fetch.absent[place] = _absent(index, ErrorCode.unknown_topic_or_partition)
        else:
            fetch.partitions[place] = cached
    return fetch


def _absent(index: int, error_code: ErrorCode) -> PartitionResponse:
    return PartitionResponse(partition_index=index, error_code=error_code, aborted_transactions=())


def _key(cached: CachedPartition) -> PartitionKey:
    assert cached.topic is not None
    return PartitionKey(topic=cached.topic, partition=cached.requested.partition)
