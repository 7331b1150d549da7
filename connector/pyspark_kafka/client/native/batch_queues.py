"""The unconfirmed batches of an idempotent producer: when each is sent, and what its answer means.

Purpose: a queue of batches for every partition; those in front are in flight. Invariant: the
batches of a partition are appended in the order they were added, each once, whichever answers are
lost and brokers lead; a batch keeps its sequences; no more batches are in flight than brokers
remember (`ProducerStateEntry.NUM_BATCHES_TO_RETAIN`). What it must not know: sockets, the clock
(times are arguments), metadata, the texts of errors.

| answer to a batch                         | what happens to the batch                            |
| ----------------------------------------- | ---------------------------------------------------- |
| success, duplicate                        | confirmed                                            |
| retriable error, or no answer             | sent again                                           |
| too large                                 | split, and its parts are sent; a single record fails |
| out of order, earlier batches unconfirmed | sent again after those                               |
| out of order, no earlier batch            | fails, or see below                                  |
| any other error                           | fails                                                |

To send batches again, the partition stops sending until everything in flight is answered. Then it
sends the failed batches in order, one at a time until the first success. It also sends one batch at
a time at the start, to a new leader, after it was idle and to a recreated topic: a broker that has
no state of a producer, or has expired it, accepts any sequence, so the second batch must not arrive
before the first.

Splitting keeps sequences correct, since they count records: the parts cover the sequences of the
whole batch, and batches encoded after it keep theirs.

A batch can be out of order although no earlier one is unconfirmed. Either records were lost (an
unclean leader election), or the batch was appended, its answer was lost, and the broker restarted
and remembers only the last batch of each producer (the snapshots of `ProducerStateManager`).
Brokers append in sequence, so the batch was appended if a later one was. Therefore a later batch
that was already sent is sent again; when it is confirmed, both are.
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
"""Estimated bytes of a partition in a request, without its batch."""

Split = Callable[[EncodedBatch], Sequence[EncodedBatch]]


class ProduceReaction(Enum):
    """What the answer to a batch leads to; see the table above."""

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
"""The same as `Sender.canRetry` and `TransactionManager.canRetry` of Kafka's client."""


@dataclass(slots=True, kw_only=True, eq=False)
class ProducerBatch:
    """An unconfirmed batch (Kafka: `ProducerBatch`).

    `first_record` is the number of records added to the partition before it, `bytes_max` its
    largest size before compression, `deadline` when it fails if it is not confirmed, `tries` how
    often it was sent.
    """

    topic_partition: TopicPartition
    encoded: EncodedBatch
    first_record: int
    bytes_max: int
    deadline: float
    tries: int = 0

    @property
    def size(self) -> int:
        """Bytes in the request."""
        return len(self.encoded.data)


@dataclass(slots=True, eq=False)
class _PartitionQueue:
    """The batches of one partition, in order: `presumed`, `in_flight` or `failed`, `waiting`.

    `presumed` batches are those that the brokers appended if a later one is confirmed. `sent_to` is
    the broker of the last request. `confirmed_by` is the broker that confirmed the last answer;
    several batches may be in flight to it.
    """

    waiting: deque[ProducerBatch] = field(default_factory=deque)
    in_flight: list[ProducerBatch] = field(default_factory=list)
    failed: list[ProducerBatch] = field(default_factory=list)
    presumed: list[ProducerBatch] = field(default_factory=list)
    sent_to: int | None = None
    confirmed_by: int | None = None
    not_before: float = 0.0
    failures: int = 0
    added_records: int = 0
    confirmed_records: int = 0

    @property
    def is_empty(self) -> bool:
        return not (self.waiting or self.in_flight or self.failed or self.presumed)

    def may_send(self, now: float) -> bool:
        """Return whether the next batch can be sent as soon as a leader has room for it."""
        return bool(self.waiting) and not self.failed and now >= self.not_before

    def may_send_to(self, broker_id: int, in_flight_max: int) -> bool:
        """Return whether one more batch may be in flight to this broker."""
        window = in_flight_max if self.confirmed_by == broker_id else 1
        return len(self.in_flight) < window

    def oldest(self) -> ProducerBatch:
        groups = (self.presumed, self.failed, self.in_flight, self.waiting)
        return min((group[0] for group in groups if group), key=attrgetter("first_record"))


@dataclass(slots=True, kw_only=True)
class BatchQueues:
    """The queues of all partitions of one producer.

    `split` divides a batch of several records into two or more batches. `unconfirmed_bytes` is the
    size of all batches.
    """

    split: Split
    in_flight_max: int = IN_FLIGHT_MAX
    request_bytes_max: int = 1024 * 1024
    unconfirmed_bytes: int = 0
    _queues: dict[TopicPartition, _PartitionQueue] = field(default_factory=dict)
    _open: dict[TopicPartition, _PartitionQueue] = field(default_factory=dict)
    """Partitions with unconfirmed batches; the one that has waited longest comes first."""

    def __post_init__(self) -> None:
        assert 1 <= self.in_flight_max <= IN_FLIGHT_MAX

    @property
    def is_empty(self) -> bool:
        """Return whether all batches are confirmed."""
        return not self._open

    def add(self, topic: str, encoded: EncodedBatch, *, bytes_max: int, deadline: float) -> None:
        """Append a batch to its partition's queue; its sequences follow those of the last one."""
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
        self.unconfirmed_bytes += batch.size

    def open_partitions(self) -> Iterable[TopicPartition]:
        """Return the partitions with unconfirmed batches."""
        return self._open.keys()

    def ready(self, now: float) -> list[TopicPartition]:
        """Return the partitions that have a batch to send."""
        return [partition for partition, queue in self._open.items() if queue.may_send(now)]

    def take(self, broker_id: int, led: Iterable[TopicPartition]) -> list[ProducerBatch]:
        """Move the batches of one request to a broker in flight; `led` are `ready` partitions."""
        taken: list[ProducerBatch] = []
        size = 0
        for partition in led:
            queue = self._open[partition]
            if not queue.waiting or not queue.may_send_to(broker_id, self.in_flight_max):
                continue
            added = queue.waiting[0].size + _OVERHEAD_BYTES
            if taken and size + added > self.request_bytes_max:
                continue
            batch = queue.waiting.popleft()
            batch.tries += 1
            queue.in_flight.append(batch)
            queue.sent_to = broker_id
            taken.append(batch)
            size += added
        for batch in taken:  # Fairness: these partitions come last next time.
            self._open[batch.topic_partition] = self._open.pop(batch.topic_partition)
        return taken

    def handle_answer(
        self, batch: ProducerBatch, reaction: ProduceReaction
    ) -> ProducerBatch | None:
        """Apply an answer; return the batch that has failed for good, if any.

        After such a failure this object must not be used.
        """
        queue = self._queues[batch.topic_partition]
        queue.in_flight.remove(batch)
        failed: ProducerBatch | None = None
        match reaction:
            case ProduceReaction.SUCCEED:
                self._confirm(queue, batch)
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
            queue.confirmed_by = None
            self._open.pop(batch.topic_partition, None)
        return failed

    def pause(self, partition: TopicPartition, until: Callable[[int], float]) -> None:
        """Pause a partition; `until` is called with the number of failures in a row."""
        queue = self._queues[partition]
        queue.failures += 1
        queue.not_before = max(queue.not_before, until(queue.failures))

    def reset_window(self, topic: str) -> None:
        """Send one batch at a time: the brokers may have no state of this producer for a topic."""
        for partition, queue in self._open.items():
            if partition.topic == topic:
                queue.sent_to = queue.confirmed_by = None

    def extend_deadlines(self, by_s: float) -> None:
        """Move the deadlines of all batches."""
        for queue in self._open.values():
            for group in (queue.presumed, queue.failed, queue.in_flight, queue.waiting):
                for batch in group:
                    batch.deadline += by_s

    def oldest(self) -> ProducerBatch | None:
        """Return the batch with the earliest deadline."""
        batches = [queue.oldest() for queue in self._open.values()]
        return min(batches, key=attrgetter("deadline"), default=None)

    def next_retry_at(self, now: float) -> float | None:
        """Return when the first paused partition may send again."""
        pauses = [
            queue.not_before
            for queue in self._open.values()
            if queue.waiting and not queue.failed and queue.not_before > now
        ]
        return min(pauses, default=None)

    def _confirm(self, queue: _PartitionQueue, batch: ProducerBatch) -> None:
        for one in (batch, *queue.presumed):
            self.unconfirmed_bytes -= one.size
        queue.presumed.clear()
        end = batch.first_record + batch.encoded.record_count
        queue.confirmed_records = max(queue.confirmed_records, end)
        queue.failures = 0
        if not queue.failed:
            queue.confirmed_by = queue.sent_to

    def _requeue(self, queue: _PartitionQueue, batches: Iterable[ProducerBatch]) -> None:
        queue.failed += batches
        queue.confirmed_by = None

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
        self.unconfirmed_bytes += sum(part.size for part in parts) - batch.size
        return parts

    def _out_of_order(self, queue: _PartitionQueue, batch: ProducerBatch) -> ProducerBatch | None:
        earlier = [one for one in (*queue.failed, *queue.in_flight) if _is_before(one, batch)]
        if earlier:
            self._requeue(queue, [batch])
            return None
        if batch.tries > 1 and batch.first_record < queue.confirmed_records:
            self._confirm(queue, batch)
            return None
        queue.presumed.append(batch)
        queue.confirmed_by = None
        if batch.tries > 1 and queue.waiting and queue.waiting[0].tries > 0:
            return None
        return queue.presumed[0]


def _is_before(one: ProducerBatch, other: ProducerBatch) -> bool:
    return one.first_record < other.first_record
