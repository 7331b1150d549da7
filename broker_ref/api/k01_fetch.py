"""Fetch (1), versions 4 to 18: read record batches, waiting for them if need be.

Behaviour: answers at once when `min_bytes` are there, `max_wait_ms` is zero, a partition has an
error, or nothing was asked for; otherwise when enough has been appended, or at the deadline with
what there is. As in Kafka's DelayedFetch, enough is judged by positions in the log, up to
`partition_max_bytes` each though whole batches may be less; a reader that is behind the last
segment has enough; and `min_bytes` is at most what can be returned. `max_bytes` bounds the response, `partition_max_bytes` a partition, but the first
batch of the first partition that has any always goes out whole (KIP-74). Partitions are served in
the order of the request: fairness is the client's part, which rotates them. One that does not exist
is answered as such without ending the others' wait. Clients see below the high watermark, with
read_committed below the last stable offset (KIP-98); no transaction can be open or aborted here, so
the list of aborted ones is empty. Leader epochs are fenced (KIP-320), a
fetch that names the epoch of its last batch is told where it diverges (KIP-595), topics come by id
from version 13 (KIP-516). No session is kept: every answer has session id 0, which tells clients to
send full requests, and one that names a session gets FETCH_SESSION_ID_NOT_FOUND (KIP-227).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import NO_THROTTLE_MS, Api, Broker, Call, Wait
from broker_ref.api.endpoints import (
    NO_LEADER,
    LeaderIdAndEpoch,
    NodeEndpoint,
    current_leader,
    endpoints_of,
)
from broker_ref.log.errors import LogError
from broker_ref.log.partition_log import LogPosition
from broker_ref.protocol.errors import ApiError, unknown_partition
from broker_ref.protocol.identifiers import ZERO_UUID, Uuid
from broker_ref.replication.partition import DivergingEpoch, Isolation, Partition, PartitionKey

FIRST_VERSION_BY_TOPIC_ID: Final = 13
FINAL_EPOCH: Final = -1
INITIAL_EPOCH: Final = 0
READ_COMMITTED: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchPartition:
    """What to read of a partition."""

    partition: int
    fetch_offset: int
    partition_max_bytes: int
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchTopic:
    """What to read of a topic, by name or, from version 13, by id."""

    partitions: tuple[FetchPartition, ...]
    topic: str = ""
    topic_id: Uuid = ZERO_UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaState:
    """Which broker fetches; -1 for a consumer."""

    replica_id: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequest:
    """What to read, how much, and how long to wait for it."""

    max_wait_ms: int
    min_bytes: int
    topics: tuple[FetchTopic, ...]
    max_bytes: int = 2**31 - 1
    isolation_level: int = 0
    session_id: int = 0
    session_epoch: int = FINAL_EPOCH
    replica_id: int = -1
    replica_state: ReplicaState = ReplicaState()


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortedTransaction:
    """Whose records a read_committed reader is to drop, from which offset on."""

    producer_id: int
    first_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEndOffset:
    """The largest epoch that both logs have, and where it ends here."""

    epoch: int = -1
    end_offset: int = -1


NOT_DIVERGING: Final = EpochEndOffset()


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionAnswer:
    """Batches of a partition, or why there are none."""

    partition_index: int
    error_code: ErrorCode = ErrorCode.none
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    diverging_epoch: EpochEndOffset = NOT_DIVERGING
    current_leader: LeaderIdAndEpoch = NO_LEADER
    aborted_transactions: tuple[AbortedTransaction, ...] | None = None
    preferred_read_replica: int = -1
    records: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicAnswer:
    """The answers for a topic."""

    topic: str
    topic_id: Uuid
    partitions: tuple[PartitionAnswer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchResponse:
    """The answers for every topic."""

    error_code: ErrorCode = ErrorCode.none
    responses: tuple[TopicAnswer, ...] = ()
    session_id: int = 0
    throttle_time_ms: int = NO_THROTTLE_MS
    node_endpoints: tuple[NodeEndpoint, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a partition stands in the request: its topic's index and its own."""

    topic: int
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadResult:
    """What one pass over the partitions gave."""

    answers: dict[Place, PartitionAnswer]
    bytes_read: int

    @property
    def is_final(self) -> bool:
        """Whether a partition has something to say that cannot wait."""
        return any(
            answer.error_code is not ErrorCode.none or answer.diverging_epoch is not NOT_DIVERGING
            for answer in self.answers.values()
        )


@dataclass(slots=True, kw_only=True)
class DelayedFetch:
    """A fetch, until enough can be read. Nothing is read before the response is due."""

    broker: Broker
    request: FetchRequest
    names: Mapping[Place, str]
    absent: Mapping[Place, PartitionAnswer]
    starts: dict[Place, LogPosition] = field(default_factory=dict)
    """Where the fetch offsets were when the wait began."""

    def complete_now(self) -> FetchResponse | None:
        """The response if it need not wait (ReplicaManager.fetchMessages)."""
        result = self._read()
        enough = result.bytes_read >= self._min_bytes()
        if self.request.max_wait_ms <= 0 or not self.names or result.is_final or enough:
            return self._response(result)
        return self._response(result) if self._is_due() else None

    def try_complete(self, now_ms: int) -> FetchResponse | None:
        """The response if there is enough, or an error."""
        return self.expire(now_ms) if self._is_due() else None

    def expire(self, now_ms: int) -> FetchResponse:
        """The response with what there is."""
        del now_ms
        return self._response(self._read())

    def keys(self) -> tuple[PartitionKey, ...]:
        """The partitions read."""
        return tuple(
            PartitionKey(topic=name, partition=self._requested(place).partition)
            for place, name in self.names.items()
        )

    def _is_due(self) -> bool:
        """Whether enough is in the log, or there is something to say that cannot wait."""
        available_bytes = 0
        for place, name in self.names.items():
            requested = self._requested(place)
            try:
                partition = self._partition(name, requested)
                start = self.starts.get(place)
                if start is None:
                    start = partition.log.position_of(requested.fetch_offset)
                    self.starts[place] = start
                end_offset = self._end_offset(partition)
                if requested.fetch_offset >= end_offset:
                    continue
                end = partition.log.position_of(end_offset)
            except (ApiError, LogError):
                return True
            if start.segment_base_offset < end.segment_base_offset:
                return True
            there_bytes = end.position_bytes - start.position_bytes
            available_bytes += min(there_bytes, requested.partition_max_bytes)
        return available_bytes >= self._min_bytes()

    def _max_bytes(self) -> int:
        return min(self.request.max_bytes, self.broker.config.fetch_max_bytes)

    def _min_bytes(self) -> int:
        return min(self.request.min_bytes, self._max_bytes())

    def _partition(self, name: str, requested: FetchPartition) -> Partition:
        """The partition; ApiError where it must not be read here."""
        partition = self.broker.replicas.partition(name, requested.partition)
        partition.check_fetcher(_replica_id(self.request), -1, requested.current_leader_epoch)
        return partition

    def _end_offset(self, partition: Partition) -> int:
        if self._isolation() is Isolation.READ_COMMITTED:
            return partition.last_stable_offset
        return partition.high_watermark

    def _requested(self, place: Place) -> FetchPartition:
        return self.request.topics[place.topic].partitions[place.partition]

    def _read(self) -> ReadResult:
        """Read the partitions that there are, one after the other, within the limits."""
        bytes_left = self._max_bytes()
        answers: dict[Place, PartitionAnswer] = {}
        bytes_read = 0
        for place, name in self.names.items():
            requested = self._requested(place)
            answer = self._read_partition(
                name,
                requested,
                max_bytes=min(requested.partition_max_bytes, bytes_left),
                first=bytes_read == 0,
            )
            answers[place] = answer
            bytes_read += len(answer.records)
            bytes_left = max(bytes_left - len(answer.records), 0)
        return ReadResult(answers=answers, bytes_read=bytes_read)

    def _read_partition(
        self, name: str, requested: FetchPartition, *, max_bytes: int, first: bool
    ) -> PartitionAnswer:
        index = requested.partition
        try:
            partition = self._partition(name, requested)
            read = partition.read(
                requested.fetch_offset,
                isolation=self._isolation(),
                last_fetched_epoch=requested.last_fetched_epoch,
                max_bytes=max_bytes,
                at_least_one_batch=first,
            )
        except (ApiError, LogError) as error:
            return self._refused(name, index, error)
        diverging = NOT_DIVERGING
        if isinstance(read, DivergingEpoch):
            diverging = EpochEndOffset(epoch=read.epoch, end_offset=read.end_offset)
        committed = self._isolation() is Isolation.READ_COMMITTED
        return PartitionAnswer(
            partition_index=index,
            high_watermark=partition.high_watermark,
            last_stable_offset=partition.last_stable_offset,
            log_start_offset=partition.log.log_start_offset,
            diverging_epoch=diverging,
            aborted_transactions=() if committed else None,
            records=read if isinstance(read, bytes) else b"",
        )

    def _refused(self, name: str, index: int, error: ApiError | LogError) -> PartitionAnswer:
        moved = error.error_code in (
            ErrorCode.not_leader_or_follower,
            ErrorCode.fenced_leader_epoch,
        )
        return PartitionAnswer(
            partition_index=index,
            error_code=error.error_code,
            current_leader=current_leader(self.broker, name, index) if moved else NO_LEADER,
        )

    def _isolation(self) -> Isolation:
        if self.request.isolation_level == READ_COMMITTED:
            return Isolation.READ_COMMITTED
        return Isolation.READ_UNCOMMITTED

    def _response(self, result: ReadResult) -> FetchResponse:
        answers = {**result.answers, **self.absent}
        responses = tuple(
            TopicAnswer(
                topic=topic.topic,
                topic_id=topic.topic_id,
                partitions=tuple(
                    answers[Place(topic=index, partition=partition)]
                    for partition in range(len(topic.partitions))
                ),
            )
            for index, topic in enumerate(self.request.topics)
        )
        leaders = (answer.current_leader for answer in answers.values())
        return FetchResponse(responses=responses, node_endpoints=endpoints_of(self.broker, leaders))


def handle(broker: Broker, call: Call, request: FetchRequest) -> object:
    """Answer at once where that is due, or wait."""
    if request.session_epoch not in (INITIAL_EPOCH, FINAL_EPOCH):
        return FetchResponse(error_code=ErrorCode.fetch_session_id_not_found)
    names: dict[Place, str] = {}
    absent: dict[Place, PartitionAnswer] = {}
    for topic_index, topic in enumerate(request.topics):
        for index, partition in enumerate(topic.partitions):
            place = Place(topic=topic_index, partition=index)
            try:
                names[place] = _topic_name(broker, call, topic, partition.partition)
            except ApiError as error:
                absent[place] = PartitionAnswer(
                    partition_index=partition.partition,
                    error_code=error.error_code,
                    aborted_transactions=(),
                )
    delayed = DelayedFetch(broker=broker, request=request, names=names, absent=absent)
    done = delayed.complete_now()
    if done is not None:
        return done
    return Wait(
        operation=delayed, keys=delayed.keys(), deadline_ms=call.now_ms + request.max_wait_ms
    )


def _topic_name(broker: Broker, call: Call, topic: FetchTopic, partition: int) -> str:
    """The name of the topic, if it has the partition."""
    name = topic.topic
    if call.version >= FIRST_VERSION_BY_TOPIC_ID:
        found = broker.metadata.topics_by_id.get(topic.topic_id)
        if found is None:
            raise ApiError(ErrorCode.unknown_topic_id, f"There is no topic {topic.topic_id}.")
        name = found.name
    if broker.metadata.partition(name, partition) is None:
        raise unknown_partition(name, partition)
    return name


def _replica_id(request: FetchRequest) -> int:
    return max(request.replica_id, request.replica_state.replica_id)


API: Final = Api(key=1, versions=range(4, 19), request=FetchRequest, handle=handle)
