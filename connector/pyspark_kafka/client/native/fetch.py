"""Reading one range of one topic partition as Arrow batches, over our own wire client.

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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

import pyarrow as pa
from kio.schema.errors import ErrorCode

from pyspark_kafka.client.base import FetchRange, IsolationLevel
from pyspark_kafka.client.fetch_faults import TIMEOUT_OPTION, ExistingOffsets, RangeFaults
from pyspark_kafka.errors import (
    BrokerUnreachable,
    CorruptBatchError,
    KafkaError,
    LeaderNotAvailable,
    ProtocolError,
)
from pyspark_kafka.records import Wanted, decode
from pyspark_kafka.wire.connection import Connection, Pending
from pyspark_kafka.wire.faults import REACTIONS, Reaction, error_class, remedy, said
from pyspark_kafka.wire.fetch import (
    FetchedPartition,
    FetchLimits,
    FetchPartition,
    FetchResponse,
    fetch_request,
    fetch_version,
)
from pyspark_kafka.wire.metadata import Broker
from pyspark_kafka.wire.retry import Backoff
from pyspark_kafka.wire.router import Refused, Router
from pyspark_kafka.wire.versions import Api

LOG: Final = logging.getLogger("pyspark_kafka.native")
LOG.addHandler(logging.NullHandler())

WAIT_MS_MAX: Final = 500
"""How long a broker may hold a fetch that finds nothing; `fetch.max.wait.ms`."""
FETCH_BYTES: Final = 4 * 1024 * 1024
FETCH_BYTES_MAX: Final = 64 * 1024 * 1024
_ANSWER_S: Final = 30.0
"""`request.timeout.ms`: a broker that takes longer is asked anew."""
_UNKNOWN_TRIES: Final = 3
_UNKNOWN: Final = frozenset({ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id})
_BATCH_START: Final = struct.Struct(">qi")
_LAST_OFFSET_DELTA: Final = struct.Struct(">i")
_LAST_OFFSET_DELTA_AT: Final = 23
_HEADER_BYTES: Final = 61


@dataclass(frozen=True, slots=True)
class _InFlight:
    """A fetch on its way."""

    connection: Connection
    pending: Pending[FetchResponse]
    broker: Broker


@dataclass(slots=True, kw_only=True)
class RangeReader:
    """Reads one range, once.

    `existing_offsets` is asked only to phrase an error. `check_existence` raises
    `UnknownTopicOrPartition` where that is certain.
    """

    faults: RangeFaults
    columns: tuple[str, ...]
    router: Router
    existing_offsets: Callable[[], ExistingOffsets]
    check_existence: Callable[[], None]
    rack: str = ""
    backoff: Backoff = field(default=Backoff())
    _fetch_bytes: int = FETCH_BYTES
    _preferred: int | None = None
    _unknown: int = 0

    @property
    def fetch_range(self) -> FetchRange:
        """What is wanted."""
        return self.faults.fetch_range

    def batches(self) -> Iterator[pa.RecordBatch]:
        """See `KafkaClient.fetch`."""
        position, end = self.fetch_range.start_offset, self.fetch_range.end_offset
        clock = self.router.clock
        deadline = self._deadline()
        in_flight: _InFlight | None = None
        tries = 0
        try:
            while position < end:
                try:
                    in_flight = in_flight or self._send(position, deadline)
                    asked, in_flight = in_flight, None
                    fetched = self._receive(asked, position, deadline)
                except (Refused, BrokerUnreachable, ProtocolError) as failed:
                    tries += 1
                    LOG.info("%s, try %d: %s", self.faults.doing(position), tries, failed)
                    if not self.backoff.pause(tries, clock=clock, deadline=deadline):
                        raise self._out_of_time(position, failed) from None
                    continue
                following = max(position, following_offset(fetched.records))
                if position < following < end:
                    in_flight = self._send_ahead(following, deadline)
                decoded = decode(fetched.records, self._wanted(position, fetched))
                yield from decoded.batches
                if decoded.next_offset > position:
                    position, tries = decoded.next_offset, 0
                    deadline = self._deadline()  # What Spark does meanwhile is not waiting.
                elif self._is_at_end(fetched):
                    return
                elif len(fetched.records) > 0:
                    self._ask_for_more(position)
                elif clock.now() >= deadline:
                    raise self._out_of_time(position, None)
        finally:
            if in_flight is not None:
                in_flight.pending.abandon()

    def _deadline(self) -> float:
        return self.router.clock.now() + self.faults.waited_s

    def _wanted(self, position: int, fetched: FetchedPartition) -> Wanted:
        partition = self.fetch_range.topic_partition
        aborted = None
        if self.faults.isolation_level is IsolationLevel.READ_COMMITTED:
            aborted = fetched.aborted or ()
        return Wanted(
            topic=partition.topic,
            partition=partition.partition,
            start_offset=position,
            end_offset=self.fetch_range.end_offset,
            columns=self.columns,
            aborted=aborted,
        )

    # Asking

    def _send_ahead(self, position: int, deadline: float) -> _InFlight | None:
        """Ask for what follows; what goes wrong is met when it is waited for."""
        try:
            return self._send(position, deadline)
        except (Refused, BrokerUnreachable, ProtocolError) as failed:
            LOG.info("%s: %s", self.faults.doing(position), failed)
            return None

    def _send(self, position: int, deadline: float) -> _InFlight:
        wanted = self.fetch_range.topic_partition
        metadata = self.router.topics([wanted.topic], deadline=deadline)
        leader = self.router.leader(wanted)
        broker = leader.broker
        if self._preferred is not None:
            broker = self.router.metadata.brokers.get(self._preferred, broker)
        connection = self.router.connection(broker, deadline=deadline)
        topic = metadata.topics.get(wanted.topic)
        partition = FetchPartition(
            topic_partition=wanted,
            topic_id=_known_id(topic.topic_id) if topic is not None else None,
            fetch_offset=position,
            partition_bytes_max=self._fetch_bytes,
            current_leader_epoch=leader.leader_epoch,
        )
        limits = FetchLimits(
            isolation_level=self.faults.isolation_level,
            wait_ms_max=WAIT_MS_MAX,
            bytes_max=self._fetch_bytes,
            rack=self.rack,
        )
        version = fetch_version(connection.versions.choose(Api.FETCH), [partition])
        try:
            pending = connection.send(
                fetch_request(version, limits, [partition]), deadline=deadline
            )
        except (BrokerUnreachable, ProtocolError):
            self._give_up(connection)
            raise
        return _InFlight(connection, pending, broker)

    def _receive(self, asked: _InFlight, position: int, deadline: float) -> FetchedPartition:
        """The partition's answer, where that is no error. Raises what may pass as `Refused`."""
        until = min(deadline, self.router.clock.now() + _ANSWER_S) + WAIT_MS_MAX / 1000
        try:
            response = asked.connection.receive(asked.pending, deadline=until)
        except (BrokerUnreachable, ProtocolError):
            self._give_up(asked.connection)
            raise
        if response.error_code is not ErrorCode.none:
            raise Refused(response.error_code, self.faults.doing(position))
        if not response.partitions:  # All that a broker says to whom it throttles.
            raise Refused(ErrorCode.throttling_quota_exceeded, self.faults.doing(position))
        (fetched,) = response.partitions
        if fetched.error_code is ErrorCode.none:
            self._unknown = 0
            if _names_replica(fetched):
                self._preferred = fetched.preferred_read_replica
            return fetched
        is_of_replica, self._preferred = self._preferred is not None, None
        if fetched.error_code is ErrorCode.offset_out_of_range and not is_of_replica:
            raise self.faults.out_of_range(position, self.existing_offsets())
        self._react(fetched, response, position)
        raise Refused(fetched.error_code, self.faults.doing(position))

    def _react(self, fetched: FetchedPartition, response: FetchResponse, position: int) -> None:
        """Note what an error says is wrong; raises where asking again does not help."""
        code = fetched.error_code
        partition = self.fetch_range.topic_partition
        if code is ErrorCode.corrupt_message or REACTIONS[code] is Reaction.FAIL:
            if code is ErrorCode.offset_out_of_range:
                return  # A follower says so: its leader may have it.
            kind = CorruptBatchError if code is ErrorCode.corrupt_message else error_class(code)
            raise kind(f"{self.faults.doing(position)} failed: {said(code)}; {remedy(kind)}")
        self.router.note(code, topic=partition.topic)
        if fetched.current_leader is not None and fetched.current_leader.leader_id >= 0:
            self.router.leader_moved(
                partition,
                leader_id=fetched.current_leader.leader_id,
                leader_epoch=fetched.current_leader.leader_epoch,
                endpoints=response.endpoints,
            )
        if code in _UNKNOWN:
            self._unknown += 1
            if self._unknown % _UNKNOWN_TRIES == 0:
                self.check_existence()

    def _give_up(self, connection: Connection) -> None:
        self.router.failed(connection)
        self.router.forget_topic(self.fetch_range.topic_partition.topic)
        self._preferred = None

    # What an answer without progress means

    def _is_at_end(self, fetched: FetchedPartition) -> bool:
        """Whether nothing that can be shown is left below the end of the range.

        A leader that names another replica to read from (KIP-392) gives no records either.
        """
        shown = fetched.high_watermark
        if self.faults.isolation_level is IsolationLevel.READ_COMMITTED:
            shown = fetched.last_stable_offset
        return (
            len(fetched.records) == 0
            and not _names_replica(fetched)
            and shown >= self.fetch_range.end_offset
        )

    def _ask_for_more(self, position: int) -> None:
        """What came is a part of one batch: brokers before 0.10.1 cut it off there."""
        if self._fetch_bytes >= FETCH_BYTES_MAX:
            raise CorruptBatchError(
                f"{self.faults.doing(position)}: {self._fetch_bytes} bytes hold no whole batch; "
                f"{remedy(CorruptBatchError)}"
            )
        self._fetch_bytes *= 2

    def _out_of_time(self, position: int, failed: Refused | KafkaError | None) -> KafkaError:
        """Why nothing came for so long, as well as can be told.

        Raises `UnknownTopicOrPartition` where the topic is gone.
        """
        try:
            existing = self.existing_offsets()
        except BrokerUnreachable as error:
            return BrokerUnreachable(
                f"{self.faults.doing(position)} failed: {self.faults.bootstrap_servers} did not "
                f"answer within {self.faults.waited_s:g} s ({failed or error}); "
                f"{remedy(BrokerUnreachable)}, or raise '{TIMEOUT_OPTION}' to wait longer"
            )
        except LeaderNotAvailable:
            return self.faults.no_leader(position)
        return self.faults.nothing_came(position, existing)


def following_offset(records: memoryview) -> int:
    """One past the last offset of the last whole batch; -1 where there is none.

    Looks at headers alone, and believes them: whoever decodes the bytes checks them.
    """
    position, following = 0, -1
    while position + _HEADER_BYTES <= len(records):
        base_offset, length = _BATCH_START.unpack_from(records, position)
        end = position + _BATCH_START.size + length
        if length < _HEADER_BYTES - _BATCH_START.size or end > len(records):
            break
        (delta,) = _LAST_OFFSET_DELTA.unpack_from(records, position + _LAST_OFFSET_DELTA_AT)
        following = base_offset + delta + 1
        position = end
    return following


def _names_replica(fetched: FetchedPartition) -> bool:
    return fetched.preferred_read_replica is not None and fetched.preferred_read_replica >= 0


def _known_id(topic_id: UUID | None) -> UUID | None:
    return topic_id if topic_id is not None and topic_id.int else None
