"""Reading one range of one topic partition over our own wire client.

Purpose: fetch, decode and yield until the range is covered. The next fetch is on its way before
what came is decoded, so that brokers work while we do. Invariant: what is yielded are the visible
records of the range, each once and in order; every wait ends after `poll_timeout_ms` without news;
no more than two responses are held. What it must not know: Spark, sockets, how ranges are planned.

The end of a range needs no record: it is reached when batches say so, or when the broker has
nothing more below the end that the isolation level could show.
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

from pyspark_kafka.client.fetch_errors import TIMEOUT_OPTION, ExistingOffsets, FetchErrors
from pyspark_kafka.client.native.fetch_sizes import FetchSizes
from pyspark_kafka.errors import (
    BrokerUnreachableError,
    CorruptBatchError,
    KafkaError,
    LeaderNotAvailableError,
    ProtocolError,
    reason_of,
)
from pyspark_kafka.kafka.offsets import EARLIEST, LATEST, FetchRange, IsolationLevel
from pyspark_kafka.records import DecodeRequest, decode
from pyspark_kafka.wire.connection import Connection, Pending
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
"""Of ListOffsets (KIP-405); brokers before that keep no record elsewhere."""
_LASTING_TRIES: Final = 5
"""Of what mostly does not pass; new metadata needs a moment to reach all brokers."""
_UNKNOWN: Final = frozenset({ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id})
_UNKNOWN_EPOCH: Final = -1
_BATCH_START: Final = struct.Struct(">qiib")
_LENGTH_ENDS_AT: Final = 12
_MAGIC: Final = 2
"""Earlier formats have no epoch."""
_LAST_OFFSET_DELTA: Final = struct.Struct(">i")
_LAST_OFFSET_DELTA_AT: Final = 23
_HEADER_BYTES: Final = 61


@dataclass(frozen=True, slots=True)
class _InFlight:
    """A fetch on its way: from which offset, and how many bytes."""

    connection: Connection
    pending: Pending[FetchResponse]
    position: int
    size: int


@dataclass(slots=True, kw_only=True)
class PartitionReader(ABC, Generic[T]):
    """Reads one range, once, as whatever a subclass makes of the bytes.

    `offset_of` asks where the log has one of Kafka's special offsets; where that fails, it fails
    soon. `check_existence` is given the id of the topic that is read and raises
    `UnknownTopicOrPartitionError` where its partition is gone for certain. Without `pinned_id` the topic
    that is found first is the one. A broker has `answer_s` for an answer
    (`request.timeout.ms`), `wait_ms_max` of it to wait for records (`fetch.max.wait.ms`).
    """

    faults: FetchErrors
    router: Router
    offset_of: Callable[[int, IsolationLevel], int]
    check_existence: Callable[[UUID | None], None]
    pinned_id: UUID | None = None
    rack: str = ""
    wait_ms_max: int = 500
    answer_s: float = 30.0
    sizes: FetchSizes = field(default_factory=FetchSizes)
    retrying: Backoff = field(default=Backoff())
    reconnecting: Backoff = field(default=Backoff())
    _preferred: int | None = None
    _lasting: int = 0
    _read_epoch: int = _UNKNOWN_EPOCH
    _has_looked: bool = False

    @property
    def fetch_range(self) -> FetchRange:
        """What is wanted."""
        return self.faults.fetch_range

    def batches(self) -> Iterator[T]:
        """All that is visible of the range; raises what `KafkaReads.fetch` raises."""
        position, end = self.fetch_range.start_offset, self.fetch_range.end_offset
        deadline = self._deadline()
        in_flight: _InFlight | None = None
        tries = 0
        try:
            while position < end:
                try:
                    in_flight = in_flight or self._send(position, deadline)
                    fetched = self._receive(in_flight, deadline)
                except (ApiError, BrokerUnreachableError, ProtocolError) as failed:
                    in_flight = None
                    tries += 1
                    LOG.info("%s, try %d: %s", self.faults.doing(position), tries, failed)
                    self._count_lasting(position, failed)
                    if not self._pause(tries, failed, deadline):
                        raise self._out_of_time(position, failed) from None
                    continue
                asked, in_flight = in_flight, None
                last = last_batch(fetched.records)
                following = max(position, last.next_offset)
                if following > position:
                    self._read_epoch = last.leader_epoch
                if position < following < end:
                    self.sizes.came(len(fetched.records), following - position)
                    in_flight = self._send_ahead(asked.connection, following, deadline)
                next_offset = yield from self._rows(position, following, fetched)
                if next_offset != following:
                    self._read_epoch = _UNKNOWN_EPOCH
                if next_offset > position:
                    if in_flight is not None and in_flight.position != next_offset:
                        in_flight.pending.abandon()  # The headers said one thing, the rest another.
                        in_flight = None
                    position, tries = next_offset, 0
                    deadline = self._deadline()  # What Spark does meanwhile is not waiting.
                    del fetched, asked  # The next answer is on its way: hold no more than that.
                elif self._is_at_end(asked, fetched):
                    return
                else:
                    self._go_on_without_progress(asked, fetched, deadline)
        finally:
            if in_flight is not None:
                in_flight.pending.abandon()

    @abstractmethod
    def _rows(
        self, position: int, following: int, fetched: FetchedPartition
    ) -> Generator[T, None, int]:
        """Yield what came from `position` to `following`; returns where to go on."""

    def _go_on_without_progress(
        self, asked: _InFlight, fetched: FetchedPartition, deadline: float
    ) -> None:
        """See that the next try differs, or comes later; raises where there is none."""
        if len(fetched.records) > 0:
            if not self.sizes.held_no_batch(asked.size):
                raise CorruptBatchError(
                    f"{self.faults.doing(asked.position)}: {asked.size} bytes hold no whole batch."
                )
        elif not _names_replica(fetched) and not self._pause(1, None, deadline):
            raise self._out_of_time(asked.position, None)

    def _pause(self, tries: int, failed: ApiError | KafkaError | None, deadline: float) -> bool:
        backoff = self.reconnecting if isinstance(failed, BrokerUnreachableError) else self.retrying
        return backoff.pause(tries, clock=self.router.clock, deadline=deadline)

    def _deadline(self) -> float:
        return self.router.clock.now() + self.faults.waited_s

    def _soon(self, deadline: float) -> float:
        """Until when to wait for one broker, so that another one can still be asked."""
        return min(deadline, self.router.clock.now() + self.answer_s)

    # RetryLoop

    def _send_ahead(
        self, connection: Connection, position: int, deadline: float
    ) -> _InFlight | None:
        """Ask for what follows; what goes wrong is met when it is waited for.

        Rows in hand do not wait until the broker stops throttling `connection`.
        """
        if self.router.clock.left_s(connection.throttled_until):
            return None
        try:
            return self._send(position, deadline)
        except (ApiError, BrokerUnreachableError, ProtocolError) as failed:
            LOG.info("%s: %s", self.faults.doing(position), failed)
            return None

    def _send(self, position: int, deadline: float) -> _InFlight:
        wanted = self.fetch_range.topic_partition
        soon = self._soon(deadline)
        topic_id = self._find_topic(soon)
        leader = self.router.leader(wanted)
        broker = leader.broker
        if self._preferred is not None:
            broker = self.router.metadata.brokers.get(self._preferred, broker)
        connection = self._connection(broker, soon)
        size = self.sizes.ask(self.fetch_range.end_offset - position)
        partition = FetchPartition(
            topic_partition=wanted,
            topic_id=topic_id,
            fetch_offset=position,
            partition_bytes_max=size,
            current_leader_epoch=leader.leader_epoch,
            last_fetched_epoch=self._read_epoch,
        )
        limits = FetchLimits(
            isolation_level=self.faults.isolation_level,
            wait_ms_max=self.wait_ms_max,
            bytes_max=size,
            rack=self.rack,
        )
        version = fetch_version(connection.versions.choose(Api.FETCH), [partition])
        if version <= LAST_VERSION_BY_NAME and topic_id is not None and not self._has_looked:
            self._look_anew(soon)  # A fetch by name does not tell one topic from the next.
        request = fetch_request(version, limits, [partition])
        try:
            pending = connection.send(request, deadline=deadline)
        except (BrokerUnreachableError, ProtocolError):
            if not connection.is_usable:  # Else it is throttled; a new one would not know.
                self._give_up(connection)
            raise
        return _InFlight(connection, pending, position, size)

    def _connection(self, broker: Broker, deadline: float) -> Connection:
        try:
            return self.router.connection(broker, deadline=deadline)
        except (BrokerUnreachableError, ProtocolError):
            self._ask_who_leads()
            raise

    def _find_topic(self, deadline: float) -> UUID | None:
        """The topic's id in fresh metadata; raises `ApiError` where that is not the one pinned.

        What is known may be of an earlier topic of this name: then it is asked for once more.
        """
        name = self.fetch_range.topic_partition.topic
        found = self._topic_id(name, deadline)
        if found is not None and self.pinned_id not in (None, found):
            self.router.forget_topic(name)
            found = self._topic_id(name, deadline)
        if found is not None and self.pinned_id not in (None, found):
            self.router.forget_topic(name)
            raise ApiError(ErrorCode.unknown_topic_id, f"finding the topic {name}")
        self.pinned_id = self.pinned_id or found
        return found

    def _topic_id(self, name: str, deadline: float) -> UUID | None:
        topic = self.router.topics([name], deadline=deadline).topics.get(name)
        return None if topic is None else _known_id(topic.topic_id)

    def _look_anew(self, deadline: float) -> None:
        self._has_looked = True
        self.router.forget_topic(self.fetch_range.topic_partition.topic)
        self._find_topic(deadline)

    def _receive(self, asked: _InFlight, deadline: float) -> FetchedPartition:
        """The partition's answer, where that is no error. Raises what may pass as `ApiError`."""
        clock = self.router.clock
        until = self._soon(deadline) + self.wait_ms_max / 1000
        try:
            response = asked.connection.receive(asked.pending, deadline=until)
        except (BrokerUnreachableError, ProtocolError):
            if clock.now() >= until:
                self.sizes.took_too_long(asked.size)
            self._give_up(asked.connection)
            raise
        doing = self.faults.doing(asked.position)
        if response.error_code is not ErrorCode.none:
            raise ApiError(response.error_code, doing)
        if not response.partitions:  # All that a broker says to whom it throttles.
            raise ApiError(ErrorCode.throttling_quota_exceeded, doing)
        (fetched,) = response.partitions
        code, cut_at = fetched.error_code, None
        if code is ErrorCode.none and fetched.diverging is not None:  # KIP-320
            code, cut_at = ErrorCode.offset_out_of_range, fetched.diverging.end_offset
        if code is ErrorCode.none:
            self._lasting = 0
            if _names_replica(fetched):
                self._prefer(fetched.preferred_read_replica)
            return fetched
        is_of_replica, self._preferred = self._preferred is not None, None
        if code is ErrorCode.offset_out_of_range and not is_of_replica:
            raise self.faults.out_of_range(asked.position, self._existing_offsets(), cut_at)
        self._react(code, fetched, response, asked.position)
        raise ApiError(code, doing)

    def _prefer(self, replica: int | None) -> None:
        """Read from the replica that the leader names (KIP-392), if that is a broker we know."""
        if replica in self.router.metadata.brokers:
            self._preferred = replica
        else:
            self.rack = ""  # Else the leader would name it ever again, and give nothing.

    def _react(
        self, code: ErrorCode, fetched: FetchedPartition, response: FetchResponse, position: int
    ) -> None:
        """Note what an error says is wrong; raises where asking again does not help."""
        partition = self.fetch_range.topic_partition
        if code is ErrorCode.corrupt_message or REACTIONS[code] is Reaction.FAIL:
            if code is ErrorCode.offset_out_of_range:
                return  # A follower says so: its leader may have it.
            kind = CorruptBatchError if code is ErrorCode.corrupt_message else error_class(code)
            raise kind(f"{self.faults.doing(position)} failed: {format_code(code)}.")
        leader = fetched.current_leader
        if leader is None:
            self.router.invalidate(code, topic=partition.topic)
        else:  # KIP-951 saves asking for metadata.
            self.router.update_leader(
                partition,
                leader_id=leader.leader_id,
                leader_epoch=leader.leader_epoch,
                endpoints=response.endpoints,
            )

    def _count_lasting(self, position: int, failed: ApiError | KafkaError) -> None:
        """Raise what mostly does not pass, once it has come a few times."""
        is_unknown = isinstance(failed, ApiError) and failed.code in _UNKNOWN
        if not is_unknown and not isinstance(failed, ProtocolError):
            return
        self._lasting += 1
        if self._lasting % _LASTING_TRIES:
            return
        if isinstance(failed, ProtocolError):
            raise ProtocolError(f"{self.faults.doing(position)} failed: {failed}") from None
        with suppress(ApiError, BrokerUnreachableError, ProtocolError):
            self.check_existence(self.pinned_id)

    def _give_up(self, connection: Connection) -> None:
        self.router.discard(connection)
        self._ask_who_leads()

    def _ask_who_leads(self) -> None:
        """Whoever was asked last may be gone for good: another one leads, or is to be read."""
        self.router.forget_topic(self.fetch_range.topic_partition.topic)
        self._preferred = None

    # What an answer without progress means

    def _is_at_end(self, asked: _InFlight, fetched: FetchedPartition) -> bool:
        """Whether nothing that can be shown is left below the end of the range.

        A leader that names another replica to read from (KIP-392) gives no records either, nor does
        one whose tiered storage takes too long (KIP-405, `remote.fetch.max.wait.ms`).
        """
        shown = fetched.high_watermark
        if self.faults.isolation_level is IsolationLevel.READ_COMMITTED:
            shown = fetched.last_stable_offset
        return (
            len(fetched.records) == 0
            and not _names_replica(fetched)
            and shown >= self.fetch_range.end_offset
            and self._is_local(asked)
        )

    def _is_local(self, asked: _InFlight) -> bool:
        """Whether the broker has what was asked for on its own disk, as far as is known."""
        if asked.connection.versions.choose(Api.LIST_OFFSETS) < _FIRST_WITH_EARLIEST_LOCAL:
            return True
        try:
            earliest_local = self.offset_of(_EARLIEST_LOCAL, IsolationLevel.READ_UNCOMMITTED)
        except KafkaError as failed:
            LOG.info("%s: %s", self.faults.doing(asked.position), failed)
            return False
        return asked.position >= earliest_local

    def _existing_offsets(self) -> ExistingOffsets:
        return ExistingOffsets(
            log_start_offset=self.offset_of(EARLIEST, IsolationLevel.READ_UNCOMMITTED),
            last_stable_offset=self.offset_of(LATEST, IsolationLevel.READ_COMMITTED),
            high_watermark=self.offset_of(LATEST, IsolationLevel.READ_UNCOMMITTED),
        )

    def _out_of_time(self, position: int, failed: ApiError | KafkaError | None) -> KafkaError:
        """Why nothing came for so long, as well as can be told.

        Raises `UnknownTopicOrPartitionError` where the topic is gone.
        """
        try:
            existing = self._existing_offsets()
        except BrokerUnreachableError as error:
            return BrokerUnreachableError(
                f"{self.faults.doing(position)} failed: {self.faults.bootstrap_servers} did not "
                f"answer within {self.faults.waited_s:g} s ({reason_of(failed or error)}).",
                advice=f"{BrokerUnreachableError.remedy} To wait longer, raise '{TIMEOUT_OPTION}'.",
            )
        except LeaderNotAvailableError:
            return self.faults.no_leader(position, failed)
        return self.faults.nothing_came(position, existing, failed)


@dataclass(slots=True, kw_only=True)
class RangeReader(PartitionReader[pa.RecordBatch]):
    """As Arrow batches with these columns: see `KafkaReads.fetch`."""

    columns: tuple[str, ...]

    def _rows(
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
                self.sizes.decoded(decoded_bytes, len(fetched.records))
                return position
            del decoded

    def _wanted(self, position: int, fetched: FetchedPartition) -> DecodeRequest:
        partition = self.fetch_range.topic_partition
        aborted = None
        if self.faults.isolation_level is IsolationLevel.READ_COMMITTED:
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
    """Of the last whole batch: one past its last offset, and its leader's epoch (-1: unknown)."""

    next_offset: int
    leader_epoch: int


def last_batch(records: memoryview) -> LastBatch:
    """Its offset is -1 where no batch is whole.

    Looks at headers alone, and believes them: whoever decodes the bytes checks them.
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


def _names_replica(fetched: FetchedPartition) -> bool:
    return fetched.preferred_read_replica is not None and fetched.preferred_read_replica >= 0


def _known_id(topic_id: UUID | None) -> UUID | None:
    return topic_id if topic_id is not None and topic_id.int else None
