"""Reads one range of a topic partition for the `native` engine.

The reader fetches and decodes records until the end of the range. The reader sends the next fetch
before it decodes a response, so the broker and the client work in parallel. Invariants: the visible
records of the range are yielded once and in order. Every wait ends after `poll_timeout_ms` without
progress. At most two responses are in memory.

The last offsets of a range may contain no visible records. The range is complete when the offsets
of the fetched batches reach its end, or when the broker has no more records in the range that are
visible at the isolation level.
"""

from __future__ import annotations

import logging
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, TypeVar
from uuid import UUID

import pyarrow as pa
from kio.schema.errors import ErrorCode

from pyspark_kafka.client.fetch_errors import WAIT_LONGER, ExistingOffsets, FetchErrors
from pyspark_kafka.client.native.fetch_sizes import FetchSizes
from pyspark_kafka.errors import (
    AccessError,
    BrokerUnreachableError,
    CorruptBatchError,
    KafkaError,
    LeaderNotAvailableError,
    ProtocolError,
    reason_of,
    sentence,
)
from pyspark_kafka.kafka.offsets import EARLIEST, LATEST, FetchRange, IsolationLevel
from pyspark_kafka.records import DecodeRequest, decode
from pyspark_kafka.wire.connection import Connection, InFlightRequest
from pyspark_kafka.wire.error_codes import REACTIONS, Reaction, error_class, format_code
from pyspark_kafka.wire.fetch import (
    LAST_VERSION_BY_NAME,
    FetchedPartition,
    FetchLimits,
    FetchPartition,
    FetchResponse,
    fetch_request,
    fetch_version,
)
from pyspark_kafka.wire.metadata import Broker
from pyspark_kafka.wire.retry import Backoff
from pyspark_kafka.wire.router import ApiError, Router
from pyspark_kafka.wire.versions import Api

T = TypeVar("T")

LOG: Final = logging.getLogger("pyspark_kafka.native")
LOG.addHandler(logging.NullHandler())

_EARLIEST_LOCAL: Final = -4
_FIRST_WITH_EARLIEST_LOCAL: Final = 8
"""The first version of ListOffsets with EARLIEST_LOCAL (KIP-405, tiered storage)."""
_PERSISTENT_TRIES: Final = 5
"""The number of attempts for usually permanent errors that can also result from stale metadata."""
_UNKNOWN: Final = frozenset({ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id})
_RETRIED_UNCHANGED: Final = frozenset(
    {ErrorCode.offset_out_of_range, ErrorCode.unknown_server_error}
)
"""The error codes after which a fetch is retried with the same metadata.

A fetch from tiered storage can fail temporarily with UNKNOWN_SERVER_ERROR (Java client:
`FetchCollector.handleInitializeErrors`). OFFSET_OUT_OF_RANGE is retried if a follower returned it,
because the leader may have the offset.
"""
_UNKNOWN_EPOCH: Final = -1
_BATCH_START: Final = struct.Struct(">qiib")
_LENGTH_ENDS_AT: Final = 12
_MAGIC: Final = 2
"""The first message format with a leader epoch."""
_LAST_OFFSET_DELTA: Final = struct.Struct(">i")
_LAST_OFFSET_DELTA_AT: Final = 23
_HEADER_BYTES: Final = 61


@dataclass(frozen=True, slots=True)
class _InFlightFetch:
    """A fetch in flight that starts at offset `position` and requests `size` bytes."""

    connection: Connection
    pending: InFlightRequest[FetchResponse]
    position: int
    size: int


@dataclass(slots=True, kw_only=True)
class PartitionReader(ABC, Generic[T]):
    """Reads one offset range. Subclasses decode the batches. A reader can be used only once.

    `offset_of` looks up a special offset such as EARLIEST with ListOffsets and a short timeout.
    `check_existence` takes a topic id, and raises `UnknownTopicOrPartitionError` if the cluster
    confirms that the partition does not exist. `pinned_id` is the id of the topic to read. If
    `pinned_id` is None, the reader uses the id in the first Metadata response. `request_timeout_s`
    is `request.timeout.ms` in seconds, and `wait_ms_max` is `fetch.max.wait.ms`.
    """

    errors: FetchErrors
    router: Router
    offset_of: Callable[[int, IsolationLevel], int]
    check_existence: Callable[[UUID | None], None]
    pinned_id: UUID | None = None
    rack: str = ""
    wait_ms_max: int = 500
    request_timeout_s: float = 30.0
    sizes: FetchSizes = field(default_factory=FetchSizes)
    retrying: Backoff = field(default=Backoff())
    reconnecting: Backoff = field(default=Backoff())
    _preferred: int | None = None
    _persistent_failures: int = 0
    _read_epoch: int = _UNKNOWN_EPOCH
    _has_refreshed_topic: bool = False

    @property
    def fetch_range(self) -> FetchRange:
        """The range to read."""
        return self.errors.fetch_range

    def batches(self) -> Iterator[T]:
        """Yield the visible records of the range.

        Raises the same errors as `KafkaReadClient.fetch`.
        """
        position, end = self.fetch_range.start_offset, self.fetch_range.end_offset
        deadline = self._deadline()
        in_flight: _InFlightFetch | None = None
        attempts = 0
        try:
            while position < end:
                try:
                    in_flight = in_flight or self._send(position, deadline)
                    fetched = self._receive(in_flight, deadline)
                except (ApiError, BrokerUnreachableError, ProtocolError) as error:
                    in_flight = None
                    attempts += 1
                    LOG.info(
                        "%s failed (attempt %d): %s",
                        sentence(self.errors.operation(position)),
                        attempts,
                        reason_of(error),
                    )
                    self._check_retriable(position, error)
                    if not self._back_off(attempts, error, deadline):
                        raise self._timed_out(position, error) from None
                    continue
                request, in_flight = in_flight, None
                last = last_batch(fetched.records)
                following = max(position, last.next_offset)
                if following > position:
                    self._read_epoch = last.leader_epoch
                if position < following < end:
                    self.sizes.record_response(len(fetched.records), following - position)
                    in_flight = self._send_ahead(request.connection, following, deadline)
                next_offset = yield from self._decode(position, following, fetched)
                if next_offset != following:
                    self._read_epoch = _UNKNOWN_EPOCH
                if next_offset > position:
                    if in_flight is not None and in_flight.position != next_offset:
                        in_flight.pending.abandon()  # The predicted offset was wrong.
                        in_flight = None
                    position, attempts = next_offset, 0
                    deadline = self._deadline()  # Excludes the time that Spark needs for a batch.
                    del fetched, request  # Free memory before the next response.
                elif self._reports_end(fetched) and self._is_confirmed(request):
                    return
                else:
                    self._retry_without_progress(request, fetched, deadline)
        finally:
            if in_flight is not None:
                in_flight.pending.abandon()

    @abstractmethod
    def _decode(
        self, position: int, following: int, fetched: FetchedPartition
    ) -> Generator[T, None, int]:
        """Yield the records from `position` to `following`. Returns the next offset to read."""

    def _retry_without_progress(
        self, request: _InFlightFetch, fetched: FetchedPartition, deadline: float
    ) -> None:
        """Prepare a retry with another replica or a larger fetch size, or back off.

        Raises an error after `deadline`. If a follower's response shows that the range has no more
        records, the leader must confirm this.
        """
        if self._preferred is not None and self._reports_end(fetched):
            self._preferred, self.rack = None, ""
        elif len(fetched.records) > 0:
            if not self.sizes.grow_for_batch(request.size):
                partition = self.fetch_range.topic_partition
                raise CorruptBatchError(
                    f"{sentence(self.errors.operation(request.position))} failed: the response to "
                    f"a fetch request for {request.size} bytes contains no complete record batch.",
                    topic=partition.topic,
                    partition=partition.partition,
                    offset=request.position,
                )
        elif not _has_preferred_replica(fetched) and not self._back_off(1, None, deadline):
            raise self._timed_out(request.position, None)

    def _back_off(
        self, attempts: int, error: ApiError | KafkaError | None, deadline: float
    ) -> bool:
        backoff = self.reconnecting if isinstance(error, BrokerUnreachableError) else self.retrying
        return backoff.sleep(attempts, clock=self.router.clock, deadline=deadline)

    def _deadline(self) -> float:
        return self.router.clock.now() + self.errors.timeout_s

    def _soon(self, deadline: float) -> float:
        """Return a deadline for one request that leaves time to try another broker."""
        return min(deadline, self.router.clock.now() + self.request_timeout_s)

    # --- requests ---

    def _send_ahead(
        self, connection: Connection, position: int, deadline: float
    ) -> _InFlightFetch | None:
        """Send the next fetch. Return None after an error, which the next `_send` reports.

        Also returns None, without sending a fetch, if the broker is throttling `connection`.
        Waiting until the throttling ends would delay the rows that were already fetched.
        """
        if self.router.clock.left_s(connection.throttled_until):
            return None
        try:
            return self._send(position, deadline)
        except (ApiError, BrokerUnreachableError, ProtocolError) as error:
            LOG.info("%s failed: %s", sentence(self.errors.operation(position)), reason_of(error))
            return None

    def _send(self, position: int, deadline: float) -> _InFlightFetch:
        topic_partition = self.fetch_range.topic_partition
        soon = self._soon(deadline)
        topic_id = self._find_topic(soon)
        leader = self.router.leader(topic_partition)
        broker = leader.broker
        if self._preferred is not None:
            broker = self.router.metadata.brokers.get(self._preferred, broker)
        connection = self._connection(broker, soon)
        size = self.sizes.next_size(self.fetch_range.end_offset - position)
        partition = FetchPartition(
            topic_partition=topic_partition,
            topic_id=topic_id,
            fetch_offset=position,
            partition_bytes_max=size,
            current_leader_epoch=leader.leader_epoch,
            last_fetched_epoch=self._read_epoch,
        )
        limits = FetchLimits(
            isolation_level=self.errors.isolation_level,
            wait_ms_max=self.wait_ms_max,
            bytes_max=size,
            rack=self.rack,
        )
        version = fetch_version(connection.versions.choose(Api.FETCH), [partition])
        if (
            version <= LAST_VERSION_BY_NAME
            and topic_id is not None
            and not self._has_refreshed_topic
        ):
            self._refresh_topic(soon)  # A fetch by topic name does not detect a recreated topic.
        request = fetch_request(version, limits, [partition])
        try:
            pending = connection.send(request, deadline=deadline)
        except (BrokerUnreachableError, ProtocolError):
            # If the connection is still usable, the cause is throttling. A new connection would
            # ignore the throttling.
            if not connection.is_usable:
                self._drop_connection(connection)
            raise
        return _InFlightFetch(connection, pending, position, size)

    def _connection(self, broker: Broker, deadline: float) -> Connection:
        try:
            return self.router.connection(broker, deadline=deadline)
        except (BrokerUnreachableError, ProtocolError):
            self._invalidate_leader()
            raise

    def _find_topic(self, deadline: float) -> UUID | None:
        """Return the topic's id. Raises `ApiError` if the id is not `pinned_id`.

        Cached metadata may describe an earlier topic with this name, so the metadata is refreshed
        once.
        """
        name = self.fetch_range.topic_partition.topic
        found = self._topic_id(name, deadline)
        if found is not None and self.pinned_id not in (None, found):
            self.router.invalidate_topic(name)
            found = self._topic_id(name, deadline)
        if found is not None and self.pinned_id not in (None, found):
            self.router.invalidate_topic(name)
            raise ApiError(ErrorCode.unknown_topic_id, f"finding topic {name!r}")
        self.pinned_id = self.pinned_id or found
        return found

    def _topic_id(self, name: str, deadline: float) -> UUID | None:
        topic = self.router.topics([name], deadline=deadline).topics.get(name)
        return None if topic is None else _known_id(topic.topic_id)

    def _refresh_topic(self, deadline: float) -> None:
        self._has_refreshed_topic = True
        self.router.invalidate_topic(self.fetch_range.topic_partition.topic)
        self._find_topic(deadline)

    def _receive(self, request: _InFlightFetch, deadline: float) -> FetchedPartition:
        """Return the response for the partition. Raises `ApiError` for a retriable error code."""
        clock = self.router.clock
        until = self._soon(deadline) + self.wait_ms_max / 1000
        try:
            response = request.connection.receive(request.pending, deadline=until)
        except (BrokerUnreachableError, ProtocolError):
            if clock.now() >= until:
                self.sizes.shrink(request.size)
            self._drop_connection(request.connection)
            raise
        operation = self.errors.operation(request.position)
        if response.error_code is not ErrorCode.none:
            raise ApiError(response.error_code, operation)
        if not response.partitions:  # Brokers send an empty response to a throttled client.
            raise ApiError(ErrorCode.throttling_quota_exceeded, operation)
        (fetched,) = response.partitions
        code, truncated_at = fetched.error_code, None
        if code is ErrorCode.none and fetched.diverging is not None:  # KIP-320
            code, truncated_at = ErrorCode.offset_out_of_range, fetched.diverging.end_offset
        if code is ErrorCode.none:
            self._persistent_failures = 0
            if _has_preferred_replica(fetched):
                self._prefer(fetched.preferred_read_replica)
            return fetched
        is_from_follower, self._preferred = self._preferred is not None, None
        if code is ErrorCode.offset_out_of_range and not is_from_follower:
            raise self.errors.out_of_range(request.position, self._existing_offsets(), truncated_at)
        self._react(code, fetched, response, request.position)
        raise ApiError(code, operation)

    def _prefer(self, replica: int | None) -> None:
        """Read from the preferred read replica (KIP-392) if its address is known."""
        if replica in self.router.metadata.brokers:
            self._preferred = replica
        else:
            self.rack = ""  # With a rack id, the leader would return no records again.

    def _react(
        self, code: ErrorCode, fetched: FetchedPartition, response: FetchResponse, position: int
    ) -> None:
        """Update metadata after an error code. Raises an error if the code is not retriable."""
        partition = self.fetch_range.topic_partition
        if code in _RETRIED_UNCHANGED:
            return
        if code is ErrorCode.corrupt_message or REACTIONS[code] is Reaction.FAIL:
            raise self._failed(position, code)
        leader = fetched.current_leader
        if leader is None:
            self.router.invalidate(code, topic=partition.topic)
        else:  # The response contains the leader (KIP-951), so no request is needed.
            self.router.update_leader(
                partition,
                leader_id=leader.leader_id,
                leader_epoch=leader.leader_epoch,
                endpoints=response.endpoints,
            )

    def _failed(self, position: int, code: ErrorCode) -> KafkaError:
        kind = CorruptBatchError if code is ErrorCode.corrupt_message else error_class(code)
        partition = self.fetch_range.topic_partition
        return kind(
            f"{sentence(self.errors.operation(position))} failed: {format_code(code)}.",
            topic=partition.topic,
            partition=partition.partition,
            offset=position,
        )

    def _check_retriable(self, position: int, error: ApiError | KafkaError) -> None:
        """Raise an error if access is denied, or after five errors that are usually permanent."""
        if isinstance(error, ApiError) and issubclass(error_class(error.code), AccessError):
            raise self._failed(position, error.code) from None
        is_unknown = isinstance(error, ApiError) and error.code in _UNKNOWN
        if not is_unknown and not isinstance(error, ProtocolError):
            return
        self._persistent_failures += 1
        if self._persistent_failures % _PERSISTENT_TRIES:
            return
        if isinstance(error, ProtocolError):
            partition = self.fetch_range.topic_partition
            raise ProtocolError(
                f"{sentence(self.errors.operation(position))} failed: {reason_of(error)}.",
                advice=error.advice,
                topic=partition.topic,
                partition=partition.partition,
                offset=position,
            ) from None
        with suppress(ApiError, BrokerUnreachableError, ProtocolError):
            self.check_existence(self.pinned_id)

    def _drop_connection(self, connection: Connection) -> None:
        self.router.discard(connection)
        self._invalidate_leader()

    def _invalidate_leader(self) -> None:
        """Discard the cached leader and preferred replica, which may no longer be available."""
        self.router.invalidate_topic(self.fetch_range.topic_partition.topic)
        self._preferred = None

    # --- responses without progress ---

    def _reports_end(self, fetched: FetchedPartition) -> bool:
        """Return whether a response shows that the range has no more visible records."""
        visible_end = fetched.high_watermark
        if self.errors.isolation_level is IsolationLevel.READ_COMMITTED:
            visible_end = fetched.last_stable_offset
        return (
            len(fetched.records) == 0
            and not _has_preferred_replica(fetched)
            and visible_end >= self.fetch_range.end_offset
        )

    def _is_confirmed(self, request: _InFlightFetch) -> bool:
        """Return whether an empty response confirms that the range has no more records.

        A read from tiered storage that exceeds `remote.fetch.max.wait.ms` (KIP-405) also returns no
        records. Such a read starts below the earliest local offset. Returns False for a response
        from a follower, because ListOffsets returns the leader's earliest local offset, and the
        follower's earliest local offset can differ.
        """
        if self._preferred is not None:
            return False
        if request.connection.versions.choose(Api.LIST_OFFSETS) < _FIRST_WITH_EARLIEST_LOCAL:
            return True
        try:
            earliest_local = self.offset_of(_EARLIEST_LOCAL, IsolationLevel.READ_UNCOMMITTED)
        except KafkaError as error:
            LOG.info(
                "%s: the request for the earliest local offset failed: %s",
                sentence(self.errors.operation(request.position)),
                reason_of(error),
            )
            return False
        return request.position >= earliest_local

    def _existing_offsets(self) -> ExistingOffsets:
        return ExistingOffsets(
            log_start_offset=self.offset_of(EARLIEST, IsolationLevel.READ_UNCOMMITTED),
            last_stable_offset=self.offset_of(LATEST, IsolationLevel.READ_COMMITTED),
            high_watermark=self.offset_of(LATEST, IsolationLevel.READ_UNCOMMITTED),
        )

    def _timed_out(self, position: int, last: ApiError | KafkaError | None) -> KafkaError:
        """Return the timeout error. `last` is the error from the last attempt.

        Raises `UnknownTopicOrPartitionError` if the topic does not exist.
        """
        try:
            existing = self._existing_offsets()
        except BrokerUnreachableError as error:
            partition = self.fetch_range.topic_partition
            return BrokerUnreachableError(
                f"{sentence(self.errors.operation(position))} failed at "
                f"{self.errors.bootstrap_servers}: no attempt succeeded within "
                f"{self.errors.timeout_s:g} s ({reason_of(last or error)}).",
                advice=f"{(last if isinstance(last, KafkaError) else error).advice} {WAIT_LONGER}",
                topic=partition.topic,
                partition=partition.partition,
                offset=position,
            )
        except LeaderNotAvailableError:
            return self.errors.no_leader(position, last)
        return self.errors.no_data(position, existing, last)


@dataclass(slots=True, kw_only=True)
class RangeReader(PartitionReader[pa.RecordBatch]):
    """Reads a range as Arrow batches with the given columns (see `KafkaReadClient.fetch`)."""

    columns: tuple[str, ...]

    def _decode(
        self, position: int, following: int, fetched: FetchedPartition
    ) -> Generator[pa.RecordBatch, None, int]:
        decoded_bytes = 0
        while True:
            decoded = decode(fetched.records, self._wanted(position, fetched))
            decoded_bytes += sum(batch.nbytes for batch in decoded.batches)
            made_progress = decoded.next_offset > position
            position = decoded.next_offset
            yield from decoded.batches
            if not made_progress or position >= min(following, self.fetch_range.end_offset):
                self.sizes.record_decoded(decoded_bytes, len(fetched.records))
                return position
            del decoded

    def _wanted(self, position: int, fetched: FetchedPartition) -> DecodeRequest:
        partition = self.fetch_range.topic_partition
        aborted = None
        if self.errors.isolation_level is IsolationLevel.READ_COMMITTED:
            aborted = fetched.aborted or ()
        return DecodeRequest(
            topic=partition.topic,
            partition=partition.partition,
            start_offset=position,
            end_offset=self.fetch_range.end_offset,
            columns=self.columns,
            aborted=aborted,
        )


class LastBatch(NamedTuple):
    """The offset after the last complete batch, and the batch's leader epoch (-1 if unknown)."""

    next_offset: int
    leader_epoch: int


def last_batch(records: memoryview) -> LastBatch:
    """Return the next offset and the leader epoch of the last complete batch.

    The offset is -1 if there is no complete batch. Reads only the batch headers. The decoder
    validates them later.
    """
    position, found = 0, LastBatch(-1, _UNKNOWN_EPOCH)
    while position + _HEADER_BYTES <= len(records):
        base_offset, length, epoch, magic = _BATCH_START.unpack_from(records, position)
        end = position + _LENGTH_ENDS_AT + length
        if length < _HEADER_BYTES - _LENGTH_ENDS_AT or end > len(records):
            break
        (delta,) = _LAST_OFFSET_DELTA.unpack_from(records, position + _LAST_OFFSET_DELTA_AT)
        found = LastBatch(base_offset + delta + 1, epoch if magic == _MAGIC else _UNKNOWN_EPOCH)
        position = end
    return found


def _has_preferred_replica(fetched: FetchedPartition) -> bool:
    return fetched.preferred_read_replica is not None and fetched.preferred_read_replica >= 0


def _known_id(topic_id: UUID | None) -> UUID | None:
    return topic_id if topic_id is not None and topic_id.int else None
