"""Clients that write.

Purpose: an idempotent producer with acks=all that retries forever, with up to five batches in
flight per partition, as Kafka's; and a careless one (acks=1, no producer id), whose records may be
lost, so that logs diverge. Invariant of the first: it sends and resends a partition's batches in
order. It never sends a batch five after an unacknowledged one, since the broker could have evicted
that one's sequence. It sends the first batch of a producer id alone, since a partition accepts any
sequence of an unknown producer. What it must not know: the actual leader. Source: Kafka's `Sender`,
`RecordAccumulator`, `TransactionManager`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kio.schema.errors import ErrorCode
from kio.static.protocol import RequestPayload

from broker_ref.log.batch import encode_batch
from broker_ref.log.records import Record
from integration.simulation.client import Ask, Client, Leader, Pause, Script, Step, TopicPartition
from integration.simulation.invariants import InvariantViolationError, Watch
from integration.simulation.messages import request

IN_FLIGHT_MAX: Final = 5
PRODUCE_TIMEOUT_MS: Final = 1_500
ACKS_ALL: Final = -1

RETRIABLE: Final = frozenset(
    {
        ErrorCode.not_leader_or_follower,
        ErrorCode.leader_not_available,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.request_timed_out,
        ErrorCode.not_enough_replicas,
        ErrorCode.not_enough_replicas_after_append,
        ErrorCode.kafka_storage_error,
        ErrorCode.network_exception,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_leader_epoch,
    }
)


def produce_request(
    partition: TopicPartition,
    batch: bytes,
    *,
    acks: int = ACKS_ALL,
    transactional_id: str | None = None,
    is_v2: bool = False,
) -> RequestPayload:
    """Return a Produce request for one batch."""
    data = {"index": partition.partition, "records": batch}
    return request(
        "produce",
        is_v2=is_v2,
        transactional_id=transactional_id,
        acks=acks,
        timeout=PRODUCE_TIMEOUT_MS,
        topic_data=[{"name": partition.topic, "partition_data": [data]}],
    )


def produced(response: Any) -> Any:
    """Return the response of the only partition, or None."""
    return response.responses[0].partition_responses[0] if response is not None else None


def encode(
    values: Sequence[bytes],
    now_ms: int,
    *,
    producer: tuple[int, int, int] = (-1, -1, -1),
    is_transactional: bool = False,
) -> bytes:
    """Return a batch of records with these values; `producer` is (id, epoch, base sequence)."""
    producer_id, producer_epoch, base_sequence = producer
    return encode_batch(
        [Record(timestamp=now_ms, key=b"k", value=value) for value in values],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        is_transactional=is_transactional,
    )


@dataclass(slots=True, kw_only=True, eq=False)
class _Batch:
    number: int
    sequence: int
    values: tuple[bytes, ...]
    encoded: bytes
    openings: int
    """The number of openings of the partition's replicas when the batch was created."""
    is_under_way: bool = False
    is_delayed: bool = False


@dataclass(slots=True, eq=False)
class _Lane:
    """The batches of a partition that are not acknowledged, oldest first."""

    partition: TopicPartition
    batches: deque[_Batch] = field(default_factory=deque)
    next_sequence: int = 0
    next_number: int = 0
    has_acknowledged: bool = False
    target: int = -1
    is_searching: bool = False


class IdempotentProducer:
    """Writes unique values to partitions until `until_ms`."""

    def __init__(
        self,
        client: Client,
        watch: Watch,
        *,
        partitions: Sequence[TopicPartition],
        pace_ms: int,
        until_ms: int,
    ) -> None:
        self.acknowledged = 0
        self._client = client
        self._watch = watch
        self._lanes = [_Lane(partition) for partition in partitions]
        self._pace_ms = pace_ms
        self._until_ms = until_ms
        self._producer_id = -1
        self._values = 0
        client.spawn(self._main(), after_ms=client.random.randint(0, 100))

    @property
    def is_done(self) -> bool:
        """Whether everything is acknowledged and no more records follow."""
        return self._client.now_ms >= self._until_ms and not any(
            lane.batches for lane in self._lanes
        )

    def _main(self) -> Script:
        client = self._client
        while self._producer_id < 0:
            response = yield Ask(
                broker_id=client.any_broker(),
                request=request(
                    "init_producer_id", transactional_id=None, transaction_timeout=60_000
                ),
            )
            if response is not None and response.error_code is ErrorCode.none:
                self._producer_id = response.producer_id
            else:
                yield Pause(ms=50)
        while client.now_ms < self._until_ms:
            lane = client.random.choice(self._lanes)
            if len(lane.batches) < 2 * IN_FLIGHT_MAX:
                self._write(lane)
            yield Pause(ms=client.random.randint(1, 2 * self._pace_ms))

    def _write(self, lane: _Lane) -> None:
        values = []
        for _ in range(self._client.random.choice((1, 1, 3))):
            self._values += 1
            values.append(f"{self._client.name}:{self._values}".encode())
        batch = _Batch(
            number=lane.next_number,
            sequence=lane.next_sequence,
            values=tuple(values),
            encoded=encode(
                values,
                self._client.now_ms,
                producer=(self._producer_id, 0, lane.next_sequence),
            ),
            openings=self._watch.openings[lane.partition],
        )
        lane.next_sequence += len(values)
        lane.next_number += 1
        lane.batches.append(batch)
        self._pump(lane)

    def _pump(self, lane: _Lane) -> None:
        """Send all batches that may be sent, in order, to one leader at a time."""
        leader = self._client.leader(lane.partition)
        under_way = sum(batch.is_under_way for batch in lane.batches)
        if leader is None:
            if not lane.is_searching:
                lane.is_searching = True
                self._client.spawn(self._search(lane))
            return
        if under_way and leader.broker_id != lane.target:
            return
        lane.target = leader.broker_id
        allowed = IN_FLIGHT_MAX if lane.has_acknowledged else 1
        for batch in lane.batches:
            if batch.is_under_way:
                continue
            if batch.is_delayed or batch.number >= lane.batches[0].number + allowed:
                return
            batch.is_under_way = True
            self._client.spawn(self._send(lane, batch, leader))

    def _search(self, lane: _Lane) -> Script:
        yield from self._client.await_leader(lane.partition)
        lane.is_searching = False
        self._pump(lane)

    def _send(self, lane: _Lane, batch: _Batch, leader: Leader) -> Script:
        client = self._client
        is_next = lane.batches[0] is batch
        response = yield Ask(
            broker_id=leader.broker_id,
            request=produce_request(lane.partition, batch.encoded),
        )
        batch.is_under_way = False
        answer = produced(response)
        if answer is not None and answer.error_code is ErrorCode.none:
            self._acknowledge(lane, batch, answer.base_offset)
        else:
            code = answer.error_code if answer is not None else ErrorCode.network_exception
            self._check_refusal(lane, batch, code, is_next=is_next)
            if is_next and code is ErrorCode.out_of_order_sequence_number:
                self._acknowledge_forgotten(lane, batch)
            batch.is_delayed = True
            yield Pause(ms=client.random.randint(1, 60))
            if code is not ErrorCode.out_of_order_sequence_number:
                yield from client.find_leaders(lane.partition.topic)
            batch.is_delayed = False
        self._pump(lane)

    def _acknowledge(self, lane: _Lane, batch: _Batch, base_offset: int) -> None:
        lane.batches.remove(batch)
        lane.has_acknowledged = True
        self.acknowledged += 1
        committed = self._watch.of(lane.partition)
        for delta, value in enumerate(batch.values):
            committed.acknowledged(value, base_offset + delta, self._client.name)

    def _acknowledge_forgotten(self, lane: _Lane, batch: _Batch) -> None:
        """Complete a batch without a response if its values are committed."""
        offset = self._watch.of(lane.partition).offset_of(batch.values[0])
        if offset is not None:
            self._acknowledge(lane, batch, offset)

    def _check_refusal(self, lane: _Lane, batch: _Batch, code: ErrorCode, *, is_next: bool) -> None:
        """Check that an out-of-order sequence is plausible.

        It is if an earlier batch is not acknowledged, or if the leader has reloaded its log since:
        snapshots have only each producer's last batch, as Kafka's.
        """
        may_be_forgotten = self._watch.openings[lane.partition] > batch.openings
        is_out_of_order = code is ErrorCode.out_of_order_sequence_number
        if code in RETRIABLE or (is_out_of_order and (may_be_forgotten or not is_next)):
            return
        raise InvariantViolationError(
            f"{lane.partition}: sequence {batch.sequence} of {self._client.name} (producer "
            f"{self._producer_id}) is rejected with {code.name} although all earlier ones "
            "are acknowledged"
        )


class CarelessProducer:
    """Writes with acks=1 and ignores the outcome."""

    def __init__(
        self, client: Client, *, partitions: Sequence[TopicPartition], pace_ms: int, until_ms: int
    ) -> None:
        self.is_done = True
        self._client = client
        self._partitions = partitions
        self._pace_ms = pace_ms
        self._until_ms = until_ms
        client.spawn(self._main())

    def _main(self) -> Script:
        client, number = self._client, 0
        while client.now_ms < self._until_ms:
            number += 1
            partition = client.random.choice(list(self._partitions))
            value = f"{client.name}:{number}".encode()
            yield from self._write(partition, value)
            yield Pause(ms=client.random.randint(1, 2 * self._pace_ms))

    def _write(self, partition: TopicPartition, value: bytes) -> Step:
        leader = self._client.leader(partition)
        if leader is None:
            yield from self._client.find_leaders(partition.topic)
            return
        batch = produce_request(partition, encode([value], self._client.now_ms), acks=1)
        answer = produced((yield Ask(broker_id=leader.broker_id, request=batch, timeout_ms=500)))
        if answer is None or answer.error_code is not ErrorCode.none:
            yield from self._client.find_leaders(partition.topic)
