"""Tests of the idempotent producer's queues with brokers that check sequences as Kafka does."""

from __future__ import annotations

import struct
from collections import defaultdict, deque
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from pyspark_kafka.client.native.batch_queues import (
    PRODUCE_REACTIONS,
    BatchQueues,
    ProducerBatch,
    ProduceReaction,
)
from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.records import EncodedBatch
from pyspark_kafka.records.encoding import next_sequence

TOPIC = "t"
FAR = 1e9
REMEMBERED = 5
NUMBER = struct.Struct(">i")


def encoded(partition: int, sequence: int, numbers: list[int]) -> EncodedBatch:
    """Return a batch whose data are the numbers of its records."""
    data = b"".join(map(NUMBER.pack, numbers))
    return EncodedBatch(
        partition=partition,
        base_sequence=sequence,
        record_count=len(numbers),
        data=memoryview(data),
    )


def numbers_of(batch: EncodedBatch) -> list[int]:
    return [number for (number,) in NUMBER.iter_unpack(batch.data)]


def halves(batch: EncodedBatch) -> list[EncodedBatch]:
    numbers = numbers_of(batch)
    half = len(numbers) // 2
    middle = next_sequence(batch.base_sequence, half)
    return [
        encoded(batch.partition, batch.base_sequence, numbers[:half]),
        encoded(batch.partition, middle, numbers[half:]),
    ]


@dataclass
class Log:
    """One partition: its records, and the producer state of its leader."""

    leader: int
    records: list[int] = field(default_factory=list)
    expected: int | None = None
    remembered: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=REMEMBERED))

    def append(self, batch: EncodedBatch, *, broker_id: int, records_max: int) -> ErrorCode:
        """Append like `UnifiedLog.append` and `ProducerAppendInfo.checkSequence`."""
        if broker_id != self.leader:
            return ErrorCode.not_leader_or_follower
        if batch.record_count > records_max:
            return ErrorCode.message_too_large
        found = (batch.base_sequence, batch.record_count)
        if found in self.remembered:
            return ErrorCode.none
        if self.expected is not None and batch.base_sequence != self.expected:
            return ErrorCode.out_of_order_sequence_number
        self.records += numbers_of(batch)
        self.remembered.append(found)
        self.expected = next_sequence(*found)
        return ErrorCode.none

    def restart(self) -> None:
        """Restart the broker, whose snapshot contains only the last batch of a producer."""
        self.remembered = deque([*self.remembered][-1:], maxlen=REMEMBERED)

    def expire_producer_state(self) -> None:
        """Expire the producer state (`producer.id.expiration.ms`)."""
        self.expected = None
        self.remembered.clear()


class ProducerAndBrokers:
    """A producer, its requests in flight, and the brokers."""

    def __init__(self, *, in_flight_max: int, records_max: int, first_sequence: int) -> None:
        self.queues = BatchQueues(split=halves, in_flight_max=in_flight_max, request_bytes_max=60)
        self.in_flight_max = in_flight_max
        self.records_max = records_max
        self.logs = [Log(leader=0), Log(leader=1)]
        self.written: dict[int, list[int]] = defaultdict(list)
        self.sequences = [first_sequence, first_sequence]
        self.requests: dict[int, deque[list[ProducerBatch]]] = defaultdict(deque)
        self.zombies: dict[int, deque[EncodedBatch]] = defaultdict(deque)
        self.now = 0.0

    def add(self, partition: int, record_count: int) -> None:
        start = len(self.written[partition])
        numbers = list(range(start, start + record_count))
        self.written[partition] += numbers
        batch = encoded(partition, self.sequences[partition], numbers)
        self.sequences[partition] = next_sequence(batch.base_sequence, record_count)
        self.queues.add(TOPIC, batch, bytes_max=1000, deadline=FAR)

    def send(self, stale_leader: int | None = None) -> None:
        """Send as many batches as possible; with `stale_leader`, to this broker."""
        led: dict[int, list[TopicPartition]] = defaultdict(list)
        for partition in self.queues.ready(self.now):
            leader = self.logs[partition.partition].leader
            led[leader if stale_leader is None else stale_leader].append(partition)
        for broker_id, partitions in led.items():
            while len(self.requests[broker_id]) < self.in_flight_max:
                batches = self.queues.take(broker_id, partitions)
                if not batches:
                    break
                self.requests[broker_id].append(batches)
        for number in (0, 1):
            count = sum(
                batch.topic_partition.partition == number
                for requests in self.requests.values()
                for batches in requests
                for batch in batches
            )
            assert count <= self.in_flight_max

    def append(self, broker_id: int, batch: EncodedBatch) -> ErrorCode:
        log = self.logs[batch.partition]
        return log.append(batch, broker_id=broker_id, records_max=self.records_max)

    def respond(self, broker_id: int, *, error: ErrorCode | None = None) -> None:
        """Answer the oldest request; `error` replaces a successful result."""
        if not self.requests[broker_id]:
            return
        for batch in self.requests[broker_id].popleft():
            code = ErrorCode.none if error is None else error
            if code not in NOT_APPENDED:
                appended = self.append(broker_id, batch.encoded)
                code = code if appended is ErrorCode.none else appended
            self.take(batch, PRODUCE_REACTIONS[code])

    def take(self, batch: ProducerBatch, reaction: ProduceReaction) -> None:
        assert self.queues.handle_result(batch, reaction) is None, "no record was lost"
        if reaction is ProduceReaction.RETRY:
            self.queues.back_off(
                batch.topic_partition, self.now, lambda failures: self.now + failures
            )

    def drop_connection(self, broker_id: int, served: int) -> None:
        """Close the connection after the broker has handled `served` requests.

        The broker may handle the other requests later.
        """
        requests, self.requests[broker_id] = self.requests[broker_id], deque()
        for index, batches in enumerate(requests):
            for batch in batches:
                if index < served:
                    self.append(broker_id, batch.encoded)
                else:
                    self.zombies[broker_id].append(batch.encoded)
        for batches in requests:
            for batch in batches:
                self.take(batch, ProduceReaction.RETRY)

    def serve_zombies(self, broker_id: int, count: int) -> None:
        while count and self.zombies[broker_id]:
            self.append(broker_id, self.zombies[broker_id].popleft())
            count -= 1

    def expire_producer_state(self, partition: int) -> None:
        """Expire the producer state of a partition that has no unfinished batches."""
        if TopicPartition(TOPIC, partition) not in self.queues.open_partitions():
            self.logs[partition].expire_producer_state()
            for broker_id, batches in self.zombies.items():
                left = [batch for batch in batches if batch.partition != partition]
                self.zombies[broker_id] = deque(left)

    def step(self, name: str, target: int, argument: int) -> None:
        match name:
            case "add":
                self.add(target, argument)
            case "send":
                self.now += argument
                self.send(target)
            case "respond":
                for _ in range(argument):
                    self.respond(target)
            case "error":
                self.respond(target, error=ErrorCode(argument))
            case "drop":
                self.drop_connection(target, argument)
            case "zombies":
                self.serve_zombies(target, argument)
            case "move":
                self.logs[target].leader = argument
            case "restart":
                self.logs[target].restart()
            case "expire":
                self.expire_producer_state(target)

    def finish(self) -> None:
        """Let all requests succeed, and check that all records are soon acknowledged."""
        for _ in range(500):
            if self.queues.is_empty:
                return
            self.now += 100
            self.send()
            for broker_id in list(self.requests):
                self.respond(broker_id)
        raise AssertionError("the producer makes no progress")


NOT_APPENDED = (ErrorCode.not_enough_replicas, ErrorCode.kafka_storage_error)
"""Error codes after which the broker has not appended the batch."""
BROKERS = st.integers(0, 1)
ERRORS = st.sampled_from(
    [
        ErrorCode.not_enough_replicas,
        ErrorCode.kafka_storage_error,
        ErrorCode.request_timed_out,
        ErrorCode.not_enough_replicas_after_append,
        ErrorCode.not_leader_or_follower,
    ]
)
STEPS = st.one_of(
    st.tuples(st.just("add"), BROKERS, st.integers(1, 6)),
    st.tuples(st.just("send"), st.none() | BROKERS, st.integers(0, 3)),
    st.tuples(st.just("send"), st.none(), st.integers(0, 3)),
    st.tuples(st.just("respond"), BROKERS, st.integers(1, 4)),
    st.tuples(st.just("error"), BROKERS, ERRORS),
    st.tuples(st.just("drop"), BROKERS, st.integers(0, 5)),
    st.tuples(st.just("zombies"), BROKERS, st.integers(1, 5)),
    st.tuples(st.just("move"), BROKERS, BROKERS),
    st.tuples(st.just("restart"), BROKERS, st.just(0)),
    st.tuples(st.just("expire"), BROKERS, st.just(0)),
)


FORGOTTEN_WHILE_IDLE = [
    *[("add", 0, 1), ("send", None, 0), ("respond", 0, 1), ("expire", 0, 0)],
    *[("add", 0, 1), ("add", 0, 1), ("send", None, 0)],
    ("error", 0, ErrorCode.not_enough_replicas),
    ("respond", 0, 1),
]


@example(steps=FORGOTTEN_WHILE_IDLE, in_flight_max=5, records_max=100, first_sequence=0)
@settings(max_examples=400)
@given(
    steps=st.lists(STEPS, max_size=60),
    in_flight_max=st.integers(1, 5),
    records_max=st.sampled_from([3, 100]),
    first_sequence=st.sampled_from([0, 2**31 - 8]),
)
def test_every_record_is_written_once_and_in_order(
    steps: list[tuple[str, int, int]],
    in_flight_max: int,
    records_max: int,
    first_sequence: int,
) -> None:
    world = ProducerAndBrokers(
        in_flight_max=in_flight_max, records_max=records_max, first_sequence=first_sequence
    )
    for name, target, argument in steps:
        world.step(name, target, argument)
    world.finish()
    for broker_id in (0, 1):
        world.serve_zombies(broker_id, 1000)
    for partition, log in enumerate(world.logs):
        assert log.records == world.written[partition]
    assert world.queues.unacknowledged_bytes == 0


# --- single responses ---


def queues_with(*counts: int, in_flight_max: int = 5) -> tuple[BatchQueues, list[ProducerBatch]]:
    """Return queues that had one successful request, and batches in flight to broker 1."""
    queues = BatchQueues(split=halves, in_flight_max=in_flight_max)
    sequence = 0
    for count in (1, *counts):
        batch = encoded(0, sequence, list(range(sequence, sequence + count)))
        queues.add(TOPIC, batch, bytes_max=1000, deadline=FAR)
        sequence += count
    (first,) = queues.take(1, queues.ready(0))
    assert queues.take(1, queues.ready(0)) == [], (
        "one batch at a time to a leader that has not responded yet"
    )
    assert queues.handle_result(first, ProduceReaction.SUCCEED) is None
    taken = []
    while more := queues.take(1, queues.ready(0)):
        taken += more
    return queues, taken


def is_done(queues: BatchQueues) -> bool:
    return queues.is_empty and queues.unacknowledged_bytes == 0


def sent(queues: BatchQueues, broker_id: int = 1) -> list[int]:
    """Take one request and return the first sequences of its batches."""
    return [batch.encoded.base_sequence for batch in queues.take(broker_id, queues.ready(0))]


def test_at_most_five_batches_are_in_flight() -> None:
    _, batches = queues_with(1, 1, 1, 1, 1, 1, 1)
    assert len(batches) == 5


def test_failed_batches_wait_for_those_in_flight_and_are_resent_one_by_one() -> None:
    queues, (one, two, three) = queues_with(1, 1, 1)
    queues.handle_result(one, ProduceReaction.RETRY)
    assert sent(queues) == []
    queues.handle_result(two, ProduceReaction.OUT_OF_ORDER)
    assert sent(queues) == []
    queues.handle_result(three, ProduceReaction.OUT_OF_ORDER)
    assert sent(queues) == [1]
    assert sent(queues) == []
    queues.handle_result(one, ProduceReaction.SUCCEED)
    assert sent(queues) + sent(queues) == [2, 3]


def test_new_leader_gets_no_batch_before_the_old_leader_responded() -> None:
    queues, (one,) = queues_with(1)
    queues.add(TOPIC, encoded(0, 2, [2]), bytes_max=1, deadline=FAR)
    queues.add(TOPIC, encoded(0, 3, [3]), bytes_max=1, deadline=FAR)
    assert sent(queues, broker_id=2) == []
    queues.handle_result(one, ProduceReaction.SUCCEED)
    assert sent(queues, broker_id=2) == [2]
    assert sent(queues, broker_id=2) == [], "broker 2 has not acknowledged a batch yet"


def test_recreated_topic_gets_one_batch_at_a_time() -> None:
    queues, batches = queues_with(*[1] * 9)
    queues.reset_window("another")
    queues.handle_result(batches[0], ProduceReaction.SUCCEED)
    assert sent(queues) == [6]
    queues, batches = queues_with(*[1] * 9)
    queues.reset_window(TOPIC)
    for batch in batches:
        assert sent(queues) == []
        queues.handle_result(batch, ProduceReaction.SUCCEED)
    assert sent(queues) == [6]
    assert sent(queues) == []


def test_paused_partition_resumes() -> None:
    queues, (one,) = queues_with(1)
    queues.handle_result(one, ProduceReaction.RETRY)
    for _ in range(5):
        queues.back_off(one.topic_partition, 0.0, lambda failures: 5.0 * failures)
    assert queues.ready(4.9) == [], "five batches that are lost together are one failure"
    assert queues.next_retry_at(0.0) == 5.0
    assert queues.ready(5.0) == [one.topic_partition]
    queues.take(1, queues.ready(5.0))
    queues.handle_result(one, ProduceReaction.RETRY)
    queues.back_off(one.topic_partition, 5.0, lambda failures: 5.0 * failures)
    assert queues.next_retry_at(6.0) == 10.0, "the batch failed twice in a row"


def test_out_of_order_without_earlier_batch_fails() -> None:
    queues, (one, two) = queues_with(1, 1)
    assert queues.handle_result(one, ProduceReaction.SUCCEED) is None
    assert queues.handle_result(two, ProduceReaction.OUT_OF_ORDER) is two


def test_out_of_order_after_retry_fails_if_the_later_batch_was_not_appended() -> None:
    queues, (one, two) = queues_with(1, 1)
    queues.handle_result(one, ProduceReaction.RETRY)
    queues.handle_result(two, ProduceReaction.RETRY)
    assert sent(queues) == [1]
    assert queues.handle_result(one, ProduceReaction.OUT_OF_ORDER) is None, "the next batch decides"
    assert sent(queues) == [2]
    assert queues.handle_result(two, ProduceReaction.OUT_OF_ORDER) is one


def test_out_of_order_after_retry_is_acknowledged_if_the_later_batch_was_appended() -> None:
    """After a restart the broker's producer state contains only the second batch."""
    queues, (one, two) = queues_with(1, 1)
    queues.handle_result(one, ProduceReaction.RETRY)
    queues.handle_result(two, ProduceReaction.RETRY)
    assert sent(queues) == [1]
    assert queues.handle_result(one, ProduceReaction.OUT_OF_ORDER) is None
    assert not is_done(queues)
    assert queues.oldest() is one
    assert sent(queues) == [2]
    assert queues.handle_result(two, ProduceReaction.SUCCEED) is None
    assert is_done(queues)


@pytest.mark.parametrize("reaction", [ProduceReaction.TOO_LARGE, ProduceReaction.FAIL])
def test_batch_that_cannot_be_sent_fails(reaction: ProduceReaction) -> None:
    queues, (one, two) = queues_with(1, 1)
    assert queues.handle_result(one, reaction) is one
    assert one.topic_partition == two.topic_partition


def test_too_large_batch_is_split_and_resent_before_later_batches() -> None:
    queues, (large, behind) = queues_with(4, 1)
    queues.handle_result(large, ProduceReaction.TOO_LARGE)
    queues.handle_result(behind, ProduceReaction.OUT_OF_ORDER)
    found = []
    while taken := queues.take(1, queues.ready(0)):
        found += [
            (one.encoded.base_sequence, one.encoded.record_count, one.first_record) for one in taken
        ]
        for one in taken:
            queues.handle_result(one, ProduceReaction.SUCCEED)
    assert found == [(1, 2, 1), (3, 2, 3), (5, 1, 5)]
    assert queues.is_empty
    assert queues.unacknowledged_bytes == 0


def test_request_size_is_bounded_and_partitions_take_turns() -> None:
    queues = BatchQueues(split=halves, request_bytes_max=500)
    for partition in range(6):
        for sequence in range(2):
            large = replace(encoded(partition, sequence, [1]), data=memoryview(bytes(150)))
            queues.add(TOPIC, large, bytes_max=1, deadline=FAR)
    turns = []
    for _ in range(4):
        taken = queues.take(1, queues.ready(0))
        turns.append([batch.topic_partition.partition for batch in taken])
        for batch in taken:
            queues.handle_result(batch, ProduceReaction.SUCCEED)
    assert turns == [[0, 1], [2, 3], [4, 5], [0, 1]]


def test_single_batch_is_sent_whatever_its_size() -> None:
    queues = BatchQueues(split=halves, request_bytes_max=10)
    queues.add(TOPIC, encoded(0, 0, list(range(100))), bytes_max=1, deadline=FAR)
    assert len(queues.take(1, queues.ready(0))) == 1


def test_oldest_returns_the_batch_with_the_earliest_deadline() -> None:
    queues = BatchQueues(split=halves)
    assert queues.oldest() is None
    for partition, deadline in ((0, 7.0), (1, 5.0), (0, 9.0)):
        queues.add(TOPIC, encoded(partition, 0, [1]), bytes_max=1, deadline=deadline)
    oldest = queues.oldest()
    assert oldest is not None
    assert oldest.deadline == 5.0
    (batch, _) = queues.take(1, queues.ready(0))
    queues.handle_result(batch, ProduceReaction.RETRY)
    again = queues.oldest()
    assert again is not None
    assert again.deadline == 5.0


@pytest.mark.parametrize(
    ("code", "reaction"),
    [
        (ErrorCode.none, ProduceReaction.SUCCEED),
        (ErrorCode.duplicate_sequence_number, ProduceReaction.SUCCEED),
        (ErrorCode.out_of_order_sequence_number, ProduceReaction.OUT_OF_ORDER),
        (ErrorCode.message_too_large, ProduceReaction.TOO_LARGE),
        (ErrorCode.record_list_too_large, ProduceReaction.TOO_LARGE),
        *[
            (code, ProduceReaction.RETRY)
            for code in (
                ErrorCode.corrupt_message,
                ErrorCode.kafka_storage_error,
                ErrorCode.leader_not_available,
                ErrorCode.network_exception,
                ErrorCode.not_enough_replicas,
                ErrorCode.not_enough_replicas_after_append,
                ErrorCode.not_leader_or_follower,
                ErrorCode.request_timed_out,
                ErrorCode.unknown_topic_id,
                ErrorCode.unknown_topic_or_partition,
            )
        ],
        *[
            (code, ProduceReaction.FAIL)
            for code in (
                ErrorCode.invalid_producer_epoch,
                ErrorCode.invalid_record,
                ErrorCode.invalid_timestamp,
                ErrorCode.producer_fenced,
                ErrorCode.topic_authorization_failed,
                ErrorCode.unknown_producer_id,
                ErrorCode.unsupported_compression_type,
            )
        ],
    ],
)
def test_reaction_to_error_code(code: ErrorCode, reaction: ProduceReaction) -> None:
    assert PRODUCE_REACTIONS[code] is reaction
