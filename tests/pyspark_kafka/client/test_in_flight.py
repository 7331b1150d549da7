"""The core of the idempotent producer against brokers that check sequences as Kafka's do."""

from __future__ import annotations

import struct
from collections import defaultdict, deque
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from pyspark_kafka.client.native.in_flight import VERDICTS, Batch, InFlight, Verdict
from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.records import EncodedBatch
from pyspark_kafka.records.encoding import next_sequence

TOPIC = "t"
FAR = 1e9
REMEMBERED = 5
NUMBER = struct.Struct(">i")


def encoded(partition: int, sequence: int, numbers: list[int]) -> EncodedBatch:
    """A batch whose data is its records' numbers."""
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
    """One partition: its records, and what its leader knows of the producer."""

    leader: int
    records: list[int] = field(default_factory=list)
    expected: int | None = None
    remembered: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=REMEMBERED))

    def append(self, batch: EncodedBatch, *, broker_id: int, records_max: int) -> ErrorCode:
        """As `UnifiedLog.append` and `ProducerAppendInfo.checkSequence`."""
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
        """A snapshot holds a producer's last batch alone."""
        self.remembered = deque([*self.remembered][-1:], maxlen=REMEMBERED)

    def forget(self) -> None:
        """The producer has expired (`producer.id.expiration.ms`)."""
        self.expected = None
        self.remembered.clear()


class World:
    """A producer, its requests on their way, and what brokers make of them."""

    def __init__(self, *, in_flight_max: int, records_max: int, first_sequence: int) -> None:
        self.core = InFlight(split=halves, in_flight_max=in_flight_max, request_bytes_max=60)
        self.in_flight_max = in_flight_max
        self.records_max = records_max
        self.logs = [Log(leader=0), Log(leader=1)]
        self.written: dict[int, list[int]] = defaultdict(list)
        self.sequences = [first_sequence, first_sequence]
        self.requests: dict[int, deque[list[Batch]]] = defaultdict(deque)
        self.zombies: dict[int, deque[EncodedBatch]] = defaultdict(deque)
        self.now = 0.0

    def add(self, partition: int, record_count: int) -> None:
        start = len(self.written[partition])
        numbers = list(range(start, start + record_count))
        self.written[partition] += numbers
        batch = encoded(partition, self.sequences[partition], numbers)
        self.sequences[partition] = next_sequence(batch.base_sequence, record_count)
        self.core.add(TOPIC, batch, bytes_max=1000, deadline=FAR)

    def send(self, stale_leader: int | None = None) -> None:
        """As much as may be sent; the producer may take another broker for the leader."""
        led: dict[int, list[TopicPartition]] = defaultdict(list)
        for partition in self.core.ready(self.now):
            leader = self.logs[partition.partition].leader
            led[leader if stale_leader is None else stale_leader].append(partition)
        for broker_id, partitions in led.items():
            while len(self.requests[broker_id]) < self.in_flight_max:
                batches = self.core.take(broker_id, partitions)
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

    def answer(self, broker_id: int, *, error: ErrorCode | None = None) -> None:
        """The answer to the oldest request; with `error`, that in place of success."""
        if not self.requests[broker_id]:
            return
        for batch in self.requests[broker_id].popleft():
            code = ErrorCode.none if error is None else error
            if code not in REFUSALS:
                appended = self.append(broker_id, batch.encoded)
                code = code if appended is ErrorCode.none else appended
            self.take(batch, VERDICTS[code])

    def take(self, batch: Batch, verdict: Verdict) -> None:
        assert self.core.answered(batch, verdict) is None, "no record was lost"
        if verdict is Verdict.AGAIN:
            self.core.pause(batch.topic_partition, lambda failures: self.now + failures)

    def lose(self, broker_id: int, served: int) -> None:
        """The connection ends; so many requests were served, and others may be later."""
        requests, self.requests[broker_id] = self.requests[broker_id], deque()
        for index, batches in enumerate(requests):
            for batch in batches:
                if index < served:
                    self.append(broker_id, batch.encoded)
                else:
                    self.zombies[broker_id].append(batch.encoded)
        for batches in requests:
            for batch in batches:
                self.take(batch, Verdict.AGAIN)

    def serve_zombies(self, broker_id: int, count: int) -> None:
        while count and self.zombies[broker_id]:
            self.append(broker_id, self.zombies[broker_id].popleft())
            count -= 1

    def forget(self, partition: int) -> None:
        """A producer expires when it has been idle for long, and nothing of it is on its way."""
        if TopicPartition(TOPIC, partition) not in self.core.open_partitions():
            self.logs[partition].forget()
            for broker_id, batches in self.zombies.items():
                left = [batch for batch in batches if batch.partition != partition]
                self.zombies[broker_id] = deque(left)

    def step(self, name: str, target: int, argument: int) -> None:
        """One of `STEPS`."""
        match name:
            case "add":
                self.add(target, argument)
            case "send":
                self.now += argument
                self.send(target)
            case "answer":
                for _ in range(argument):
                    self.answer(target)
            case "error":
                self.answer(target, error=ErrorCode(argument))
            case "lose":
                self.lose(target, argument)
            case "zombies":
                self.serve_zombies(target, argument)
            case "move":
                self.logs[target].leader = argument
            case "restart":
                self.logs[target].restart()
            case "forget":
                self.forget(target)

    def finish(self) -> None:
        """Everything goes well from now on, and is confirmed soon."""
        for _ in range(500):
            if self.core.is_empty:
                return
            self.now += 100
            self.send()
            for broker_id in list(self.requests):
                self.answer(broker_id)
        raise AssertionError("the producer does not get on")


REFUSALS = (ErrorCode.not_enough_replicas, ErrorCode.kafka_storage_error)
"""With these nothing is appended."""
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
    st.tuples(st.just("answer"), BROKERS, st.integers(1, 4)),
    st.tuples(st.just("error"), BROKERS, ERRORS),
    st.tuples(st.just("lose"), BROKERS, st.integers(0, 5)),
    st.tuples(st.just("zombies"), BROKERS, st.integers(1, 5)),
    st.tuples(st.just("move"), BROKERS, BROKERS),
    st.tuples(st.just("restart"), BROKERS, st.just(0)),
    st.tuples(st.just("forget"), BROKERS, st.just(0)),
)


FORGOTTEN_WHILE_IDLE = [
    *[("add", 0, 1), ("send", None, 0), ("answer", 0, 1), ("forget", 0, 0)],
    *[("add", 0, 1), ("add", 0, 1), ("send", None, 0)],
    ("error", 0, ErrorCode.not_enough_replicas),
    ("answer", 0, 1),
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
    world = World(
        in_flight_max=in_flight_max, records_max=records_max, first_sequence=first_sequence
    )
    for name, target, argument in steps:
        world.step(name, target, argument)
    world.finish()
    for broker_id in (0, 1):
        world.serve_zombies(broker_id, 1000)
    for partition, log in enumerate(world.logs):
        assert log.records == world.written[partition]
    assert world.core.held_bytes == 0


# --- single answers ---


def core_with(*counts: int, in_flight_max: int = 5) -> tuple[InFlight, list[Batch]]:
    """A core that has had a first success, and these batches in flight to broker 1."""
    core = InFlight(split=halves, in_flight_max=in_flight_max)
    sequence = 0
    for count in (1, *counts):
        batch = encoded(0, sequence, list(range(sequence, sequence + count)))
        core.add(TOPIC, batch, bytes_max=1000, deadline=FAR)
        sequence += count
    (first,) = core.take(1, core.ready(0))
    assert core.take(1, core.ready(0)) == [], "a leader that never answered has one at a time"
    assert core.answered(first, Verdict.CONFIRMED) is None
    taken = []
    while more := core.take(1, core.ready(0)):
        taken += more
    return core, taken


def is_done(core: InFlight) -> bool:
    return core.is_empty and core.held_bytes == 0


def sent(core: InFlight, broker_id: int = 1) -> list[int]:
    """The sequences of what may be sent now."""
    return [batch.encoded.base_sequence for batch in core.take(broker_id, core.ready(0))]


def test_five_are_in_flight_and_no_more() -> None:
    _, batches = core_with(1, 1, 1, 1, 1, 1, 1)
    assert len(batches) == 5


def test_what_failed_waits_for_what_is_in_flight_and_goes_first_one_by_one() -> None:
    core, (one, two, three) = core_with(1, 1, 1)
    core.answered(one, Verdict.AGAIN)
    assert sent(core) == []
    core.answered(two, Verdict.OUT_OF_ORDER)
    assert sent(core) == []
    core.answered(three, Verdict.OUT_OF_ORDER)
    assert sent(core) == [1]
    assert sent(core) == []
    core.answered(one, Verdict.CONFIRMED)
    assert sent(core) + sent(core) == [2, 3]


def test_a_new_leader_gets_nothing_before_the_old_one_has_answered() -> None:
    core, (one,) = core_with(1)
    core.add(TOPIC, encoded(0, 2, [2]), bytes_max=1, deadline=FAR)
    core.add(TOPIC, encoded(0, 3, [3]), bytes_max=1, deadline=FAR)
    assert sent(core, broker_id=2) == []
    core.answered(one, Verdict.CONFIRMED)
    assert sent(core, broker_id=2) == [2]
    assert sent(core, broker_id=2) == [], "it never confirmed anything"


def test_a_topic_created_anew_gets_one_at_a_time() -> None:
    core, batches = core_with(*[1] * 9)
    core.distrust("another")
    core.answered(batches[0], Verdict.CONFIRMED)
    assert sent(core) == [6]
    core, batches = core_with(*[1] * 9)
    core.distrust(TOPIC)
    for batch in batches:
        assert sent(core) == []
        core.answered(batch, Verdict.CONFIRMED)
    assert sent(core) == [6]
    assert sent(core) == []


def test_a_pause_ends() -> None:
    core, (one,) = core_with(1)
    core.answered(one, Verdict.AGAIN)
    core.pause(one.topic_partition, lambda failures: 5.0 * failures)
    assert core.ready(4.9) == []
    assert core.wakes_at(0.0) == 5.0
    assert core.ready(5.0) == [one.topic_partition]
    core.take(1, core.ready(5.0))
    core.answered(one, Verdict.AGAIN)
    core.pause(one.topic_partition, lambda failures: 5.0 * failures)
    assert core.wakes_at(6.0) == 10.0, "it failed twice in a row"


def test_out_of_order_with_nothing_open_before_it_is_a_loss() -> None:
    core, (one, two) = core_with(1, 1)
    assert core.answered(one, Verdict.CONFIRMED) is None
    assert core.answered(two, Verdict.OUT_OF_ORDER) is two


def test_out_of_order_again_is_a_loss_when_nothing_behind_it_was_appended() -> None:
    core, (one, two) = core_with(1, 1)
    core.answered(one, Verdict.AGAIN)
    core.answered(two, Verdict.AGAIN)
    assert sent(core) == [1]
    assert core.answered(one, Verdict.OUT_OF_ORDER) is None, "the next one may tell"
    assert sent(core) == [2]
    assert core.answered(two, Verdict.OUT_OF_ORDER) is one


def test_out_of_order_again_is_no_loss_when_what_is_behind_it_was_appended() -> None:
    """The broker was started anew: of the two that it had appended it remembers the last one."""
    core, (one, two) = core_with(1, 1)
    core.answered(one, Verdict.AGAIN)
    core.answered(two, Verdict.AGAIN)
    assert sent(core) == [1]
    assert core.answered(one, Verdict.OUT_OF_ORDER) is None
    assert not is_done(core)
    assert core.oldest() is one
    assert sent(core) == [2]
    assert core.answered(two, Verdict.CONFIRMED) is None
    assert is_done(core)


@pytest.mark.parametrize("verdict", [Verdict.TOO_LARGE, Verdict.FAILED])
def test_what_cannot_be_sent_has_failed(verdict: Verdict) -> None:
    core, (one, two) = core_with(1, 1)
    assert core.answered(one, verdict) is one
    assert one.topic_partition == two.topic_partition


def test_what_is_too_large_is_split_before_what_is_behind_it() -> None:
    core, (large, behind) = core_with(4, 1)
    core.answered(large, Verdict.TOO_LARGE)
    core.answered(behind, Verdict.OUT_OF_ORDER)
    found = []
    while taken := core.take(1, core.ready(0)):
        found += [
            (one.encoded.base_sequence, one.encoded.record_count, one.first_record) for one in taken
        ]
        for one in taken:
            core.answered(one, Verdict.CONFIRMED)
    assert found == [(1, 2, 1), (3, 2, 3), (5, 1, 5)]
    assert core.is_empty
    assert core.held_bytes == 0


def test_a_request_is_bounded_and_everybody_has_a_turn() -> None:
    core = InFlight(split=halves, request_bytes_max=500)
    for partition in range(6):
        for sequence in range(2):
            large = replace(encoded(partition, sequence, [1]), data=memoryview(bytes(150)))
            core.add(TOPIC, large, bytes_max=1, deadline=FAR)
    turns = []
    for _ in range(4):
        taken = core.take(1, core.ready(0))
        turns.append([batch.topic_partition.partition for batch in taken])
        for batch in taken:
            core.answered(batch, Verdict.CONFIRMED)
    assert turns == [[0, 1], [2, 3], [4, 5], [0, 1]]


def test_one_batch_is_sent_however_large_it_is() -> None:
    core = InFlight(split=halves, request_bytes_max=10)
    core.add(TOPIC, encoded(0, 0, list(range(100))), bytes_max=1, deadline=FAR)
    assert len(core.take(1, core.ready(0))) == 1


def test_the_oldest_batch() -> None:
    core = InFlight(split=halves)
    assert core.oldest() is None
    for partition, deadline in ((0, 7.0), (1, 5.0), (0, 9.0)):
        core.add(TOPIC, encoded(partition, 0, [1]), bytes_max=1, deadline=deadline)
    oldest = core.oldest()
    assert oldest is not None
    assert oldest.deadline == 5.0
    (batch, _) = core.take(1, core.ready(0))
    core.answered(batch, Verdict.AGAIN)
    again = core.oldest()
    assert again is not None
    assert again.deadline == 5.0


@pytest.mark.parametrize(
    ("code", "verdict"),
    [
        (ErrorCode.none, Verdict.CONFIRMED),
        (ErrorCode.duplicate_sequence_number, Verdict.CONFIRMED),
        (ErrorCode.out_of_order_sequence_number, Verdict.OUT_OF_ORDER),
        (ErrorCode.message_too_large, Verdict.TOO_LARGE),
        (ErrorCode.record_list_too_large, Verdict.TOO_LARGE),
        *[
            (code, Verdict.AGAIN)
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
            (code, Verdict.FAILED)
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
def test_what_codes_say(code: ErrorCode, verdict: Verdict) -> None:
    assert VERDICTS[code] is verdict
