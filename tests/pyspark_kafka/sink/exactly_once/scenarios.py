"""What can go wrong, each as a scenario that ends with a reader who sees each row once.

Purpose: the named cases of the protocol's promise; tests play them on several clusters, and
`test_mutations` on code that was broken on purpose. Invariant: a scenario raises, most often an
`AssertionError`, where the promise does not hold. What it must not know: which cluster serves,
unless it takes a `FakeWorld`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import pytest

from pyspark_kafka.client.base import TopicPartition
from pyspark_kafka.errors import (
    BatchNotCommitted,
    BrokerUnreachable,
    ExactlyOnceError,
    Fenced,
    OutcomeUnknown,
    PysparkKafkaError,
    ReplayMismatch,
    RowsLost,
    StaleBatch,
)
from pyspark_kafka.sink.exactly_once.decisions import BATCH_JOB
from pyspark_kafka.sink.exactly_once.messages import AlreadyCommitted, Empty, Prepared
from pyspark_kafka.sink.exactly_once.source_offsets import SourceOffsets
from tests.pyspark_kafka.sink.exactly_once.play import Batch, Killed, Rows, Run, World, at, kill
from tests.pyspark_kafka.sink.exactly_once.worlds import FakeWorld

Input = Sequence[Sequence[Rows]]
"""Of each batch the rows of each partition."""

INPUT: Input = (
    ([b"a0", b"a1"], [b"b0"]),
    ([b"c0"], []),
    ([], []),
    ([b"d0"], [b"e0", b"e1"]),
)
SHORT: Input = INPUT[:1]
MIDDLE: Input = (([b"a0", b"a1"], [b"b0"]), ([b"c0"], [b"d0"]))


def flat(batches: Iterable[Iterable[Rows]]) -> list[bytes]:
    return sorted(row for partitions in batches for rows in partitions for row in rows)


@dataclass
class Query:
    """A streaming query: its input, and its checkpoint, which all its runs share."""

    first: Run
    input: Input = INPUT
    completed: int = -1
    run_count: int = 1

    @classmethod
    def of(cls, world: World, input: Input = INPUT, **changes: object) -> Query:  # noqa: A002
        run = Run(world=world, topic=world.topic(), x=world.name())
        return cls(first=replace(run, **changes), input=input)  # type: ignore[arg-type]

    @property
    def world(self) -> World:
        return self.first.world

    def restarted(self) -> Run:
        self.run_count += 1
        return self.first.successor(f"run-{self.run_count}")

    def drive(self, run: Run) -> None:
        """From where the checkpoint stands to the end of the input."""
        for batch_id in range(self.completed + 1, len(self.input)):
            run.write(batch_id, *self.input[batch_id])
            self.completed = max(self.completed, batch_id)

    def drive_until_killed(self, run: Run, *, place: int) -> bool:
        """Whether it came to that."""
        with at(place, kill) as failpoints, suppress(Killed):
            self.drive(run)
        return failpoints.is_done

    def check(self) -> None:
        assert self.world.committed(self.first.topic) == flat(self.input)


# --- all goes well ---


def batches_are_seen_once(world: World) -> None:
    query = Query.of(world)
    for batch_id, partitions in enumerate(query.input):
        query.first.write(batch_id, *partitions)
        assert world.committed(query.first.topic) == flat(query.input[: batch_id + 1])


def what_is_prepared_is_not_seen_before_it_is_decided(world: World) -> None:
    query = Query.of(world)
    batch = query.first.begin(0)
    batch.task(0, [b"a"])
    with at("commit.decide.end_transactions.before", lambda: seen.append(_committed(query))):
        seen: list[list[bytes]] = []
        seen.append(_committed(query))
        batch.commit()
    assert seen == [[], []]
    assert _committed(query) == [b"a"]


def _committed(query: Query) -> list[bytes]:
    return query.world.committed(query.first.topic)


# --- processes end ---


def a_driver_killed_anywhere(world: World, *, every: int = 1, input: Input = INPUT) -> int:  # noqa: A002
    """The number of failpoints at which it was."""
    place = 0
    while True:
        world = world.fresh()
        query = Query.of(world, input)
        if not query.drive_until_killed(query.first, place=place):
            return place
        query.drive(query.restarted())
        _check_at(query, f"killed at failpoint {place}")
        place += every


def a_driver_killed_twice(world: World) -> int:
    """At any failpoint, and its successor at any of its own."""
    first, cases = 0, 0
    while True:
        second = 0
        while True:
            query = Query.of(world.fresh(), SHORT)
            if not query.drive_until_killed(query.first, place=first):
                return cases
            was_killed = query.drive_until_killed(query.restarted(), place=second)
            query.drive(query.restarted())
            _check_at(query, f"killed at failpoints {first} and {second}")
            cases += 1
            second += 7
            if not was_killed:
                break
        first += 1


def _check_at(query: Query, where: str) -> None:
    found, wanted = _committed(query), flat(query.input)
    assert found == wanted, f"{where}: {found} instead of {wanted}"


def replay_of_what_was_not_decided(world: World) -> None:
    query = Query.of(world, SHORT)
    batch = query.first.begin(0)
    batch.task(0, query.input[0][0])
    query.drive(query.restarted())
    query.check()


def replay_of_what_was_decided(world: World) -> None:
    """The rows are counted, and none is written."""
    query = Query.of(world, SHORT)
    query.drive(query.first)
    again = query.restarted().begin(0)
    messages = [again.task(number, rows) for number, rows in enumerate(query.input[0])]
    assert all(isinstance(message, AlreadyCommitted) for message in messages)
    again.commit()
    query.check()


def replay_of_what_was_decided_and_not_rolled_forward(world: World) -> None:
    query = Query.of(world, SHORT)
    with at("commit.roll_forward.before", kill), suppress(Killed):
        query.drive(query.first)
    assert _committed(query) == []
    again = query.restarted()
    again.begin(0)
    query.check()
    query.drive(again)
    query.check()


def replay_of_an_empty_batch(world: World) -> None:
    query = Query.of(world, ([], []))
    query.first.write(0, [], [])
    again = query.restarted().begin(0)
    assert isinstance(again.task(0, []), AlreadyCommitted)
    again.task(1, [b"new"])
    with pytest.raises(ReplayMismatch):
        again.commit()
    assert _committed(query) == []


# --- drivers wake up ---


def an_old_driver_wakes_up_anywhere(world: World, *, input: Input = MIDDLE, every: int = 1) -> int:  # noqa: A002
    """Its successor has written everything meanwhile."""
    place = 0
    while True:
        world = world.fresh()
        query = Query.of(world, input)
        new = query.restarted()
        with at(place, lambda: query.drive(new)) as failpoints, suppress(PysparkKafkaError):  # noqa: B023
            query.drive(query.first)
        if not failpoints.is_done:
            return place
        _check_at(query, f"the old driver slept at failpoint {place} ({failpoints.met[place]})")
        place += every


def an_old_driver_works_while_the_new_one_writes(world: World, *, every: int = 1) -> int:
    """It wakes up when its successor has planned and has prepared its tasks."""
    place = 0
    while True:
        world = world.fresh()
        query = Query.of(world, MIDDLE)
        begun: list[Batch] = []
        new = query.restarted()

        def begin() -> None:
            batch_id = query.completed + 1  # noqa: B023
            begun.append(new.begin(batch_id))  # noqa: B023
            for partition, rows in enumerate(query.input[batch_id]):  # noqa: B023
                begun[-1].task(partition, rows)  # noqa: B023

        with at(place, begin) as failpoints, suppress(PysparkKafkaError):
            query.drive(query.first)
        if not failpoints.is_done:
            return place
        try:
            begun[0].commit()
        except PysparkKafkaError:
            begun[0].abort()
        query.drive(query.restarted())
        _check_at(query, f"the old driver slept at failpoint {place} ({failpoints.met[place]})")
        place += every


def a_new_driver_is_not_harmed_by_an_old_one(world: World) -> None:
    """An old one that still rolls forward, marks and sweeps: the new one's batch succeeds."""
    for where in ("commit.roll_forward", "commit.mark", "commit.sweep"):
        for edge in ("before", "after"):
            query = Query.of(world, MIDDLE)
            begun: list[Batch] = []
            new = query.restarted()

            def begin() -> None:
                query.completed = 0  # noqa: B023
                begun.append(new.begin(1))  # noqa: B023
                for partition, rows in enumerate(query.input[1]):  # noqa: B023
                    begun[-1].task(partition, rows)  # noqa: B023

            with at(f"{where}.{edge}", begin), suppress(Fenced):
                query.first.write(0, *query.input[0])
            begun[0].commit()
            query.check()


def an_old_driver_that_sweeps_late(world: World) -> None:
    """It stalls in planning, between its list and its look at who owns X."""
    query = Query.of(world, SHORT)
    begun: list[Batch] = []

    def new_batch() -> None:
        begun.append(query.restarted().begin(0))
        for partition, rows in enumerate(query.input[0]):
            begun[-1].task(partition, rows)

    old = query.first
    with at("plan.sweep.before", new_batch), suppress(Fenced):
        old.begin(0)
    begun[0].commit()
    query.check()


def a_stale_driver_is_told(world: World) -> None:
    query = Query.of(world, MIDDLE)
    query.drive(query.first)
    batch = query.restarted().begin(0)
    with pytest.raises(StaleBatch, match=r"batch 0 .* is older than batch 1"):
        batch.task(0, query.input[0][0])
    query.check()


# --- tasks are tried again ---


def a_task_is_tried_again_after_it_has_prepared(world: World) -> None:
    query = Query.of(world, SHORT)
    batch = query.first.begin(0)
    batch.task(0, query.input[0][0])
    batch.task(0, query.input[0][0], attempt=1)
    batch.task(1, query.input[0][1])
    batch.commit()
    query.check()


def a_stage_is_tried_again(world: World) -> None:
    """Its attempts have the same numbers as the first ones', but for those of all tasks."""
    query = Query.of(world, SHORT)
    batch = query.first.begin(0)
    for _ in range(2):
        for partition, rows in enumerate(query.input[0]):
            batch.task(partition, rows)
    batch.commit()
    query.check()


def an_answer_of_a_fenced_attempt_is_not_taken(world: World) -> None:
    """Sixteen attempts later another one has the id of the first, whose answer arrives late."""
    query = Query.of(world, SHORT)
    batch = query.first.begin(0)
    first = batch.task(0, query.input[0][0], task_attempt_id=0)
    batch.task(1, query.input[0][1])
    batch.task(0, query.input[0][0], task_attempt_id=16)
    batch.messages[0] = first
    with pytest.raises(BatchNotCommitted, match="taken by another"):
        batch.commit()
    batch.abort()
    query.drive(query.first)
    query.check()


def a_late_attempt_of_an_earlier_batch(world: World) -> None:
    """It opens its transaction when the next batch has begun, or is over."""
    query = Query.of(world, MIDDLE)
    earlier = query.first.begin(0)
    for partition, rows in enumerate(query.input[0]):
        earlier.task(partition, rows)
    counting = dict(earlier.messages)
    earlier.commit()
    later = query.first.begin(1)
    earlier.task(0, query.input[0][0], attempt=1)
    for partition, rows in enumerate(query.input[1]):
        later.task(partition, rows)
    earlier.task(1, query.input[0][1], attempt=1)
    later.commit()
    earlier.task(1, query.input[0][1], attempt=2)
    assert counting.keys() == earlier.messages.keys()
    query.first.write(2, [b"z"])
    assert _committed(query) == sorted([*flat(query.input), b"z"])


def a_task_that_fails_leaves_nothing(world: World) -> None:
    query = Query.of(world, SHORT)
    batch = query.first.begin(0)

    def fail() -> None:
        raise BrokerUnreachable("the network")

    for where in ("task.produce.before", "task.produce.flush.before", "task.produce.after"):
        with at(where, fail), pytest.raises(BrokerUnreachable):
            batch.task(0, query.input[0][0])
    for partition, rows in enumerate(query.input[0]):
        batch.task(partition, rows, attempt=1)
    batch.commit()
    query.check()


def a_failed_batch_is_not_seen(world: World) -> None:
    """One task finishes and another does not."""
    query = Query.of(world, SHORT)
    batch = query.first.begin(0)
    prepared = batch.task(0, query.input[0][0])
    with pytest.raises(BatchNotCommitted, match="partitions 1 have not said"):
        _commit(batch, [prepared, None])
    batch.abort([prepared, None])
    assert _committed(query) == []
    query.drive(query.restarted())
    query.check()


def _commit(batch: Batch, messages: Sequence[object]) -> None:
    from pyspark_kafka.sink.exactly_once.commit import commit  # noqa: PLC0415

    with batch.run.process("commit") as client:
        commit(
            client,
            batch.run.options,
            messages,  # type: ignore[arg-type]
            offsets=None,
            now_ms=batch.run.world.now_ms,
        )


# --- more than one query ---


def two_queries_with_one_x(world: World) -> None:
    """Each fences the other, loudly, and what was decided of either stays."""
    one = Run(world=world, topic=world.topic(), x=world.name(), query_id="one")
    two = one.successor(query_id="two")
    first = one.begin(0)
    first.task(0, [b"one"])
    second = two.begin(0)
    second.task(0, [b"two"])
    with pytest.raises((Fenced, BatchNotCommitted)):
        first.commit()
    first.abort()
    second.commit()
    assert world.committed(one.topic) == [b"two"]
    one.write(0, [b"one"])
    assert world.committed(one.topic) == [b"one", b"two"]
    two.write(1, [b"more"])
    assert world.committed(one.topic) == [b"more", b"one", b"two"]
    assert isinstance(one.begin(0).task(0, [b"one"]), AlreadyCommitted)


def a_checkpoint_is_deleted(world: World) -> None:
    """It is another query then, whose batches are its own: nothing of it is skipped."""
    query = Query.of(world, MIDDLE)
    query.drive(query.first)
    other = query.restarted().successor("run-9", query_id="other")
    other.write(0, [b"x"])
    assert _committed(query) == sorted([*flat(query.input), b"x"])


def a_checkpoint_is_copied_and_run_twice(world: World) -> None:
    """Both go on with the same batch of the same query: one writes it, and the other is told."""
    query = Query.of(world, MIDDLE)
    query.first.write(0, *query.input[0])
    one, two = query.restarted(), query.restarted()
    first, second = one.begin(1), two.begin(1)
    for partition, rows in enumerate(query.input[1]):
        first.task(partition, rows)
        second.task(partition, rows)
    with pytest.raises(ExactlyOnceError):
        first.commit()
    first.abort()
    second.commit()
    query.check()
    one.write(1, *query.input[1])
    query.check()


def another_query_holds_the_commit_topic(world: World) -> None:
    """Its transaction is open there: decisions behind it count nevertheless."""
    other = Run(world=world, topic=world.topic(), x=world.name())
    query = Query.of(world, SHORT)
    stalled = other.begin(0)
    stalled.task(0, [b"other"])

    def meanwhile() -> None:
        query.drive(query.first)
        query.restarted().write(0, *query.input[0])

    with at("commit.decide.end_transactions.before", meanwhile):
        stalled.commit()
    query.check()
    assert world.committed(other.topic) == [b"other"]


# --- answers are late, or lost ---


def abort_after_a_commit_that_has_decided(world: World) -> None:
    def fail() -> None:
        raise BrokerUnreachable("the network")

    for where in (
        "commit.decide.after",
        "commit.roll_forward.before",
        "commit.roll_forward.after",
        "commit.sweep.after",
    ):
        query = Query.of(world, SHORT)
        with at(where, fail), pytest.raises(BrokerUnreachable):
            query.drive(query.first)
        query.restarted().begin(0)
        query.check()
        query.drive(query.restarted())
        query.check()


def the_answer_to_the_decision_is_lost(world: FakeWorld) -> None:
    """It was done: nobody may take the batch for undecided."""
    query = Query.of(world, SHORT)
    batch = _with_fault_at_decision(query, "lose")
    with pytest.raises(OutcomeUnknown, match="the brokers answered nothing"):
        batch.commit()
    batch.abort()
    query.drive(query.restarted())
    query.check()


def the_decision_is_lost(world: FakeWorld) -> None:
    """It was not done: nobody may take the batch for decided."""
    query = Query.of(world, SHORT)
    batch = _with_fault_at_decision(query, "fail")
    with pytest.raises(OutcomeUnknown):
        batch.commit()
    batch.abort()
    assert _committed(query) == []
    query.drive(query.restarted())
    query.check()


def _with_fault_at_decision(query: Query, how: str) -> Batch:
    """A prepared batch; the EndTxn of X fails, done or not."""
    batch = query.first.begin(0)
    for partition, rows in enumerate(query.input[0]):
        batch.task(partition, rows)
    _fault_of_decisions(query, how)
    return batch


def _fault_of_decisions(query: Query, how: str) -> None:
    world = query.world
    assert isinstance(world, FakeWorld)
    original = world.cluster.client

    def client(name: str = "client") -> object:
        opened = original(name)
        if name.endswith("-commit"):
            world.cluster.client = original  # type: ignore[method-assign]
            if how == "lose":
                opened.lose("end_transactions")
            else:
                opened.fail("end_transactions", BrokerUnreachable("not sent"))
        return opened

    world.cluster.client = client  # type: ignore[method-assign, assignment]


def a_decision_is_delivered_late(world: FakeWorld) -> int:
    """At every failpoint of what comes after: of abort(), and of the next start."""
    place = 0
    while True:
        world = world.fresh()
        query = Query.of(world, SHORT)
        batch = _with_fault_at_decision(query, "fail")
        with pytest.raises(OutcomeUnknown):
            batch.commit()
        late = _end_of(batch)
        with at(place, late) as failpoints:
            batch.abort()
            query.drive(query.restarted())
        if not failpoints.is_done:
            return place
        _check_at(query, f"delivered at failpoint {place} ({failpoints.met[place]})")
        place += 1


def _end_of(batch: Batch) -> Callable[[], object]:
    from pyspark_kafka.client.transactions import EndTransaction  # noqa: PLC0415

    world = batch.run.world
    assert isinstance(world, FakeWorld)
    end = EndTransaction(
        transactional_id=batch.run.x,
        producer=batch.plan.owner,
        is_commit=True,
        version=batch.plan.version,
    )
    return lambda: world.cluster.end(end)


def an_answer_that_may_mean_anything(world: FakeWorld) -> None:
    """Whatever but NONE is answered to the decision: nobody concludes anything from it."""
    from kio.schema.errors import ErrorCode  # noqa: PLC0415

    for code in (
        ErrorCode.producer_fenced,
        ErrorCode.invalid_producer_epoch,
        ErrorCode.invalid_txn_state,
        ErrorCode.invalid_producer_id_mapping,
        ErrorCode.transactional_id_not_found,
        None,
    ):
        query = Query.of(world, SHORT)
        batch = query.first.begin(0)
        for partition, rows in enumerate(query.input[0]):
            batch.task(partition, rows)
        world.cluster.answer(query.first.x, code)
        with pytest.raises(OutcomeUnknown):
            batch.commit()
        batch.abort()
        assert _committed(query) == []
        query.drive(query.restarted())
        query.check()


def markers_are_late(world: FakeWorld) -> None:
    """What is decided is committed, although no reader sees it yet."""
    query = Query.of(world, SHORT)
    batch = query.first.begin(0)
    for partition, rows in enumerate(query.input[0]):
        batch.task(partition, rows)
    world.cluster.holds_markers = True
    with suppress(PysparkKafkaError):
        batch.commit()
    batch.abort()
    world.cluster.holds_markers = False
    world.cluster.write_markers()
    query.drive(query.restarted())
    query.check()


def a_coordinator_is_on_the_move(world: FakeWorld) -> None:
    """A list may miss what is open; the next one finds it."""
    query = Query.of(world, SHORT)
    batch = query.first.begin(0)
    left = batch.task(0, query.input[0][0])
    assert isinstance(left, Prepared)
    world.cluster.hidden.add(left.entry.transactional_id)
    new = query.restarted()
    second = new.begin(0)
    for partition, rows in enumerate(query.input[0]):
        second.task(partition, rows)
    second.commit()
    world.cluster.hidden.clear()
    new.write(1, [b"z"])
    assert world.committed(query.first.topic) == sorted([*flat(query.input), b"z"])


# --- transactions time out ---


def a_prepared_transaction_times_out_before_the_decision(world: FakeWorld) -> None:
    query = Query.of(world, SHORT)
    batch = query.first.begin(0)
    batch.task(0, query.input[0][0])
    world.cluster.advance(query.first.timeout_ms + 1)
    batch.task(1, query.input[0][1])
    with pytest.raises(BatchNotCommitted, match=r"/0/0-0' \(partition 0, 2 rows\)"):
        batch.commit()
    batch.abort()
    query.drive(query.restarted())
    query.check()


def a_batch_close_to_its_timeout_is_not_begun(world: FakeWorld) -> None:
    query = Query.of(world, SHORT)
    batch = query.first.begin(0)
    for partition, rows in enumerate(query.input[0]):
        batch.task(partition, rows)
    world.cluster.advance(query.first.timeout_ms - 59_000)
    with pytest.raises(BatchNotCommitted, match=r"will time out in 59000 ms.*transactionTimeout"):
        batch.commit()
    batch.abort()
    query.drive(query.restarted())
    query.check()


def decided_rows_are_lost_and_written_again(world: FakeWorld) -> None:
    """Between the last look and the commit of the tasks' transactions; their rows are named."""
    query = Query.of(world, SHORT)
    batch = query.first.begin(0)
    batch.task(0, query.input[0][0])
    world.cluster.advance(100_000)
    batch.task(1, query.input[0][1])
    with (
        at("commit.roll_forward.before", lambda: world.cluster.advance(500_001)),
        pytest.raises(RowsLost, match=r"2 rows of partition 0 \(x-\d+/run-1/0/0-0, last offsets"),
    ):
        batch.commit()
    batch.abort()
    assert _committed(query) == [b"b0"]
    again = query.restarted().begin(0)
    assert isinstance(again.task(0, query.input[0][0]), Prepared)
    assert isinstance(again.task(1, query.input[0][1]), AlreadyCommitted)
    again.commit()
    query.check()
    query.completed = 0
    query.restarted().write(1, [b"z"])
    assert _committed(query) == [*flat(query.input), b"z"]


def lost_rows_are_found_by_the_next_start(world: FakeWorld) -> None:
    """The driver died between decision and roll-forward, for longer than transactions live."""
    query = Query.of(world, SHORT)
    with at("commit.roll_forward.before", kill), suppress(Killed):
        query.drive(query.first)
    world.cluster.advance(query.first.timeout_ms + 1)
    query.drive(query.restarted())
    query.check()
    query.restarted().write(0, *query.input[0])
    query.check()


def a_batch_behind_lost_rows_is_refused(world: FakeWorld) -> None:
    query = Query.of(world, SHORT)
    with at("commit.roll_forward.before", kill), suppress(Killed):
        query.drive(query.first)
    world.cluster.advance(query.first.timeout_ms + 1)
    batch = query.restarted().begin(1)
    with pytest.raises(
        RowsLost, match="batch 0 before it has lost the rows of its partitions 0, 1"
    ):
        batch.task(0, [b"next"])
    query.drive(query.restarted())
    query.check()


def lost_rows_that_come_again_as_others(world: FakeWorld) -> None:
    query = Query.of(world, SHORT)
    with at("commit.roll_forward.before", kill), suppress(Killed):
        query.drive(query.first)
    world.cluster.advance(query.first.timeout_ms + 1)
    batch = query.restarted().begin(0)
    for rows in ([b"a0", b"a2"], [b"a0"], []):
        with pytest.raises(ReplayMismatch, match=r"partition 0 .* has lost its 2 rows"):
            batch.task(0, rows)
    assert _committed(query) == []


def lost_rows_that_nobody_writes_again(world: FakeWorld) -> None:
    """The replay has fewer partitions than the batch had."""
    query = Query.of(world, ((SHORT[0][0], []),))
    query.first.write(0, [], SHORT[0][0])
    query.first.write(1, [b"y"], [b"z"])
    with at("commit.roll_forward.before", kill), suppress(Killed):
        query.first.write(2, [b"a"], [b"b"])
    world.cluster.advance(query.first.timeout_ms + 1)
    batch = query.restarted().begin(2)
    batch.task(0, [b"a"])
    with pytest.raises((RowsLost, ReplayMismatch)):
        batch.commit()


def a_supplement_keeps_what_survived(world: FakeWorld) -> None:
    """Lost once more: what the first supplement wrote, and nothing else, is written again."""
    query = Query.of(world, (([b"a"], [b"b"], [b"c"]),))
    batch = query.first.begin(0)
    batch.task(0, [b"a"])
    world.cluster.advance(200_000)
    batch.task(1, [b"b"])
    world.cluster.advance(200_000)
    batch.task(2, [b"c"])
    with (
        at("commit.roll_forward.before", lambda: world.cluster.advance(200_001)),
        pytest.raises(RowsLost),
    ):
        batch.commit()
    assert _committed(query) == [b"b", b"c"]
    again = query.restarted()
    with at("commit.roll_forward.before", kill), suppress(Killed):
        again.write(0, [b"a"], [b"b"], [b"c"])
    world.cluster.advance(query.first.timeout_ms + 1)
    third = query.restarted().begin(0)
    kinds = [type(third.task(n, rows)) for n, rows in enumerate(query.input[0])]
    assert kinds == [Prepared, AlreadyCommitted, AlreadyCommitted]
    third.commit()
    query.check()
    fourth = query.restarted().begin(0)
    kinds = [type(fourth.task(n, rows)) for n, rows in enumerate(query.input[0])]
    assert kinds == [AlreadyCommitted] * 3


# --- replays are compared ---


def a_replay_with_other_rows_is_told(world: World) -> None:
    for rows in ([b"a0", b"a2"], [b"a0"], [b"a0", b"a1", b"a1"], []):
        query = Query.of(world, SHORT)
        query.drive(query.first)
        with pytest.raises(ReplayMismatch, match="its replay differs"):
            query.restarted().write(0, rows, query.input[0][1])
        query.check()
        lenient = query.restarted().successor(fails_on_mismatch=False)
        lenient.write(0, rows, query.input[0][1])
        query.check()


def a_replay_in_other_partitions_is_the_same(world: World) -> None:
    query = Query.of(world, SHORT)
    query.drive(query.first)
    query.restarted().write(0, [b"b0"], [b"a1"], [b"a0"], [])
    query.check()


def a_replay_from_other_offsets_is_told(world: World) -> None:
    query = Query.of(world, SHORT)
    query.first.write(0, *query.input[0], offsets=SourceOffsets(hash="one", offsets={}))
    query.restarted().write(0, *query.input[0], offsets=SourceOffsets(hash="one", offsets={}))
    query.restarted().write(0, *query.input[0])
    with pytest.raises(ReplayMismatch, match="offsets in the checkpoint are others"):
        query.restarted().write(0, *query.input[0], offsets=SourceOffsets(hash="two", offsets={}))
    query.check()


# --- batch jobs ---


def jobs_with_a_batch_id(world: World) -> None:
    """The same again is skipped, a lower one refused, a gap is nothing."""
    x, topic = world.name(), world.topic()
    tokens = iter(range(100))

    def job(batch_id: int, rows: Rows) -> None:
        token = f"job-{next(tokens)}"
        run = Run(world=world, topic=topic, x=x, query_id=BATCH_JOB, run=token, batch_id=batch_id)
        run.write(batch_id, rows)

    job(5, [b"a"])
    job(5, [b"a"])
    assert world.committed(topic) == [b"a"]
    with pytest.raises(ReplayMismatch, match="a second write of foreachBatch"):
        job(5, [b"b"])
    with pytest.raises(StaleBatch, match="'batchId' is 4, and batch 5"):
        job(4, [b"b"])
    job(9, [b"b"])
    job(9, [b"b"])
    assert world.committed(topic) == [b"a", b"b"]


def jobs_without_a_batch_id(world: World) -> None:
    """Each is written, whatever was written before."""
    x, topic = world.name(), world.topic()
    for number, rows in enumerate(([b"a"], [b"a"], [])):
        job = Run(world=world, topic=topic, x=x, query_id=f"job-{number}", run=f"job-{number}")
        job.write(None, rows)
    assert world.committed(topic) == [b"a", b"a"]


def a_task_without_rows_opens_nothing(world: World) -> None:
    query = Query.of(world, SHORT)
    batch = query.first.begin(0)
    with at() as failpoints:
        assert isinstance(batch.task(0, []), Empty)
    assert not [name for name in failpoints.met if name.startswith(("task.init", "task.produce"))]


# --- offsets of the sources ---


def offsets_are_committed_with_the_rows(world: World) -> None:
    """With the decision, and not without it; also those of a batch without rows."""
    group, source = world.name(), TopicPartition(world.topic(), 0)
    query = Query.of(world, group_id=group)

    def offsets(end: int) -> SourceOffsets:
        return SourceOffsets(hash=str(end), offsets={source: end})

    query.first.write(0, [b"a"], offsets=offsets(10))
    assert world.group_offset(group, source) == 10
    with at("commit.decide.end_transactions.before", kill), suppress(Killed):
        query.first.write(1, [b"b"], offsets=offsets(20))
    again = query.restarted()
    batch = again.begin(1)
    assert world.group_offset(group, source) == 10
    batch.play([b"b"], offsets=offsets(20))
    assert world.group_offset(group, source) == 20
    again.write(2, [], [], offsets=offsets(30))
    assert world.group_offset(group, source) == 30
    assert world.committed(query.first.topic) == [b"a", b"b"]
