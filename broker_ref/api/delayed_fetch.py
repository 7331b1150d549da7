"""A fetch that is answered immediately or waits for more bytes.

Purpose: read partitions within the limits of a response, decide whether to wait, and re-check only
partitions that changed. Invariant: a waiting fetch reads nothing, and `_available_bytes` is the sum
over the partitions at their last check; a partition without changes since the client's last fetch
is not read at all. Must not know: who reads, or what a session stores. Source:
`kafka.server.ReplicaManager.fetchMessages` and `kafka.server.DelayedFetch`.

A fetch completes if the bytes between fetch offset and log end sum up to `min_bytes`, where each
partition counts at most `partition_max_bytes`; if a fetch offset is behind the active segment, or
beyond the end that the reader may see (after a truncation); or on any error. A diverging log is
covered, because it requires a leader change.
"""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby

from kio.schema.errors import ErrorCode

from broker_ref.api.endpoints import endpoints_of
from broker_ref.api.fetch_contexts import Answers, SessionlessFetchContext
from broker_ref.api.fetch_messages import FetchResponse, PartitionAnswer, TopicAnswer
from broker_ref.api.partition_reader import PartitionReader
from broker_ref.log.errors import LogError
from broker_ref.log.partition_log import LogPosition
from broker_ref.protocol.errors import ApiError
from broker_ref.replication.fetch_session_cache import CachedPartition, PartitionPlace
from broker_ref.replication.partition import Partition, PartitionKey


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchLimits:
    """Limits of the whole response."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int


@dataclass(slots=True, kw_only=True)
class DelayedFetch:
    """A fetch of the existing partitions `wanted`; `absent` contains the answers for the others."""

    reader: PartitionReader
    context: SessionlessFetchContext
    limits: FetchLimits
    wanted: dict[PartitionPlace, CachedPartition] = field(default_factory=dict)
    absent: Answers = field(default_factory=dict)
    _idle: dict[PartitionPlace, Partition] = field(default_factory=dict)
    """Partitions without changes, which are not read unless they change."""
    _by_key: dict[Hashable, list[CachedPartition]] = field(default_factory=dict)
    _starts: dict[PartitionPlace, LogPosition] = field(default_factory=dict)
    """The positions of the fetch offsets at the start of the wait."""
    _refused: Answers = field(default_factory=dict)
    """The answers for partitions whose position could not be determined."""
    _available: dict[PartitionPlace, int] = field(default_factory=dict)
    """Available bytes per partition, if any."""
    _available_bytes: int = 0
    _changed: dict[PartitionPlace, CachedPartition] = field(default_factory=dict)

    def begin(self, now_ms: int) -> FetchResponse | None:
        """Return the response if the fetch need not wait; updates the position of a follower."""
        if self.context.remembers:
            self._find_idle(now_ms)
        answers = self._read()
        for place, answer in answers.items():
            self.reader.note_position(self.wanted[place], answer, now_ms)
        bytes_read = sum(len(answer.records) for answer in answers.values())
        if (
            self.limits.max_wait_ms <= 0
            or not self.wanted
            or bytes_read >= self.limits.min_bytes
            or any(answer.is_urgent for answer in answers.values())
        ):
            return self._response(answers, now_ms)
        self._watch()
        if self._is_due({place: self.wanted[place] for place in answers}) or self._refused:
            return self._response(answers, now_ms)
        return None

    def keys(self) -> tuple[Hashable, ...]:
        """Return the keys of the partitions that are waited for."""
        return tuple(self._by_key)

    def key_changed(self, key: Hashable) -> None:
        """Note that a partition changed and has to be checked."""
        for wanted in self._by_key[key]:
            self._changed[wanted.place] = wanted
            self._idle.pop(wanted.place, None)

    def try_complete(self, now_ms: int) -> FetchResponse | None:
        """Return the response if enough bytes are available or an error occurred."""
        changed, self._changed = self._changed, {}
        return self.expire(now_ms) if self._is_due(changed) else None

    def expire(self, now_ms: int) -> FetchResponse:
        """Return the response with the available bytes."""
        return self._response(self._read(), now_ms)

    def _find_idle(self, now_ms: int) -> None:
        """Find the partitions without changes and update a follower's position in them."""
        for place, wanted in self.wanted.items():
            try:
                partition = self.reader.locate(wanted)
            except ApiError:
                continue
            if wanted.is_up_to_date(
                high_watermark=partition.high_watermark,
                log_start_offset=partition.log.log_start_offset,
            ) and self.reader.has_nothing_new(partition, wanted):
                self._idle[place] = partition
                if self.reader.is_follower:
                    self.reader.update_follower_fetch_state(partition, wanted, now_ms)

    def _watch(self) -> None:
        """Store the keys to wait for and the log ends of partitions without changes."""
        for place, wanted in self.wanted.items():
            self._by_key.setdefault(_key(wanted), []).append(wanted)
            idle = self._idle.get(place)
            if idle is not None:
                with suppress(LogError):
                    self._start(idle, wanted)

    def _start(self, partition: Partition, wanted: CachedPartition) -> LogPosition:
        """Return the position of the fetch offset. LogError becomes the partition's answer."""
        place = wanted.place
        if place not in self._starts:
            try:
                self._starts[place] = partition.log.position_of(wanted.asked.fetch_offset)
            except LogError as error:
                # A read at the visible end returns nothing, so it does not detect damage.
                self._refused[place] = self.reader.refusal(wanted, error.error_code)
                raise
        return self._starts[place]

    def _read(self) -> Answers:
        """Read the partitions that may have changed, in order, within the limits."""
        answers: Answers = {}
        bytes_left = self.limits.max_bytes
        first = True
        for place, wanted in self.wanted.items():
            if place in self._idle:
                continue
            answer = self.reader.read(
                wanted,
                max_bytes=min(wanted.asked.partition_max_bytes, bytes_left),
                at_least_one_batch=first,
            )
            answers[place] = answer
            first = first and not answer.records
            bytes_left = max(bytes_left - len(answer.records), 0)
        return answers

    def _is_due(self, looked_at: dict[PartitionPlace, CachedPartition]) -> bool:
        """Check these partitions and return whether the fetch completes."""
        for place, wanted in looked_at.items():
            try:
                available = self._look(wanted)
            except (ApiError, LogError):
                return True
            if available is None:
                return True
            self._available_bytes += available - self._available.pop(place, 0)
            if available:
                self._available[place] = available
        return self._available_bytes >= self.limits.min_bytes

    def _look(self, wanted: CachedPartition) -> int | None:
        """Return the available bytes of a partition, or None if it must be answered.

        Raises: ApiError or LogError if it cannot be read.
        """
        partition = self.reader.locate(wanted)
        offset = wanted.asked.fetch_offset
        start = self._start(partition, wanted)
        end_offset = self.reader.end_offset(partition)
        if offset == end_offset:
            return 0
        if offset > end_offset:
            return None
        end = partition.log.position_of(end_offset)
        if start.segment_base_offset < end.segment_base_offset:
            return None
        return min(end.position_bytes - start.position_bytes, wanted.asked.partition_max_bytes)

    def _response(self, answers: Answers, now_ms: int) -> FetchResponse:
        try:
            session_id, sent = self.context.close(
                {**answers, **self._refused, **self.absent}, now_ms
            )
        except ApiError as error:
            return FetchResponse(error_code=error.error_code)
        leaders = (answer.current_leader for answer in sent.values())
        return FetchResponse(
            session_id=session_id,
            responses=self._by_topic(sent),
            node_endpoints=endpoints_of(self.reader.broker, leaders),
        )

    def _by_topic(self, answers: Answers) -> tuple[TopicAnswer, ...]:
        """Group answers by topic, keeping their order; a topic can occur more than once."""
        topics = []
        for _, places in groupby(answers, key=lambda place: place[0]):
            of_topic = tuple(places)
            partition = self.context.partitions[of_topic[0]]
            topics.append(
                TopicAnswer(
                    topic=partition.topic or "",
                    topic_id=partition.topic_id,
                    partitions=tuple(answers[place] for place in of_topic),
                )
            )
        return tuple(topics)


def start_fetch(
    reader: PartitionReader, context: SessionlessFetchContext, limits: FetchLimits
) -> DelayedFetch:
    """Create the fetch of a context's partitions, with answers for those that do not exist."""
    fetch = DelayedFetch(reader=reader, context=context, limits=limits)
    metadata = reader.broker.metadata
    for place, wanted in context.partitions.items():
        index = wanted.asked.partition
        if wanted.topic is None:
            fetch.absent[place] = _absent(index, ErrorCode.unknown_topic_id)
        elif metadata.partition(wanted.topic, index) is None:
            fetch.absent[place] = _absent(index, ErrorCode.unknown_topic_or_partition)
        else:
            fetch.wanted[place] = wanted
    return fetch


def _absent(index: int, error_code: ErrorCode) -> PartitionAnswer:
    return PartitionAnswer(partition_index=index, error_code=error_code, aborted_transactions=())


def _key(wanted: CachedPartition) -> PartitionKey:
    assert wanted.topic is not None
    return PartitionKey(topic=wanted.topic, partition=wanted.asked.partition)
