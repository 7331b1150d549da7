"""What may be sent now, and what an answer means: the core of the idempotent producer.

Purpose: for every partition a line of batches, of which those in front are on their way. Invariant:
batches of a partition are appended in the order they were added, each once, whatever answers are
lost and whichever brokers lead; a batch keeps its sequences for ever; no more are in flight than
the brokers remember (`ProducerStateEntry.NUM_BATCHES_TO_RETAIN`). What it must not know: sockets,
time (moments are arguments), metadata, how errors are phrased.

| answer to a batch           | what becomes of it                                                 |
| --------------------------- | ------------------------------------------------------------------ |
| success, duplicate          | confirmed                                                          |
| may pass, or no answer      | sent again                                                         |
| too large                   | split, and its parts are sent; a single record has failed          |
| out of order, behind others | sent again after those                                             |
| out of order, the next      | failed, or see below                                               |
| all other                   | failed                                                             |

To send again: the partition sends nothing until all that is in flight is answered, and then what
failed, in order, one batch at a time until the first success. One at a time it is also in the
beginning, with a new leader, after all was confirmed and with a topic created anew: a broker that
knows nothing of a producer, or has forgotten it while it was idle, takes any sequence, so that the
second batch must not be there before the first one is.

Splitting keeps sequences right, since they count records: the parts have those of the whole, and
what was encoded behind it keeps its own.

The next one out of order though nothing before it is open: either records were lost (an unclean
election), or it was appended, its answer was lost, and a broker that was started anew remembers
only the last batch of each producer (the snapshots of `ProducerStateManager`). It was appended
where a later batch is: brokers append in sequence. So a later one that was sent before is sent
again; when that is confirmed both are.
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
"""Of a partition in a request, beside its batch; a topic's name is longer once in a while."""

Split = Callable[[EncodedBatch], Sequence[EncodedBatch]]


class Verdict(Enum):
    """What an answer says of a batch."""

    CONFIRMED = auto()
    AGAIN = auto()
    OUT_OF_ORDER = auto()
    TOO_LARGE = auto()
    FAILED = auto()


_OF_REACTION: Final = {
    Reaction.SUCCEED: Verdict.CONFIRMED,
    Reaction.RETRY: Verdict.AGAIN,
    Reaction.REFRESH_METADATA: Verdict.AGAIN,
    Reaction.FIND_COORDINATOR: Verdict.AGAIN,
    Reaction.FAIL: Verdict.FAILED,
}
VERDICTS: Final[Mapping[ErrorCode, Verdict]] = {
    **{code: _OF_REACTION[reaction] for code, reaction in REACTIONS.items()},
    ErrorCode.duplicate_sequence_number: Verdict.CONFIRMED,
    ErrorCode.out_of_order_sequence_number: Verdict.OUT_OF_ORDER,
    ErrorCode.message_too_large: Verdict.TOO_LARGE,
    ErrorCode.record_list_too_large: Verdict.TOO_LARGE,
}
"""As `Sender.canRetry` and `TransactionManager.canRetry` of Kafka's client have it."""


@dataclass(slots=True, kw_only=True, eq=False)
class Batch:
    """A batch that is not confirmed. `first_record` counts the partition's records before it.

    `bytes_max` is what it may have before compression, `deadline` the moment by which it is to
    be confirmed, `tries` how often it was sent.
    """

    topic_partition: TopicPartition
    encoded: EncodedBatch
    first_record: int
    bytes_max: int
    deadline: float
    tries: int = 0

    @property
    def size(self) -> int:
        """Bytes as sent."""
        return len(self.encoded.data)


@dataclass(slots=True, eq=False)
class _Line:
    """The batches of one partition, in order: presumed, in flight or failed, waiting.

    `at` is the broker that was sent to last, `trusted` the one that confirmed the last answer,
    where several may be in flight.
    """

    waiting: deque[Batch] = field(default_factory=deque)
    in_flight: list[Batch] = field(default_factory=list)
    failed: list[Batch] = field(default_factory=list)
    presumed: list[Batch] = field(default_factory=list)
    at: int | None = None
    trusted: int | None = None
    not_before: float = 0.0
    failures: int = 0
    added_records: int = 0
    confirmed_records: int = 0

    @property
    def is_empty(self) -> bool:
        return not (self.waiting or self.in_flight or self.failed or self.presumed)

    def may_send(self, now: float) -> bool:
        """Whether a batch waits for nothing but a leader that takes it."""
        return bool(self.waiting) and not self.failed and now >= self.not_before

    def may_send_to(self, broker_id: int, in_flight_max: int) -> bool:
        """Whether it may go to this broker, beside what is in flight."""
        window = in_flight_max if self.trusted == broker_id else 1
        return len(self.in_flight) < window

    def oldest(self) -> Batch:
        groups = (self.presumed, self.failed, self.in_flight, self.waiting)
        return min((group[0] for group in groups if group), key=attrgetter("first_record"))


@dataclass(slots=True, kw_only=True)
class InFlight:
    """All partitions of one producer.

    `split` makes two batches or more of one with several records. `held_bytes` are those of all
    batches that are not confirmed.
    """

    split: Split
    in_flight_max: int = IN_FLIGHT_MAX
    request_bytes_max: int = 1024 * 1024
    held_bytes: int = 0
    _lines: dict[TopicPartition, _Line] = field(default_factory=dict)
    _open: dict[TopicPartition, _Line] = field(default_factory=dict)
    """Those with a batch that is not confirmed; who has waited longest comes first."""

    def __post_init__(self) -> None:
        assert 1 <= self.in_flight_max <= IN_FLIGHT_MAX

    @property
    def is_empty(self) -> bool:
        """Whether everything is confirmed."""
        return not self._open

    def add(self, topic: str, encoded: EncodedBatch, *, bytes_max: int, deadline: float) -> None:
        """The next batch of a partition; its sequences follow those of the one before."""
        partition = TopicPartition(topic, encoded.partition)
        line = self._lines.setdefault(partition, _Line())
        self._open.setdefault(partition, line)
        batch = Batch(
            topic_partition=partition,
            encoded=encoded,
            first_record=line.added_records,
            bytes_max=bytes_max,
            deadline=deadline,
        )
        line.added_records += encoded.record_count
        line.waiting.append(batch)
        self.held_bytes += batch.size

    def open_partitions(self) -> Iterable[TopicPartition]:
        """Those with batches that are not confirmed."""
        return self._open.keys()

    def ready(self, now: float) -> list[TopicPartition]:
        """Partitions with a batch to send, if there is a leader that takes it."""
        return [partition for partition, line in self._open.items() if line.may_send(now)]

    def take(self, broker_id: int, led: Iterable[TopicPartition]) -> list[Batch]:
        """The batches of one request to a broker, now in flight, of `ready` partitions it leads."""
        taken: list[Batch] = []
        size = 0
        for partition in led:
            line = self._open[partition]
            if not line.waiting or not line.may_send_to(broker_id, self.in_flight_max):
                continue
            added = line.waiting[0].size + _OVERHEAD_BYTES
            if taken and size + added > self.request_bytes_max:
                continue
            batch = line.waiting.popleft()
            batch.tries += 1
            line.in_flight.append(batch)
            line.at = broker_id
            taken.append(batch)
            size += added
        for batch in taken:  # Who has sent comes last next time.
            self._open[batch.topic_partition] = self._open.pop(batch.topic_partition)
        return taken

    def answered(self, batch: Batch, verdict: Verdict) -> Batch | None:
        """What an answer says; the batch that has failed for good, if it is so.

        After a failure nothing of this state is of use any more.
        """
        line = self._lines[batch.topic_partition]
        line.in_flight.remove(batch)
        failed: Batch | None = None
        match verdict:
            case Verdict.CONFIRMED:
                self._confirm(line, batch)
            case Verdict.AGAIN:
                self._again(line, [batch])
            case Verdict.TOO_LARGE if batch.encoded.record_count > 1:
                self._again(line, self._parts(batch))
            case Verdict.OUT_OF_ORDER:
                failed = self._out_of_order(line, batch)
            case _:
                failed = batch
        if line.failed and not line.in_flight:
            line.failed.sort(key=attrgetter("first_record"))
            line.waiting.extendleft(reversed(line.failed))
            line.failed.clear()
        if line.is_empty:
            line.trusted = None
            self._open.pop(batch.topic_partition, None)
        return failed

    def pause(self, partition: TopicPartition, until: Callable[[int], float]) -> None:
        """Send nothing for a partition for a while; `until` gets how often it failed in a row."""
        line = self._lines[partition]
        line.failures += 1
        line.not_before = max(line.not_before, until(line.failures))

    def distrust(self, topic: str) -> None:
        """The brokers may know nothing of this producer any more, whatever was in flight says."""
        for partition, line in self._open.items():
            if partition.topic == topic:
                line.at = line.trusted = None

    def postpone(self, by_s: float) -> None:
        """Every batch has so much more time."""
        for line in self._open.values():
            for group in (line.presumed, line.failed, line.in_flight, line.waiting):
                for batch in group:
                    batch.deadline += by_s

    def oldest(self) -> Batch | None:
        """The batch whose deadline comes first."""
        batches = [line.oldest() for line in self._open.values()]
        return min(batches, key=attrgetter("deadline"), default=None)

    def wakes_at(self, now: float) -> float | None:
        """When the first of the partitions that pause may send again."""
        pauses = [
            line.not_before
            for line in self._open.values()
            if line.waiting and not line.failed and line.not_before > now
        ]
        return min(pauses, default=None)

    def _confirm(self, line: _Line, batch: Batch) -> None:
        for one in (batch, *line.presumed):
            self.held_bytes -= one.size
        line.presumed.clear()
        end = batch.first_record + batch.encoded.record_count
        line.confirmed_records = max(line.confirmed_records, end)
        line.failures = 0
        if not line.failed:
            line.trusted = line.at

    def _again(self, line: _Line, batches: Iterable[Batch]) -> None:
        line.failed += batches
        line.trusted = None

    def _parts(self, batch: Batch) -> list[Batch]:
        parts: list[Batch] = []
        first_record = batch.first_record
        for encoded in self.split(batch.encoded):
            part = Batch(
                topic_partition=batch.topic_partition,
                encoded=encoded,
                first_record=first_record,
                bytes_max=batch.bytes_max // 2,
                deadline=batch.deadline,
            )
            parts.append(part)
            first_record += encoded.record_count
        assert len(parts) > 1
        self.held_bytes += sum(part.size for part in parts) - batch.size
        return parts

    def _out_of_order(self, line: _Line, batch: Batch) -> Batch | None:
        before = [one for one in (*line.failed, *line.in_flight) if _is_before(one, batch)]
        if before:
            self._again(line, [batch])
            return None
        if batch.tries > 1 and batch.first_record < line.confirmed_records:
            self._confirm(line, batch)
            return None
        line.presumed.append(batch)
        line.trusted = None
        if batch.tries > 1 and line.waiting and line.waiting[0].tries > 0:
            return None
        return line.presumed[0]


def _is_before(one: Batch, other: Batch) -> bool:
    return one.first_record < other.first_record
