"""The queues of unacknowledged batches of an idempotent producer.

Each partition has a queue. The batches at the front of the queue are in flight. Invariant: the
batches of a partition are appended once and in the order in which they were added, even if
responses are lost or the leader changes. A batch keeps its sequence numbers. The number of batches
in flight per partition does not exceed the number of batches that brokers retain for a producer
(`ProducerStateEntry.NUM_BATCHES_TO_RETAIN`). All times are passed as arguments.

| response for a batch                             | effect on the batch                           |
| ------------------------------------------------ | --------------------------------------------- |
| success, duplicate                               | acknowledged                                  |
| retriable error, no response                     | sent again                                    |
| too large                                        | split and sent again; a single record fails   |
| out of order, an earlier batch is unacknowledged | sent again after the earlier batch            |
| out of order, no earlier batch is unacknowledged | fails, except in the case described below     |
| any other error                                  | fails                                         |

Before failed batches are sent again, the responses to all batches in flight must have arrived. The
failed batches are then sent in order, one at a time until the first success. Batches are also sent
one at a time in four other cases: at the start, after a leader change, after an idle period, and
after the topic was recreated. In these cases, the broker may have no state for this producer, or
the state may have expired. Such a broker accepts any sequence number, so the second batch must not
arrive before the first.

Sequence numbers count records, so they remain correct when a batch is split: the parts have the
sequence numbers of the original batch, and later batches keep their sequence numbers.

A batch can be out of order even if no earlier batch is unacknowledged. One cause is the loss of
earlier records in an unclean leader election. The other cause is a lost response: the batch was
appended, but the broker restarted and retained only the last batch of each producer (the snapshots
of `ProducerStateManager`). Brokers append batches in sequence, so the batch was appended if a later
batch was appended. For this reason, a later batch that was already sent is sent again. If a broker
acknowledges the later batch, both batches are acknowledged.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from operator import attrgetter
from typing import Final

from kio.schema.errors import ErrorCode

from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.records import EncodedBatch
from pyspark_kafka.wire.error_codes import REACTIONS, Reaction

IN_FLIGHT_MAX: Final = 5
_OVERHEAD_BYTES: Final = 64
"""The estimated size in bytes of a partition's entry in a request, without its batch."""

Split = Callable[[EncodedBatch], Sequence[EncodedBatch]]


class ProduceReaction(Enum):
    """The effect of a response on a batch, as in the table above."""

    SUCCEED = auto()
    RETRY = auto()
    OUT_OF_ORDER = auto()
    TOO_LARGE = auto()
    FAIL = auto()


_BY_REACTION: Final = {
    Reaction.SUCCEED: ProduceReaction.SUCCEED,
    Reaction.RETRY: ProduceReaction.RETRY,
    Reaction.REFRESH_METADATA: ProduceReaction.RETRY,
    Reaction.FIND_COORDINATOR: ProduceReaction.RETRY,
    Reaction.FAIL: ProduceReaction.FAIL,
}
PRODUCE_REACTIONS: Final[Mapping[ErrorCode, ProduceReaction]] = {
    **{code: _BY_REACTION[reaction] for code, reaction in REACTIONS.items()},
    ErrorCode.duplicate_sequence_number: ProduceReaction.SUCCEED,
    ErrorCode.out_of_order_sequence_number: ProduceReaction.OUT_OF_ORDER,
    ErrorCode.message_too_large: ProduceReaction.TOO_LARGE,
    ErrorCode.record_list_too_large: ProduceReaction.TOO_LARGE,
}
"""Similar to `Sender.canRetry` and `TransactionManager.canRetry` in the Java client.

In some cases, the Java client continues with a new producer epoch (KIP-360). This producer fails
instead, and Spark runs the task again.
"""


@dataclass(slots=True, kw_only=True, eq=False)
class ProducerBatch:
    """An unacknowledged batch (Kafka: `ProducerBatch`).

    `first_record` is the number of records that were added to the partition before this batch.
    `bytes_max` is the maximum size of the batch before compression. The batch fails if it is not
    acknowledged before `deadline`. `attempts` is the number of times the batch was sent.
    """

    topic_partition: TopicPartition
    encoded: EncodedBatch
    first_record: int
    bytes_max: int
    deadline: float
    attempts: int = 0

    @property
    def size(self) -> int:
        """The size of the encoded batch in bytes."""
        return len(self.encoded.data)


@dataclass(slots=True, eq=False)
class _PartitionQueue:
    """The batches of one partition.

    The order of the batches is `presumed`, then `in_flight` and `failed`, then `waiting`.
    `presumed` batches may have been appended. They are acknowledged when a later batch is.
    `sent_to` is the broker to which the last request was sent. `acknowledged_by` is the broker that
    sent the last successful response. Several batches may be in flight to `acknowledged_by`, but
    only one batch may be in flight to any other broker.
    """

    waiting: deque[ProducerBatch] = field(default_factory=deque)
    in_flight: list[ProducerBatch] = field(default_factory=list)
    failed: list[ProducerBatch] = field(default_factory=list)
    presumed: list[ProducerBatch] = field(default_factory=list)
    sent_to: int | None = None
    acknowledged_by: int | None = None
    not_before: float = 0.0
    failures: int = 0
    added_records: int = 0
    acknowledged_records: int = 0

    @property
    def is_empty(self) -> bool:
        return not (self.waiting or self.in_flight or self.failed or self.presumed)

    def may_send(self, now: float) -> bool:
        """Return whether the partition has a batch to send.

        A waiting batch cannot be sent while the partition has failed batches or is backing off.
        """
        return bool(self.waiting) and not self.failed and now >= self.not_before

    def may_send_to(self, broker_id: int, in_flight_max: int) -> bool:
        """Return whether another batch may be sent to this broker."""
        window = in_flight_max if self.acknowledged_by == broker_id else 1
        return len(self.in_flight) < window

    def oldest(self) -> ProducerBatch:
        groups = (self.presumed, self.failed, self.in_flight, self.waiting)
        return min((group[0] for group in groups if group), key=attrgetter("first_record"))


@dataclass(slots=True, kw_only=True)
class BatchQueues:
    """The queues of all partitions of one producer.

    `split` divides a batch of several records into two or more batches. `unacknowledged_bytes` is
    the total size of the unacknowledged batches.
    """

    split: Split
    in_flight_max: int = IN_FLIGHT_MAX
    request_bytes_max: int = 1024 * 1024
    unacknowledged_bytes: int = 0
    _queues: dict[TopicPartition, _PartitionQueue] = field(default_factory=dict)
    _open: dict[TopicPartition, _PartitionQueue] = field(default_factory=dict)
    """Partitions with unacknowledged batches. The partition that has waited longest comes first."""

    def __post_init__(self) -> None:
        assert 1 <= self.in_flight_max <= IN_FLIGHT_MAX

    @property
    def is_empty(self) -> bool:
        """Whether all batches are acknowledged."""
        return not self._open

    def add(self, topic: str, encoded: EncodedBatch, *, bytes_max: int, deadline: float) -> None:
        """Append a batch to its partition's queue.

        The sequence numbers of the batch must follow those of the previous batch.
        """
        partition = TopicPartition(topic, encoded.partition)
        queue = self._queues.setdefault(partition, _PartitionQueue())
        self._open.setdefault(partition, queue)
        batch = ProducerBatch(
            topic_partition=partition,
            encoded=encoded,
            first_record=queue.added_records,
            bytes_max=bytes_max,
            deadline=deadline,
        )
        queue.added_records += encoded.record_count
        queue.waiting.append(batch)
        self.unacknowledged_bytes += batch.size

    def open_partitions(self) -> Iterable[TopicPartition]:
        """Return the partitions with unacknowledged batches."""
        return self._open.keys()

    def ready(self, now: float) -> list[TopicPartition]:
        """Return the partitions that have a batch to send and are not backing off."""
        return [partition for partition, queue in self._open.items() if queue.may_send(now)]

    def take(self, broker_id: int, led_partitions: Iterable[TopicPartition]) -> list[ProducerBatch]:
        """Return the batches for the next request to a broker, and mark them as in flight.

        `led_partitions` are partitions returned by `ready` that this broker leads.
        """
        taken: list[ProducerBatch] = []
        size = 0
        for partition in led_partitions:
            queue = self._open[partition]
            if not queue.waiting or not queue.may_send_to(broker_id, self.in_flight_max):
                continue
            added = queue.waiting[0].size + _OVERHEAD_BYTES
            if taken and size + added > self.request_bytes_max:
                continue
            batch = queue.waiting.popleft()
            batch.attempts += 1
            queue.in_flight.append(batch)
            queue.sent_to = broker_id
            taken.append(batch)
            size += added
        for batch in taken:  # For fairness, these partitions come last in the next request.
            self._open[batch.topic_partition] = self._open.pop(batch.topic_partition)
        return taken

    def handle_result(
        self, batch: ProducerBatch, reaction: ProduceReaction
    ) -> ProducerBatch | None:
        """Apply a response. Return the batch if it failed and cannot be retried, otherwise None.

        After such a failure, this object must no longer be used.
        """
        queue = self._queues[batch.topic_partition]
        queue.in_flight.remove(batch)
        failed: ProducerBatch | None = None
        match reaction:
            case ProduceReaction.SUCCEED:
                self._acknowledge(queue, batch)
            case ProduceReaction.RETRY:
                self._requeue(queue, [batch])
            case ProduceReaction.TOO_LARGE if batch.encoded.record_count > 1:
                self._requeue(queue, self._parts(batch))
            case ProduceReaction.OUT_OF_ORDER:
                failed = self._out_of_order(queue, batch)
            case _:
                failed = batch
        if queue.failed and not queue.in_flight:
            queue.failed.sort(key=attrgetter("first_record"))
            queue.waiting.extendleft(reversed(queue.failed))
            queue.failed.clear()
        if queue.is_empty:
            queue.acknowledged_by = None
            self._open.pop(batch.topic_partition, None)
        return failed

    def back_off(
        self, partition: TopicPartition, now: float, until: Callable[[int], float]
    ) -> None:
        """Send nothing to a partition until the time that `until` returns.

        `until` is called with the number of consecutive failures for the partition. Failures during
        a backoff are not counted, because all batches in flight fail at once if a connection is
        lost.
        """
        queue = self._queues[partition]
        if now >= queue.not_before:
            queue.failures += 1
        queue.not_before = max(queue.not_before, until(queue.failures))

    def reset_window(self, topic: str) -> None:
        """Send one batch at a time to each partition of a topic.

        The caller uses this method if brokers may have no state for this producer and topic.
        """
        for partition, queue in self._open.items():
            if partition.topic == topic:
                queue.sent_to = queue.acknowledged_by = None

    def extend_deadlines(self, by_s: float) -> None:
        """Extend the deadlines of all batches by `by_s` seconds."""
        for queue in self._open.values():
            for group in (queue.presumed, queue.failed, queue.in_flight, queue.waiting):
                for batch in group:
                    batch.deadline += by_s

    def oldest(self) -> ProducerBatch | None:
        """Return the batch with the earliest deadline."""
        batches = [queue.oldest() for queue in self._open.values()]
        return min(batches, key=attrgetter("deadline"), default=None)

    def next_retry_at(self, now: float) -> float | None:
        """Return the earliest time at which a partition's backoff ends, or None."""
        ends = [
            queue.not_before
            for queue in self._open.values()
            if queue.waiting and not queue.failed and queue.not_before > now
        ]
        return min(ends, default=None)

    def _acknowledge(self, queue: _PartitionQueue, batch: ProducerBatch) -> None:
        for one in (batch, *queue.presumed):
            self.unacknowledged_bytes -= one.size
        queue.presumed.clear()
        end = batch.first_record + batch.encoded.record_count
        queue.acknowledged_records = max(queue.acknowledged_records, end)
        queue.failures = 0
        if not queue.failed:
            queue.acknowledged_by = queue.sent_to

    def _requeue(self, queue: _PartitionQueue, batches: Iterable[ProducerBatch]) -> None:
        queue.failed += batches
        queue.acknowledged_by = None

    def _parts(self, batch: ProducerBatch) -> list[ProducerBatch]:
        parts: list[ProducerBatch] = []
        first_record = batch.first_record
        for encoded in self.split(batch.encoded):
            part = ProducerBatch(
                topic_partition=batch.topic_partition,
                encoded=encoded,
                first_record=first_record,
                bytes_max=batch.bytes_max // 2,
                deadline=batch.deadline,
            )
            parts.append(part)
            first_record += encoded.record_count
        assert len(parts) > 1
        self.unacknowledged_bytes += sum(part.size for part in parts) - batch.size
        return parts

    def _out_of_order(self, queue: _PartitionQueue, batch: ProducerBatch) -> ProducerBatch | None:
        earlier = [one for one in (*queue.failed, *queue.in_flight) if _is_before(one, batch)]
        if earlier:
            self._requeue(queue, [batch])
            return None
        if batch.attempts > 1 and batch.first_record < queue.acknowledged_records:
            self._acknowledge(queue, batch)
            return None
        queue.presumed.append(batch)
        queue.acknowledged_by = None
        if batch.attempts > 1 and queue.waiting and queue.waiting[0].attempts > 0:
            return None
        return queue.presumed[0]


def _is_before(one: ProducerBatch, other: ProducerBatch) -> bool:
    return one.first_record < other.first_record
