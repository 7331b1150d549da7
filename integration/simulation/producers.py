"""Clients that produce records.

An idempotent producer uses acks=all, retries without limit and has up to five batches in flight per
partition, as Kafka's producer does. The acks=1 producer has no producer id. Its records may be
lost, in which case the replicas' logs diverge.

Invariant for the idempotent producer: it sends and retries the batches of a partition in order. It
sends only the oldest unacknowledged batch and the next four, because the broker stores the
sequences of only five batches. It sends the first batch of a producer id alone, because a partition
accepts any sequence from an unknown producer id. Modeled on Kafka's `Sender`, `RecordAccumulator`
and `TransactionManager`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kio.schema.errors import ErrorCode

from broker_ref.log.batch import encode_batch
from broker_ref.log.records import Record
from integration.simulation.client import Call, Client, Leader, Script, Sleep, Step, TopicPartition
from integration.simulation.invariants import InvariantChecker, InvariantViolationError
from integration.simulation.messages import Request, request

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

MAY_BE_APPENDED: Final = frozenset(
    {
        ErrorCode.not_leader_or_follower,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.request_timed_out,
        ErrorCode.not_enough_replicas_after_append,
        ErrorCode.kafka_storage_error,
        ErrorCode.network_exception,
    }
)
"""Error codes of batches that may be in the log. With others, the batch is not in the log."""


def produce_request(
    partition: TopicPartition,
    batch: bytes,
    *,
    acks: int = ACKS_ALL,
    transactional_id: str | None = None,
    is_v2: bool = False,
) -> Request:
    """Return a Produce request with one batch."""
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
    """Return the response for the partition of the request, or None if there is no response."""
    return response.responses[0].partition_responses[0] if response is not None else None


def encode(
    values: Sequence[bytes],
    now_ms: int,
    *,
    producer: tuple[int, int, int] = (-1, -1, -1),
    is_transactional: bool = False,
) -> bytes:
    """Return a batch of records with these values.

    `producer` consists of the producer id, the producer epoch and the base sequence.
    """
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
    reloads: int
    """The value of `InvariantChecker.reloads` when the batch was created."""
    is_under_way: bool = False
    is_delayed: bool = False


@dataclass(slots=True, eq=False)
class _PartitionQueue:
    """The unacknowledged batches of a partition, oldest first."""

    partition: TopicPartition
    batches: deque[_Batch] = field(default_factory=deque)
    next_sequence: int = 0
    next_number: int = 0
    has_acknowledged: bool = False
    target: int = -1
    is_searching: bool = False


class IdempotentProducer:
    """Producer that writes unique values to partitions until `until_ms`."""

    def __init__(
        self,
        client: Client,
        checker: InvariantChecker,
        *,
        partitions: Sequence[TopicPartition],
        pace_ms: int,
        until_ms: int,
    ) -> None:
        self.name = client.name
        self.acknowledged = 0
        self._client = client
        self._checker = checker
        self._queues = [_PartitionQueue(partition) for partition in partitions]
        self._pace_ms = pace_ms
        self._until_ms = until_ms
        self._producer_id = -1
        self._values = 0
        client.spawn(self._main(), after_ms=client.random.randint(0, 100))

    @property
    def is_done(self) -> bool:
        """Whether all records are acknowledged and the producer will write no more records."""
        return self._client.now_ms >= self._until_ms and not any(
            queue.batches for queue in self._queues
        )

    def _main(self) -> Script:
        client = self._client
        while self._producer_id < 0:
            response = yield Call(
                broker_id=client.any_broker(),
                request=request(
                    "init_producer_id", transactional_id=None, transaction_timeout=60_000
                ),
            )
            if response is not None and response.error_code is ErrorCode.none:
                self._producer_id = response.producer_id
            else:
                yield Sleep(ms=50)
        while client.now_ms < self._until_ms:
            queue = client.random.choice(self._queues)
            if len(queue.batches) < 2 * IN_FLIGHT_MAX:
                self._write(queue)
            yield Sleep(ms=client.random.randint(1, 2 * self._pace_ms))

    def _write(self, queue: _PartitionQueue) -> None:
        values = []
        for _ in range(self._client.random.choice((1, 1, 3))):
            self._values += 1
            values.append(f"{self._client.name}:{self._values}".encode())
        batch = _Batch(
            number=queue.next_number,
            sequence=queue.next_sequence,
            values=tuple(values),
            encoded=encode(
                values,
                self._client.now_ms,
                producer=(self._producer_id, 0, queue.next_sequence),
            ),
            reloads=self._checker.reloads[queue.partition],
        )
        queue.next_sequence += len(values)
        queue.next_number += 1
        queue.batches.append(batch)
        self._pump(queue)

    def _pump(self, queue: _PartitionQueue) -> None:
        """Send all batches that may be sent, in order and to one leader at a time."""
        leader = self._client.leader(queue.partition)
        under_way = sum(batch.is_under_way for batch in queue.batches)
        if leader is None:
            if not queue.is_searching:
                queue.is_searching = True
                self._client.spawn(self._search(queue))
            return
        if under_way and leader.broker_id != queue.target:
            return
        queue.target = leader.broker_id
        allowed = IN_FLIGHT_MAX if queue.has_acknowledged else 1
        for batch in queue.batches:
            if batch.is_under_way:
                continue
            if batch.is_delayed or batch.number >= queue.batches[0].number + allowed:
                return
            batch.is_under_way = True
            self._client.spawn(self._send(queue, batch, leader))

    def _search(self, queue: _PartitionQueue) -> Script:
        yield from self._client.await_leader(queue.partition)
        queue.is_searching = False
        self._pump(queue)

    def _send(self, queue: _PartitionQueue, batch: _Batch, leader: Leader) -> Script:
        client = self._client
        is_next = queue.batches[0] is batch
        response = yield Call(
            broker_id=leader.broker_id,
            request=produce_request(queue.partition, batch.encoded),
        )
        batch.is_under_way = False
        partition_response = produced(response)
        if partition_response is not None and partition_response.error_code is ErrorCode.none:
            self._acknowledge(queue, batch, partition_response.base_offset)
        else:
            code = (
                partition_response.error_code
                if partition_response is not None
                else ErrorCode.network_exception
            )
            self._check_refusal(queue, batch, code, is_next=is_next)
            if is_next and code is ErrorCode.out_of_order_sequence_number:
                self._acknowledge_if_committed(queue, batch)
            batch.is_delayed = True
            yield Sleep(ms=client.random.randint(1, 60))
            if code is not ErrorCode.out_of_order_sequence_number:
                yield from client.find_leaders(queue.partition.topic)
            batch.is_delayed = False
        self._pump(queue)

    def _acknowledge(self, queue: _PartitionQueue, batch: _Batch, base_offset: int) -> None:
        queue.batches.remove(batch)
        queue.has_acknowledged = True
        self.acknowledged += 1
        committed = self._checker.of(queue.partition)
        for delta, value in enumerate(batch.values):
            committed.acknowledged(value, base_offset + delta, self._client.name)

    def _acknowledge_if_committed(self, queue: _PartitionQueue, batch: _Batch) -> None:
        """Complete an unacknowledged batch if its values are committed."""
        offset = self._checker.of(queue.partition).offset_of(batch.values[0])
        if offset is not None:
            self._acknowledge(queue, batch, offset)

    def _check_refusal(
        self, queue: _PartitionQueue, batch: _Batch, code: ErrorCode, *, is_next: bool
    ) -> None:
        """Check that an OUT_OF_ORDER_SEQUENCE_NUMBER error is plausible.

        The error code is correct in two cases: an earlier batch is not acknowledged, or a replica
        was opened or truncated after the batch was created. As in Kafka, producer snapshots contain
        only the last batch of each producer.
        """
        may_be_unknown = self._checker.reloads[queue.partition] > batch.reloads
        is_out_of_order = code is ErrorCode.out_of_order_sequence_number
        if code in RETRIABLE or (is_out_of_order and (may_be_unknown or not is_next)):
            return
        raise InvariantViolationError(
            f"{queue.partition}: sequence {batch.sequence} of {self._client.name} (producer id "
            f"{self._producer_id}) was rejected with {code.name}, although all earlier batches "
            "were acknowledged"
        )


class AcksOneProducer:
    """Producer that writes with acks=1 and ignores the outcome."""

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
            yield Sleep(ms=client.random.randint(1, 2 * self._pace_ms))

    def _write(self, partition: TopicPartition, value: bytes) -> Step:
        leader = self._client.leader(partition)
        if leader is None:
            yield from self._client.find_leaders(partition.topic)
            return
        batch = produce_request(partition, encode([value], self._client.now_ms), acks=1)
        partition_response = produced(
            (yield Call(broker_id=leader.broker_id, request=batch, timeout_ms=500))
        )
        if partition_response is None or partition_response.error_code is not ErrorCode.none:
            yield from self._client.find_leaders(partition.topic)
