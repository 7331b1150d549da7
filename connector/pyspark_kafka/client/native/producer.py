"""Writing rows with the engine `native`: an idempotent producer in the caller's thread.

Purpose: rows to batches, batches to leaders, and the certainty that every row was confirmed.
Invariant: `flush` returns only when every row is confirmed; no row waits longer than
`delivery_timeout_s` in calls without an error; no more than `buffer_bytes` are held, or one row.
What it must not know: Spark, how rows become bytes, and which batch goes when (that is
`in_flight`).

Nothing runs between calls, so that the time between them counts for no deadline: a slow source is
no fault of the brokers. Each call collects the answers that are there and sends what may be sent;
answers are waited for only where the buffer is full, and by `flush`.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from kio.schema.errors import ErrorCode

from pyspark_kafka.client.delivery_errors import DeliveryErrors
from pyspark_kafka.client.native.held_rows import by_topic, check_record_sizes, pieces_of
from pyspark_kafka.client.native.in_flight import VERDICTS, Batch, InFlight, Verdict
from pyspark_kafka.client.native.leader_links import (
    ANSWER_GRACE_S,
    Call,
    LeaderLinks,
    Link,
    longer,
)
from pyspark_kafka.client.native.produce_errors import (
    not_asked,
    not_available,
    refused,
    unconfirmed,
)
from pyspark_kafka.client.native.producer_settings import ProducerSettings
from pyspark_kafka.client.native.written_topic import WrittenTopic, known_id
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
from pyspark_kafka.wire.metadata import NO_LEADER, Broker
from pyspark_kafka.wire.produce import (
    ProducedPartition,
    ProducePartition,
    ProduceResponse,
    produce_request,
    produce_version,
)
from pyspark_kafka.wire.producer_id import request_producer_id
from pyspark_kafka.wire.router import ApiError, Router
from pyspark_kafka.wire.versions import Api

LOG: Final = logging.getLogger("pyspark_kafka.native")
LOG.addHandler(logging.NullHandler())

_TRY_S: Final = 2.0
"""What one question about the cluster may take of our one thread, until that was too short."""
_LOOKS: Final = 3
_TURNS: Final = 2**31
_HELD_S: Final = 1.0
"""For so long, in calls, rows wait for others to fill batches with."""
_BATCH_BYTES_MIN: Final = 512
_WAIT_S_MAX: Final = 0.5
_MAY_PASS: Final = (ApiError, BrokerUnreachableError, ProtocolError)
_UNKNOWN: Final = frozenset({ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id})
_GIVEN_UP: Final = "this producer was given up"


class NativeProducer:
    """See `client.port.Producer`."""

    def __init__(
        self,
        router: Router,
        settings: ProducerSettings,
        faults: DeliveryErrors,
        *,
        give_back: Callable[[NativeProducer], None],
        wall_clock_s: Callable[[], float] = time.time,
        transactional_id: str | None = None,
        producer_id: ProducerIdAndEpoch | None = None,
        links: LeaderLinks | None = None,
    ) -> None:
        """`producer_id` is asked for where it is not given; `links` are connections to begin with."""
        self.idle_since = 0.0
        self._router = router
        self._clock = router.clock
        self._settings = settings
        self._faults = faults
        self._give_back = give_back
        self._wall_clock_s = wall_clock_s
        self._core = InFlight(
            split=partial(split, level=settings.level),
            in_flight_max=settings.in_flight_max,
            request_bytes_max=settings.request_bytes_max,
        )
        self._topics: dict[str, WrittenTopic] = {}
        self._links = links or LeaderLinks(
            router,
            request_timeout_s=settings.request_timeout_s,
            connect_timeout_s=settings.connect_timeout_s,
        )
        self._transactional_id = transactional_id
        self._id = producer_id
        self._failed: PysparkKafkaError | None = None
        self._left_at = self._clock.now()
        # ClusterQueries about the cluster: failures in a row, when to ask again, what was wrong.
        self._asked = 0
        self._ask_at = 0.0
        self._trouble: str | None = None
        self._troubles: dict[TopicPartition, str] = {}

    # --- the port ---

    def send(self, batch: pa.RecordBatch) -> None:
        self._begin()
        groups = by_topic(batch)
        for topic, rows in groups:
            check_record_sizes(rows, topic, self._faults)
            self._check_partitions(topic, rows)
        for topic, rows in groups:
            for piece in pieces_of(rows, self._piece_bytes):
                self._make_room(piece.nbytes)
                held = self._topic(topic)
                held.rows.add(piece, self._clock.now())
                if self._is_due(topic, held):
                    self._progress()
        self._progress()
        self._left_at = self._clock.now()

    def flush(self) -> None:
        self._begin()
        while self._has_work():
            self._progress(everything=True)
            if self._has_work():
                self._wait()
        self._left_at = self._clock.now()

    def close(self) -> None:
        self._give_back(self)

    def abort(self) -> None:
        self._failed = self._failed or DeliveryError(_GIVEN_UP)
        with suppress(Exception):
            self.end()

    def end(self) -> None:
        """Close the connections and drop what is held."""
        self._topics.clear()
        self._links.close()

    def forget_trouble(self) -> None:
        """What was met before belongs to another task."""
        self._trouble = None
        self._troubles.clear()
        self._asked, self._ask_at = 0, 0.0
        for topic in self._topics.values():
            topic.unknown_since = None

    # --- rows in ---

    @property
    def _piece_bytes(self) -> int:
        """How many bytes of rows become batches together at most."""
        return max(1, self._settings.buffer_bytes // 4)

    @property
    def _held_bytes(self) -> int:
        return self._core.held_bytes + sum(topic.rows.bytes for topic in self._topics.values())

    def _topic(self, name: str) -> WrittenTopic:
        found = self._topics.get(name)
        if found is None:
            # Anywhere: every task has a first batch.
            found = self._topics[name] = WrittenTopic(
                batch_bytes_max=self._settings.batch_bytes_max,
                unkeyed=int(self._clock.random() * _TURNS),
            )
        return found

    def _has_work(self) -> bool:
        return not self._core.is_empty or any(t.rows.pieces for t in self._topics.values())

    def _make_room(self, size: int) -> None:
        """Wait until so many bytes more can be held, or nothing is."""
        while self._held_bytes + size > self._settings.buffer_bytes and self._has_work():
            self._progress(everything=True)
            if self._held_bytes + size > self._settings.buffer_bytes and self._has_work():
                self._wait()

    def _check_partitions(self, topic: str, rows: pa.RecordBatch) -> None:
        """Raise `RowError` for a partition that a known topic has not, even on a second look."""
        if "partition" not in rows.schema.names:
            return
        highest = pc.max(rows.column("partition")).as_py()
        known = self._router.metadata.topics.get(topic)
        if highest is None or known is None or highest < len(known.partitions):
            return
        for tries in range(1, _LOOKS + 1):
            self._router.forget_topic(topic)
            deadline = self._clock.now() + self._try_s(tries - 1)
            with suppress(*_MAY_PASS):
                known = self._router.topics([topic], deadline=deadline).topics.get(topic)
            if known is not None and highest < len(known.partitions):
                return
            # The broker asked may not have heard of it yet.
            self._settings.backoff.pause(tries, clock=self._clock, deadline=deadline)
        raise self._faults.no_such_partition(topic, highest)

    # --- one round ---

    def _progress(self, *, everything: bool = False) -> None:
        """Take the answers that are there, make batches of rows that are due (or all), and send."""
        try:
            self._collect()
            if self._links.fail_hanging():
                self._collect()
            self._ask_about_cluster()
            self._check_deadlines()
            for name, topic in self._topics.items():
                if topic.rows.pieces and (everything or self._is_due(name, topic)):
                    self._encode(name, topic)
            self._send_ready()
        except PysparkKafkaError as error:
            self._failed = error
            raise

    def _begin(self) -> None:
        """Go on after the caller did something else, or raise again what went wrong."""
        if self._failed is not None:
            raise self._failed
        away_s = self._clock.now() - self._left_at
        self._core.postpone(away_s)
        self._links.postpone(away_s)
        for topic in self._topics.values():
            topic.rows.taken_at += away_s
            if topic.unknown_since is not None:
                topic.unknown_since += away_s

    def _is_due(self, name: str, topic: WrittenTopic) -> bool:
        """Whether the rows fill batches, or have waited for others long enough."""
        held_s = self._clock.now() - topic.rows.taken_at
        if held_s >= min(_HELD_S, self._settings.delivery_timeout_s / 2):
            return True
        wanted = topic.batch_bytes_max
        known = self._router.metadata.topics.get(name)
        if topic.rows.has_keys and known is not None:
            wanted *= len(known.partitions)
        return topic.rows.bytes >= min(wanted, self._piece_bytes)

    def _encode(self, name: str, topic: WrittenTopic) -> None:
        """Rows of one topic to batches; they stay rows where the cluster is not known enough."""
        known = self._router.metadata.topics.get(name)
        if known is None or not known.partitions or self._id is None:
            return
        taken_at = topic.rows.taken_at
        encoding = Encoding(
            topic=name,
            partition_count=len(known.partitions),
            unkeyed=topic.in_turn(known),
            producer=ProducerState(
                producer_id=self._id.producer_id,
                producer_epoch=self._id.producer_epoch,
                next_sequences=topic.next_sequences,
                is_transactional=self._transactional_id is not None,
            ),
            now_ms=int(self._wall_clock_s() * 1000),
            batch_bytes_max=topic.batch_bytes_max,
            codec=self._settings.codec,
            level=self._settings.level,
        )
        batches = encode(topic.rows.take(), encoding)
        topic.unkeyed += len(batches)
        is_plain = self._settings.codec is Codec.NONE
        for batch in batches:
            after = next_sequence(batch.base_sequence, batch.record_count)
            topic.next_sequences[batch.partition] = after
            size = len(batch.data)
            self._core.add(
                name,
                batch,
                bytes_max=min(topic.batch_bytes_max, size) if is_plain else topic.batch_bytes_max,
                deadline=taken_at + self._settings.delivery_timeout_s,
            )

    # --- what is otherwise in a transaction ---

    def _ready(self, now: float) -> list[TopicPartition]:
        """Partitions with a batch that may be sent."""
        return self._core.ready(now)

    def _newest_produce(self, connection: Connection) -> int:
        """The newest version of Produce that may be used."""
        return connection.versions.choose(Api.PRODUCE)

    def _note_confirmed(self, batch: Batch, answer: ProducedPartition) -> None:
        """A batch was confirmed by this answer."""

    def _note_created_anew(self, topic: str) -> None:
        """A topic was deleted and created again while it was written to."""

    def _refused(self, answer: ProducedPartition, broker: Broker, batch: Batch) -> KafkaError:
        """The error for a batch that will not be taken, now or later."""
        return refused(self._faults, answer, who=str(broker), batch=batch)

    # --- the cluster ---

    def _ask_about_cluster(self) -> None:
        """Ask once for what is missing: topics, leaders, and our id."""
        now = self._clock.now()
        names = {name for name, topic in self._topics.items() if topic.rows.pieces}
        names.update(partition.topic for partition in self._core.open_partitions())
        stale = self._router.stale(names)
        if now < self._ask_at or not (stale or (names and self._id is None)):
            return
        deadline = self._first_deadline(now + self._try_s(self._asked))
        try:
            if stale:
                self._router.topics(stale, deadline=deadline, create=self._settings.create_topics)
            if self._id is None:
                self._id = request_producer_id(self._router, deadline=deadline)
        except _MAY_PASS as error:
            if isinstance(error, ApiError) and _is_final(error.code):
                raise not_asked(self._faults, error) from None
            if not self._is_out_of_time() or self._trouble is None:
                self._trouble = reason_of(error)
            self._ask_later()
            return
        self._trouble = None
        unknown = [name for name in stale if not self._is_known(name)]
        for name in unknown:
            self._note_unknown(name)
        if unknown:
            self._ask_later()
        else:
            self._asked = 0

    def _try_s(self, failures: int) -> float:
        return longer(_TRY_S, failures, self._settings.request_timeout_s)

    def _ask_later(self) -> None:
        self._asked += 1
        pause_s = self._settings.backoff.pause_s(self._asked, self._clock.random())
        self._ask_at = self._clock.now() + pause_s

    def _is_known(self, name: str) -> bool:
        """Whether the topic has partitions, all with a leader. Where not it is to be asked for."""
        found = self._router.metadata.topics.get(name)
        if found is not None and found.partitions:
            self._topic(name).unknown_since = None
            if all(p.leader_id != NO_LEADER for p in found.partitions.values()):
                return True
        self._router.forget_topic(name)
        return False

    def _note_unknown(self, name: str) -> None:
        code = self._router.metadata.failed.get(name)
        topic = self._topic(name)
        if code is None:
            return
        if VERDICTS[code] is Verdict.FAILED:
            raise not_available(self._faults, name, code)
        if code in _UNKNOWN:
            now = self._clock.now()
            since = topic.unknown_since = (
                now if topic.unknown_since is None else topic.unknown_since
            )
            if now - since >= self._settings.topic_wait_s:
                raise not_available(self._faults, name, code)

    # --- sending ---

    def _send_ready(self) -> None:
        self._note_new_topics()
        now = self._clock.now()
        led: dict[int, tuple[Broker, list[TopicPartition]]] = {}
        for partition in self._ready(now):
            try:
                broker = self._router.leader(partition).broker
            except ApiError as unknown:  # The router asks for the topic before it is used again.
                self._retry_later(partition, str(unknown), forget=False)
                continue
            led.setdefault(broker.broker_id, (broker, []))[1].append(partition)
        for broker, partitions in led.values():
            deadline = self._first_deadline(math.inf)
            link = self._links.get(broker)
            if link is not None and len(link.calls) >= self._settings.in_flight_max:
                continue
            try:
                link = self._links.open(broker, deadline=deadline)
            except (BrokerUnreachableError, ProtocolError) as error:
                for partition in partitions:
                    self._retry_later(partition, reason_of(error))
                continue
            self._send_to(link, partitions)

    def _note_new_topics(self) -> None:
        topics = self._router.metadata.topics
        for name, topic in self._topics.items():
            topic_id = known_id(topics.get(name))
            if topic_id != topic.topic_id:
                if topic_id is not None and topic.topic_id is not None:
                    self._note_created_anew(name)
                topic.topic_id = topic_id
                self._core.distrust(name)

    def _send_to(self, link: Link, partitions: list[TopicPartition]) -> None:
        connection = link.connection
        while connection.is_open and len(link.calls) < self._settings.in_flight_max:
            throttled_s = self._clock.left_s(connection.throttled_until)
            if throttled_s:
                said_so = f"{link.broker} throttles this client for {throttled_s:.3g} s, by a quota"
                self._troubles.update(dict.fromkeys(partitions, said_so))
                return
            batches = self._core.take(link.broker.broker_id, partitions)
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
                produce_version(self._newest_produce(connection), sent),
                sent,
                timeout_ms=int(timeout_s * 1000),
                transactional_id=self._transactional_id,
            )
            call = Call(
                batches=batches,
                pending=connection.post(request),
                deadline=self._clock.now() + timeout_s + ANSWER_GRACE_S,
            )
            link.calls.append(call)

    # --- answers ---

    def _collect(self) -> None:
        for link, call in self._links.done():
            self._take_answer(link, call)

    def _take_answer(self, link: Link, call: Call) -> None:
        try:
            response = call.pending.result()
        except (BrokerUnreachableError, ProtocolError) as error:
            for batch in call.batches:
                self._core.answered(batch, Verdict.AGAIN)
                self._retry_later(batch.topic_partition, reason_of(error))
            return
        answers = {answer.topic_partition: answer for answer in response.partitions}
        for batch in call.batches:
            self._take_partition(link, batch, answers[batch.topic_partition], response)

    def _take_partition(
        self, link: Link, batch: Batch, answer: ProducedPartition, response: ProduceResponse
    ) -> None:
        partition, code = answer.topic_partition, answer.error_code
        verdict = VERDICTS[code]
        failed = self._core.answered(batch, verdict)
        if failed is not None:
            raise self._refused(answer, link.broker, failed)
        match verdict:
            case Verdict.CONFIRMED:
                self._troubles.pop(partition, None)
                self._note_confirmed(batch, answer)
            case Verdict.TOO_LARGE:
                topic = self._topic(partition.topic)
                smaller = max(batch.bytes_max // 2, _BATCH_BYTES_MIN)
                topic.batch_bytes_max = min(topic.batch_bytes_max, smaller)
            case Verdict.AGAIN:
                self._again(link, answer, response)

    def _again(self, link: Link, answer: ProducedPartition, response: ProduceResponse) -> None:
        """Note what an answer says is wrong; a leader that it names is asked at once (KIP-951)."""
        partition, code = answer.topic_partition, answer.error_code
        trouble = f"{link.broker} said {format_code(code)}"
        if answer.current_leader is None:
            self._router.invalidate(code, topic=partition.topic)
        else:
            self._router.update_leader(
                partition,
                leader_id=answer.current_leader.leader_id,
                leader_epoch=answer.current_leader.leader_epoch,
                endpoints=response.endpoints,
            )
            known = self._router.metadata.partition(partition)
            if known is not None and known.leader_id != link.broker.broker_id:
                self._troubles[partition] = trouble
                return
        self._retry_later(partition, trouble, forget=False)

    def _retry_later(self, partition: TopicPartition, trouble: str, *, forget: bool = True) -> None:
        """Pause a partition; with `forget` also ask who leads it by then."""
        LOG.info("writing to %s: %s", partition, trouble)
        if not self._is_out_of_time() or partition not in self._troubles:
            self._troubles[partition] = trouble
        if forget:
            self._router.forget_topic(partition.topic)
        now, draw = self._clock.now(), self._clock.random()
        backoff = self._settings.backoff
        self._core.pause(partition, lambda failures: now + backoff.pause_s(failures, draw))

    # --- time ---

    def _first_deadline(self, latest: float) -> float:
        """When the first row or batch has to be confirmed, `latest` if that is before."""
        moments = [
            topic.rows.taken_at + self._settings.delivery_timeout_s
            for topic in self._topics.values()
            if topic.rows.pieces
        ]
        oldest = self._core.oldest()
        if oldest is not None:
            moments.append(oldest.deadline)
        return min([latest, *moments])

    def _is_out_of_time(self) -> bool:
        """Whether a row's time is over: what that cut short is not why."""
        now = self._clock.now()
        return self._first_deadline(now) < now

    def _check_deadlines(self) -> None:
        now = self._clock.now()
        oldest = self._core.oldest()
        if oldest is not None and now >= oldest.deadline:
            raise unconfirmed(self._faults, oldest.topic_partition, self._why_open(oldest))
        for name, topic in self._topics.items():
            taken_at = topic.rows.taken_at
            if topic.rows.pieces and now >= taken_at + self._settings.delivery_timeout_s:
                raise unconfirmed(self._faults, name, self._trouble)

    def _why_open(self, batch: Batch) -> str | None:
        trouble = self._troubles.get(batch.topic_partition, self._trouble)
        for link in self._links:
            for call in link.calls:
                if batch in call.batches:
                    silence = f"{link.broker} has not answered {call.pending.request} yet"
                    return f"{silence}, after: {trouble}" if trouble else silence
        return trouble

    def _wait(self) -> None:
        """Wait for an answer, or until there is something to do."""
        now = self._clock.now()
        moments = [self._first_deadline(now + _WAIT_S_MAX), self._ask_at]
        moments += [link.calls[0].deadline for link in self._links if link.calls]
        moments += [link.connection.throttled_until for link in self._links]
        wakes_at = self._core.wakes_at(now)
        if wakes_at is not None:
            moments.append(wakes_at)
        until = min((moment for moment in moments if moment > now), default=now)
        pendings = self._links.pendings()
        if pendings:
            wait_any(pendings, deadline=until, clock=self._clock)
        else:
            self._clock.sleep(until - now)


def _is_final(code: ErrorCode) -> bool:
    """Whether asking again does not help. REBOOTSTRAP_REQUIRED has done what it can (KIP-1102)."""
    return VERDICTS[code] is Verdict.FAILED and code is not ErrorCode.rebootstrap_required
