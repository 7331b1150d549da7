"""The idempotent producer of the `native` engine, which runs in the caller's thread.

The producer encodes rows as batches, sends the batches to leaders, and waits for all
acknowledgments. Invariant: `flush` returns only if every row is acknowledged. A call raises an
error if a row has waited longer than `delivery_timeout_s`. At most `buffer_bytes` bytes are
buffered, unless a single row is larger. `batch_queues` determines the order in which batches are
sent.

The producer has no background thread. Deadlines exclude the time between calls, so a slow source
does not cause timeouts. Each call handles the responses that have arrived and sends the batches
that are ready. `flush` waits for all responses, but `send` waits only if the buffer is full.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from kio.schema.errors import ErrorCode

from pyspark_kafka.client.delivery_errors import DeliveryErrors
from pyspark_kafka.client.native.batch_queues import (
    PRODUCE_REACTIONS,
    BatchQueues,
    ProducerBatch,
    ProduceReaction,
)
from pyspark_kafka.client.native.leader_connections import (
    RESPONSE_GRACE_S,
    LeaderConnection,
    LeaderConnections,
    ProduceCall,
    growing_timeout_s,
)
from pyspark_kafka.client.native.produce_errors import (
    batch_rejected,
    request_failed,
    topic_not_available,
)
from pyspark_kafka.client.native.producer_settings import ProducerSettings
from pyspark_kafka.client.native.row_buffer import by_topic, check_record_sizes, pieces_of
from pyspark_kafka.client.native.topic_state import TopicState, known_id
from pyspark_kafka.errors import (
    BrokerUnreachableError,
    DeliveryError,
    KafkaError,
    ProtocolError,
    PysparkKafkaError,
    reason_of,
)
from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.kafka.transactions import ProducerIdAndEpoch
from pyspark_kafka.records import Codec, Encoding, ProducerState, encode
from pyspark_kafka.records.encoding import next_sequence
from pyspark_kafka.records.splitting import split
from pyspark_kafka.wire.connection import Connection, wait_any
from pyspark_kafka.wire.error_codes import format_code
from pyspark_kafka.wire.metadata import NO_LEADER, Broker, TopicMetadata
from pyspark_kafka.wire.produce import (
    ProducedPartition,
    ProducePartition,
    ProduceResponse,
    produce_request,
    produce_version,
)
from pyspark_kafka.wire.producer_id import request_producer_id
from pyspark_kafka.wire.router import MISCONFIGURED_TIMEOUT_S, ApiError, Router
from pyspark_kafka.wire.versions import Api

LOG: Final = logging.getLogger("pyspark_kafka.native")
LOG.addHandler(logging.NullHandler())

_FIRST_TIMEOUT_S: Final = 2.0
"""The timeout for the first metadata request. It is short because requests block the caller."""
_PARTITION_CHECKS: Final = 3
_RANDOM_MAX: Final = 2**31
_BATCH_BYTES_MIN: Final = 512
_PIECE_BYTES_MAX: Final = 512 * 1024 * 1024
"""Two pieces are encoded together, and an Arrow array with 32-bit offsets is limited to 2 GiB."""
_WAIT_S_MAX: Final = 0.5
_RETRIABLE: Final = (ApiError, BrokerUnreachableError, ProtocolError)
_UNKNOWN: Final = frozenset({ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id})


class NativeProducer:
    """Implements `client.port.Producer`."""

    def __init__(
        self,
        router: Router,
        settings: ProducerSettings,
        errors: DeliveryErrors,
        *,
        give_back: Callable[[NativeProducer], None],
        wall_clock_s: Callable[[], float] = time.time,
        transactional_id: str | None = None,
        producer_id: ProducerIdAndEpoch | None = None,
        connections: LeaderConnections | None = None,
    ) -> None:
        """Create a producer. If `producer_id` is None, the producer requests a producer id.

        `connections` are open connections to reuse. `close` passes the producer to `give_back`.
        """
        self.idle_since = 0.0
        self._router = router
        self._clock = router.clock
        self._settings = settings
        self._errors = errors
        self._give_back = give_back
        self._wall_clock_s = wall_clock_s
        self._queues = BatchQueues(
            split=partial(split, level=settings.level),
            in_flight_max=settings.in_flight_max,
            request_bytes_max=settings.request_bytes_max,
        )
        self._topics: dict[str, TopicState] = {}
        self._connections = connections or LeaderConnections(
            router,
            request_timeout_s=settings.request_timeout_s,
            connect_timeout_s=settings.connect_timeout_s,
        )
        self._transactional_id = transactional_id
        self._id = producer_id
        self._failed: PysparkKafkaError | None = None
        self._returned_at = self._clock.now()
        # The metadata requests: the number of consecutive failures, the number of failures without
        # a response (which increases the timeout), the time of the next attempt, and the last
        # failure.
        self._failed_requests = 0
        self._unanswered_requests = 0
        self._retry_at = 0.0
        self._last_failure: str | None = None
        self._partition_failures: dict[TopicPartition, str] = {}

    # --- Producer ---

    def send(self, batch: pa.RecordBatch) -> None:
        self._resume()
        groups = by_topic(batch)
        for topic, rows in groups:
            check_record_sizes(rows, topic, self._errors)
            self._check_partitions(topic, rows)
        for topic, rows in groups:
            for piece in pieces_of(rows, self._piece_bytes):
                self._make_room(piece.nbytes)
                held = self._topic(topic)
                held.rows.add(piece, self._clock.now())
                if self._is_ready_to_encode(topic, held):
                    self._progress()
        self._progress()
        self._returned_at = self._clock.now()

    def flush(self) -> None:
        self._resume()
        while self._has_work():
            self._progress(include_all=True)
            if self._has_work():
                self._wait()
        self._returned_at = self._clock.now()

    def close(self) -> None:
        self._give_back(self)

    def abort(self) -> None:
        self._failed = self._failed or DeliveryError("The producer was aborted.", advice="")
        with suppress(Exception):
            self.end()

    def end(self) -> None:
        """Close the connections and discard all rows."""
        self._topics.clear()
        self._connections.close()

    def clear_failures(self) -> None:
        """Clear the failures of the previous task."""
        self._last_failure = None
        self._partition_failures.clear()
        self._failed_requests, self._unanswered_requests, self._retry_at = 0, 0, 0.0
        for topic in self._topics.values():
            topic.unknown_since = None

    # --- the buffer ---

    @property
    def _piece_bytes(self) -> int:
        """The maximum size in bytes of a buffered slice of rows.

        A slice with a single row can be larger.
        """
        return max(1, min(self._settings.buffer_bytes // 4, _PIECE_BYTES_MAX))

    @property
    def _held_bytes(self) -> int:
        return self._queues.unacknowledged_bytes + sum(
            topic.rows.bytes for topic in self._topics.values()
        )

    def _topic(self, name: str) -> TopicState:
        found = self._topics.get(name)
        if found is None:
            # A random start distributes the first batches of the tasks over the partitions.
            found = self._topics[name] = TopicState(
                batch_bytes_max=self._settings.batch_bytes_max,
                unkeyed_batches=int(self._clock.random() * _RANDOM_MAX),
            )
        return found

    def _has_work(self) -> bool:
        return not self._queues.is_empty or any(t.rows.pieces for t in self._topics.values())

    def _make_room(self, size: int) -> None:
        """Wait until the buffer has room for `size` bytes, or is empty."""
        while self._held_bytes + size > self._settings.buffer_bytes and self._has_work():
            self._progress(include_all=True)
            if self._held_bytes + size > self._settings.buffer_bytes and self._has_work():
                self._wait()

    def _check_partitions(self, topic: str, rows: pa.RecordBatch) -> None:
        """Raise `RowError` if a partition does not exist even after a metadata refresh."""
        if "partition" not in rows.schema.names:
            return
        highest = pc.max(rows.column("partition")).as_py()
        known = self._router.metadata.topics.get(topic)
        if highest is None or known is None or highest < len(known.partitions):
            return
        for attempts in range(1, _PARTITION_CHECKS + 1):
            self._router.invalidate_topic(topic)
            deadline = self._clock.now() + self._request_timeout_s(attempts - 1)
            with suppress(*_RETRIABLE):
                known = self._router.topics([topic], deadline=deadline).topics.get(topic)
            if known is not None and highest < len(known.partitions):
                return
            # The metadata of new partitions takes some time to reach all brokers.
            self._settings.backoff.sleep(attempts, clock=self._clock, deadline=deadline)
        raise self._errors.no_such_partition(topic, highest)

    # --- progress ---

    def _progress(self, *, include_all: bool = False) -> None:
        """Handle responses, encode rows, and send batches.

        If `include_all` is False, only rows that are ready are encoded.
        """
        try:
            self._handle_responses()
            if self._connections.fail_overdue():
                self._handle_responses()
            self._refresh_cluster()
            self._handle_responses()  # acknowledgments that arrived while the refresh blocked
            self._check_deadlines()
            for name, topic in self._topics.items():
                if topic.rows.pieces and (include_all or self._is_ready_to_encode(name, topic)):
                    self._encode(name, topic)
            self._send_ready()
        except PysparkKafkaError as error:
            self._failed = error
            raise

    def _resume(self) -> None:
        """Re-raise an earlier error, or extend the deadlines by the time since the last call."""
        if self._failed is not None:
            raise self._failed
        outside_s = self._clock.now() - self._returned_at
        self._queues.extend_deadlines(outside_s)
        self._connections.extend_deadlines(outside_s)
        self._router.extend_deadlines(outside_s)
        for topic in self._topics.values():
            topic.rows.oldest_at += outside_s
            if topic.unknown_since is not None:
                topic.unknown_since += outside_s

    def _is_ready_to_encode(self, name: str, topic: TopicState) -> bool:
        """Return whether the rows fill batches or have waited long enough."""
        held_s = self._clock.now() - topic.rows.oldest_at
        if held_s >= min(self._settings.linger_s, self._settings.delivery_timeout_s / 2):
            return True
        full_bytes = topic.batch_bytes_max
        known = self._router.metadata.topics.get(name)
        if topic.rows.has_keys and known is not None:
            full_bytes *= len(known.partitions)
        return topic.rows.bytes >= min(full_bytes, self._piece_bytes)

    def _encode(self, name: str, topic: TopicState) -> None:
        """Encode the rows of a topic if its metadata and the producer id are known."""
        known = self._router.metadata.topics.get(name)
        if known is None or not known.partitions or self._id is None:
            return
        while topic.rows.pieces:
            self._encode_piece(name, topic, known, self._id)

    def _encode_piece(
        self, name: str, topic: TopicState, known: TopicMetadata, owner: ProducerIdAndEpoch
    ) -> None:
        oldest_at = topic.rows.oldest_at
        encoding = Encoding(
            topic=name,
            partition_count=len(known.partitions),
            unkeyed=topic.unkeyed_partitions(known),
            producer=ProducerState(
                producer_id=owner.producer_id,
                producer_epoch=owner.producer_epoch,
                next_sequences=topic.next_sequences,
                is_transactional=self._transactional_id is not None,
            ),
            now_ms=int(self._wall_clock_s() * 1000),
            batch_bytes_max=topic.batch_bytes_max,
            codec=self._settings.codec,
            level=self._settings.level,
        )
        # If the metadata is known, fewer bytes are buffered, so all of them are taken together.
        batches = encode(topic.rows.take(2 * self._piece_bytes), encoding)
        topic.unkeyed_batches += len(batches)
        is_plain = self._settings.codec is Codec.NONE
        for batch in batches:
            after = next_sequence(batch.base_sequence, batch.record_count)
            topic.next_sequences[batch.partition] = after
            size = len(batch.data)
            self._queues.add(
                name,
                batch,
                bytes_max=min(topic.batch_bytes_max, size) if is_plain else topic.batch_bytes_max,
                deadline=oldest_at + self._settings.delivery_timeout_s,
            )

    # --- hooks for transactions ---

    def _ready(self, now: float) -> list[TopicPartition]:
        """Return the partitions that have a batch to send."""
        return self._queues.ready(now)

    def _produce_version(self, connection: Connection) -> int:
        """Return the version of Produce to use."""
        return connection.versions.choose(Api.PRODUCE)

    def _note_acknowledged(
        self, batch: ProducerBatch, partition_response: ProducedPartition
    ) -> None:
        """Process a batch that a broker has acknowledged. Does nothing by default."""

    def _note_recreated(self, topic: str) -> None:
        """Process a topic that was deleted and recreated. Does nothing by default."""

    def _rejected(
        self, partition_response: ProducedPartition, broker: Broker, batch: ProducerBatch
    ) -> KafkaError:
        """Return the error for a batch that a broker rejected and that is not retried."""
        return batch_rejected(self._errors, partition_response, broker=str(broker), batch=batch)

    # --- metadata and producer id ---

    def _refresh_cluster(self) -> None:
        """Request missing metadata and the producer id, with one attempt for each."""
        now = self._clock.now()
        names = {name for name, topic in self._topics.items() if topic.rows.pieces}
        names.update(partition.topic for partition in self._queues.open_partitions())
        stale = self._router.stale(names)
        if now < self._retry_at or not (stale or (names and self._id is None)):
            return
        deadline = self._first_deadline(now + self._request_timeout_s(self._unanswered_requests))
        try:
            if stale:
                self._router.topics(stale, deadline=deadline, create=self._settings.create_topics)
            if self._id is None:
                self._id = request_producer_id(self._router, deadline=deadline)
        except _RETRIABLE as error:
            if isinstance(error, ApiError) and _is_final(error.code):
                raise request_failed(self._errors, error) from None
            since = self._router.misconfigured_since
            waited_s = 0.0 if since is None else self._clock.now() - since
            if isinstance(error, BrokerUnreachableError) and waited_s >= MISCONFIGURED_TIMEOUT_S:
                raise self._errors.unreachable(min(names), MISCONFIGURED_TIMEOUT_S, error) from None
            if not self._is_overdue() or self._last_failure is None:
                self._last_failure = reason_of(error)
            self._unanswered_requests += isinstance(error, BrokerUnreachableError)
            self._retry_request_later()
            return
        self._last_failure = None
        self._unanswered_requests = 0
        unknown = [name for name in stale if not self._is_known(name)]
        for name in unknown:
            self._note_unknown(name)
        if unknown:
            self._retry_request_later()
        else:
            self._failed_requests = 0

    def _request_timeout_s(self, failures: int) -> float:
        return growing_timeout_s(_FIRST_TIMEOUT_S, failures, self._settings.request_timeout_s)

    def _retry_request_later(self) -> None:
        self._failed_requests += 1
        backoff_s = self._settings.backoff.backoff_s(self._failed_requests, self._clock.random())
        self._retry_at = self._clock.now() + backoff_s

    def _is_known(self, name: str) -> bool:
        """Return whether all partitions have a leader. If not, discard the topic's metadata."""
        found = self._router.metadata.topics.get(name)
        if found is not None and found.partitions:
            self._topic(name).unknown_since = None
            if all(p.leader_id != NO_LEADER for p in found.partitions.values()):
                return True
        self._router.invalidate_topic(name)
        return False

    def _note_unknown(self, name: str) -> None:
        code = self._router.metadata.failed.get(name)
        topic = self._topic(name)
        if code is None:
            return
        if PRODUCE_REACTIONS[code] is ProduceReaction.FAIL:
            raise topic_not_available(self._errors, name, code)
        if code in _UNKNOWN:
            now = self._clock.now()
            since = topic.unknown_since = (
                now if topic.unknown_since is None else topic.unknown_since
            )
            if now - since >= self._settings.topic_wait_s:
                raise topic_not_available(self._errors, name, code)

    # --- sending ---

    def _send_ready(self) -> None:
        self._note_recreated_topics()
        now = self._clock.now()
        led_partitions: dict[int, tuple[Broker, list[TopicPartition]]] = {}
        without_leader: dict[TopicPartition, str] = {}
        for partition in self._ready(now):
            try:
                broker = self._router.leader(partition).broker
            except ApiError as unknown:  # The router refreshes the metadata before its next use.
                without_leader[partition] = str(unknown)
                continue
            led_partitions.setdefault(broker.broker_id, (broker, []))[1].append(partition)
        self._retry_later(without_leader, invalidate=False)
        for broker, partitions in led_partitions.values():
            deadline = self._first_deadline(math.inf)
            leader = self._connections.get(broker)
            if leader is not None and len(leader.calls) >= self._settings.in_flight_max:
                continue
            try:
                leader = self._connections.open(broker, deadline=deadline)
            except (BrokerUnreachableError, ProtocolError) as error:
                self._retry_later(dict.fromkeys(partitions, reason_of(error)))
                continue
            self._send_to(leader, partitions)

    def _note_recreated_topics(self) -> None:
        topics = self._router.metadata.topics
        for name, topic in self._topics.items():
            topic_id = known_id(topics.get(name))
            # The last id is kept while the topic is missing, to detect that it was recreated.
            if topic_id is not None and topic_id != topic.topic_id:
                if topic.topic_id is not None:
                    self._note_recreated(name)
                topic.topic_id = topic_id
                self._queues.reset_window(name)

    def _send_to(self, leader: LeaderConnection, partitions: list[TopicPartition]) -> None:
        connection = leader.connection
        while connection.is_open and len(leader.calls) < self._settings.in_flight_max:
            throttled_s = self._clock.left_s(connection.throttled_until)
            if throttled_s:
                reason = (
                    f"{leader.broker} is throttling this client for {throttled_s:.3g} s because "
                    "of a quota"
                )
                self._partition_failures.update(dict.fromkeys(partitions, reason))
                return
            batches = self._queues.take(leader.broker.broker_id, partitions)
            if not batches:
                return
            topics = self._router.metadata.topics
            sent = [
                ProducePartition(
                    topic_partition=batch.topic_partition,
                    topic_id=known_id(topics.get(batch.topic_partition.topic)),
                    records=batch.encoded.data,
                )
                for batch in batches
            ]
            timeout_s = self._settings.request_timeout_s
            request = produce_request(
                produce_version(self._produce_version(connection), sent),
                sent,
                timeout_ms=int(timeout_s * 1000),
                transactional_id=self._transactional_id,
            )
            call = ProduceCall(
                batches=batches,
                pending=connection.post(request),
                deadline=self._clock.now() + timeout_s + RESPONSE_GRACE_S,
            )
            leader.calls.append(call)

    # --- responses ---

    def _handle_responses(self) -> None:
        for leader, call in self._connections.done():
            self._handle_response(leader, call)

    def _handle_response(self, leader: LeaderConnection, call: ProduceCall) -> None:
        try:
            response = call.pending.result()
        except (BrokerUnreachableError, ProtocolError) as error:
            for batch in call.batches:
                self._queues.handle_result(batch, ProduceReaction.RETRY)
            partitions = [batch.topic_partition for batch in call.batches]
            self._retry_later(dict.fromkeys(partitions, reason_of(error)))
            return
        partition_responses = {
            partition_response.topic_partition: partition_response
            for partition_response in response.partitions
        }
        failures: dict[TopicPartition, str] = {}
        for batch in call.batches:
            partition = batch.topic_partition
            failure = self._handle_partition_response(
                leader, batch, partition_responses[partition], response
            )
            if failure is not None:
                failures[partition] = failure
        self._retry_later(failures, invalidate=False)

    def _handle_partition_response(
        self,
        leader: LeaderConnection,
        batch: ProducerBatch,
        partition_response: ProducedPartition,
        response: ProduceResponse,
    ) -> str | None:
        """Handle the response for a batch. Return the failure if a backoff is necessary."""
        partition, code = partition_response.topic_partition, partition_response.error_code
        reaction = PRODUCE_REACTIONS[code]
        failed = self._queues.handle_result(batch, reaction)
        if failed is not None:
            raise self._rejected(partition_response, leader.broker, failed)
        match reaction:
            case ProduceReaction.SUCCEED:
                self._partition_failures.pop(partition, None)
                self._note_acknowledged(batch, partition_response)
            case ProduceReaction.TOO_LARGE:
                topic = self._topic(partition.topic)
                smaller = max(batch.bytes_max // 2, _BATCH_BYTES_MIN)
                topic.batch_bytes_max = min(topic.batch_bytes_max, smaller)
            case ProduceReaction.RETRY:
                return self._handle_retriable(leader, partition_response, response)
        return None

    def _handle_retriable(
        self,
        leader: LeaderConnection,
        partition_response: ProducedPartition,
        response: ProduceResponse,
    ) -> str | None:
        """Update metadata after a retriable error. Return the failure if a backoff is necessary.

        Uses the leader in the response, if the response contains one (KIP-951). The batch is sent
        to a new leader without a backoff.
        """
        partition, code = partition_response.topic_partition, partition_response.error_code
        failure = f"{leader.broker} returned {format_code(code)}"
        if partition_response.current_leader is None:
            self._router.invalidate(code, topic=partition.topic)
        else:
            self._router.update_leader(
                partition,
                leader_id=partition_response.current_leader.leader_id,
                leader_epoch=partition_response.current_leader.leader_epoch,
                endpoints=response.endpoints,
            )
            known = self._router.metadata.partition(partition)
            if known is not None and known.leader_id != leader.broker.broker_id:
                self._partition_failures[partition] = failure
                return None
        return failure

    def _retry_later(
        self, failures: Mapping[TopicPartition, str], *, invalidate: bool = True
    ) -> None:
        """Delay the retry for each partition. With `invalidate`, discard the topic's metadata.

        `failures` contains the failure of each partition. Callers pass all partitions that failed
        together in one call, because `_is_overdue` examines every open partition.
        """
        if not failures:
            return
        is_overdue = self._is_overdue()
        now, draw = self._clock.now(), self._clock.random()
        backoff = self._settings.backoff
        for partition, failure in failures.items():
            LOG.info("Writing to %s failed and will be retried: %s", partition, failure)
            if not is_overdue or partition not in self._partition_failures:
                self._partition_failures[partition] = failure
            if invalidate:
                self._router.invalidate_topic(partition.topic)
            self._queues.back_off(
                partition, now, lambda attempts: now + backoff.backoff_s(attempts, draw)
            )

    # --- deadlines ---

    def _first_deadline(self, latest: float) -> float:
        """Return the earliest deadline of all rows and batches, but at most `latest`."""
        times = [
            topic.rows.oldest_at + self._settings.delivery_timeout_s
            for topic in self._topics.values()
            if topic.rows.pieces
        ]
        oldest = self._queues.oldest()
        if oldest is not None:
            times.append(oldest.deadline)
        return min([latest, *times])

    def _is_overdue(self) -> bool:
        """Return whether a deadline has passed.

        A failure after a deadline did not cause the timeout, so callers do not include such a
        failure in an error message.
        """
        now = self._clock.now()
        return self._first_deadline(now) < now

    def _check_deadlines(self) -> None:
        now = self._clock.now()
        oldest = self._queues.oldest()
        if oldest is not None and now >= oldest.deadline:
            raise self._errors.unacknowledged(
                oldest.topic_partition.topic,
                oldest.topic_partition.partition,
                self._why_unacknowledged(oldest),
            )
        for name, topic in self._topics.items():
            oldest_at = topic.rows.oldest_at
            if topic.rows.pieces and now >= oldest_at + self._settings.delivery_timeout_s:
                raise self._errors.unacknowledged(name, None, self._last_failure)

    def _why_unacknowledged(self, batch: ProducerBatch) -> str | None:
        failure = self._partition_failures.get(batch.topic_partition, self._last_failure)
        for leader in self._connections:
            for call in leader.calls:
                if batch in call.batches:
                    waiting = f"{leader.broker} has not responded to {call.pending.request}"
                    return f"{waiting}; previous failure: {failure}" if failure else waiting
        return failure

    def _wait(self) -> None:
        """Wait for a response, or until the next deadline or retry."""
        now = self._clock.now()
        times = [self._first_deadline(now + _WAIT_S_MAX), self._retry_at]
        times += [leader.calls[0].deadline for leader in self._connections if leader.calls]
        times += [leader.connection.throttled_until for leader in self._connections]
        next_retry_at = self._queues.next_retry_at(now)
        if next_retry_at is not None:
            times.append(next_retry_at)
        until = min((at for at in times if at > now), default=now)
        in_flight_requests = self._connections.in_flight_requests()
        if in_flight_requests:
            wait_any(in_flight_requests, deadline=until, clock=self._clock)
        else:
            self._clock.sleep(until - now)


def _is_final(code: ErrorCode) -> bool:
    """Return whether an error code is not retriable.

    REBOOTSTRAP_REQUIRED is retriable, because the router has already rebootstrapped (KIP-1102).
    """
    return (
        PRODUCE_REACTIONS[code] is ProduceReaction.FAIL
        and code is not ErrorCode.rebootstrap_required
    )
