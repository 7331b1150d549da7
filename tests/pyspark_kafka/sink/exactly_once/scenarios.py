"""Scenarios of the protocol: in the end a consumer reads each row once.

They are the named cases of the exactly-once guarantee. Tests run them on several clusters, and
`test_mutations` runs them on code with a deliberate bug. If the guarantee is violated, a scenario
raises an error, usually an `AssertionError`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import pytest

from pyspark_kafka.errors import (
    BatchNotCommittedError,
    BrokerUnreachableError,
    PysparkKafkaError,
    ReplayMismatchError,
    SinkFencedError,
    StaleBatchError,
)
from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.sink.exactly_once.commit_topic import CommitTopic
from pyspark_kafka.sink.exactly_once.decisions import BATCH_JOB, SinkState
from pyspark_kafka.sink.exactly_once.messages import AlreadyCommitted, Empty
from pyspark_kafka.sink.exactly_once.source_offsets import SourceOffsets
from tests.pyspark_kafka.sink.exactly_once.query import INPUT, MIDDLE, SHORT, Input, Query, flat
from tests.pyspark_kafka.sink.exactly_once.runs import (
    Batch,
    Killed,
    Rows,
    Run,
    World,
    at,
    kill,
    neighbour_of,
)

# --- no failures ---


def batches_are_seen_once(world: World) -> None:
    query = Query.of(world)
    for batch_id, partitions in enumerate(query.input):
        query.first.write(batch_id, *partitions)
        assert world.committed(query.first.topic) == flat(query.input[: batch_id + 1])


def what_is_prepared_is_not_seen_before_it_is_decided(world: World) -> None:
    query = Query.of(world)
    batch = query.first.begin(0)
    batch.task(0, [b"a"])
    with at("commit.decide.end_transactions.before", lambda: seen.append(query.committed())):
        seen: list[list[bytes]] = []
        seen.append(query.committed())
        batch.commit()
    assert seen == [[], []]
    assert query.committed() == [b"a"]


# --- killed processes ---


def a_driver_killed_anywhere(
    world: World,
    *,
    every: int = 1,
    input: Input = INPUT,  # noqa: A002
) -> int:
    """Return the number of failpoints at which the driver was killed."""
    place = 0
    while True:
        world = world.fresh()
        query = Query.of(world, input)
        if not query.drive_until_killed(query.first, place=place):
            return place
        query.drive(query.restarted())
        query.check(f"killed at failpoint {place}")
        place += every


def a_driver_killed_twice(world: World) -> int:
    """The driver is killed at any failpoint, and its successor at any failpoint, too."""
    first, cases = 0, 0
    while True:
        second = 0
        while True:
            query = Query.of(world.fresh(), SHORT)
            if not query.drive_until_killed(query.first, place=first):
                return cases
            was_killed = query.drive_until_killed(query.restarted(), place=second)
            query.drive(query.restarted())
            query.check(f"killed at failpoints {first} and {second}")
            cases += 1
            second += 13
            if not was_killed:
                break
        first += 2


def replay_of_what_was_not_decided(world: World) -> None:
    query = Query.of(world, SHORT)
    batch = query.first.begin(0)
    batch.task(0, query.input[0][0])
    query.drive(query.restarted())
    query.check()


def replay_of_what_was_decided(world: World) -> None:
    """The replay counts its rows and writes none."""
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
    assert query.committed() == []
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
    with pytest.raises(ReplayMismatchError):
        again.commit()
    assert query.committed() == []


# --- old drivers that continue ---


def an_old_driver_wakes_up_anywhere(
    world: World,
    *,
    input: Input = MIDDLE,  # noqa: A002
    every: int = 1,
) -> int:
    """The successor has written everything when the old driver continues."""
    place = 0
    while True:
        world = world.fresh()
        query = Query.of(world, input)
        new = query.restarted()
        wake_up = partial(query.drive, new)
        with at(place, wake_up) as failpoints, suppress(PysparkKafkaError):
            query.drive(query.first)
        if not failpoints.is_done:
            return place
        query.check(f"the old driver slept at failpoint {place} ({failpoints.met[place]})")
        place += every


def an_old_driver_works_while_the_new_one_writes(world: World, *, every: int = 1) -> int:
    """The old driver continues after its successor has planned and prepared its tasks."""
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
        query.check(f"the old driver slept at failpoint {place} ({failpoints.met[place]})")
        place += every


def a_new_driver_is_not_harmed_by_an_old_one(world: World) -> None:
    """An old driver rolls forward, marks and sweeps, but the batch of the new driver succeeds."""
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

            with at(f"{where}.{edge}", begin), suppress(SinkFencedError):
                query.first.write(0, *query.input[0])
            begun[0].commit()
            query.check()


def an_old_driver_that_sweeps_late(world: World) -> None:
    """The driver stalls in planning, between listing transactions and checking the owner."""
    query = Query.of(world, SHORT)
    begun: list[Batch] = []

    def new_batch() -> None:
        begun.append(query.restarted().begin(0))
        for partition, rows in enumerate(query.input[0]):
            begun[-1].task(partition, rows)

    old = query.first
    with at("plan.sweep.before", new_batch), suppress(SinkFencedError):
        old.begin(0)
    begun[0].commit()
    query.check()


def a_late_task_of_an_old_run(world: World) -> None:
    """The task has the same numbers as a task of the new run, which has prepared or is decided."""
    for place in ("commit.verify.before", "commit.roll_forward.before"):
        query = Query.of(world, SHORT)
        old, new = query.first.begin(0), query.restarted().begin(0)
        for partition, rows in enumerate(query.input[0]):
            new.task(partition, rows, task_attempt_id=partition)
        with at(place, lambda: _late(old, 0, query.input[0][0], task_attempt_id=0)):  # noqa: B023
            new.commit()
        query.restarted().begin(0)
        query.check()


def a_late_mark_of_an_old_decision(world: World) -> None:
    """An old driver marks its decision as finished long after a newer decision."""
    query = Query.of(world, MIDDLE)
    with query.first.process("late") as client:
        topic = CommitTopic(client, query.first.options.commit_topic, query.first.sink_id)
        found: list[SinkState] = []
        with at("commit.mark.before", lambda: found.append(topic.read())):
            query.first.write(0, *query.input[0])
        old = found[0].queries[query.first.query_id]
        with at("commit.roll_forward.before", kill), suppress(Killed):
            query.restarted().write(1, *query.input[1])
        topic.mark_finished(old)
    query.restarted().begin(1)
    query.check()


def a_stale_driver_is_refused(world: World) -> None:
    query = Query.of(world, MIDDLE)
    query.drive(query.first)
    batch = query.restarted().begin(0)
    with pytest.raises(StaleBatchError, match=r"(?i)batch 0\b.*batch 1\b"):
        batch.task(0, query.input[0][0])
    query.check()


# --- task attempts ---


def a_task_is_tried_again_after_it_has_prepared(world: World) -> None:
    query = Query.of(world, SHORT)
    batch = query.first.begin(0)
    batch.task(0, query.input[0][0])
    batch.task(0, query.input[0][0], attempt=1)
    batch.task(1, query.input[0][1])
    batch.commit()
    query.check()


def a_stage_is_tried_again(world: World) -> None:
    """The attempts of the second stage differ only in their task attempt ids."""
    query = Query.of(world, SHORT)
    batch = query.first.begin(0)
    for _ in range(2):
        for partition, rows in enumerate(query.input[0]):
            batch.task(partition, rows)
    batch.commit()
    query.check()


def a_late_result_of_a_fenced_attempt_is_refused(world: World) -> None:
    """In a second stage attempt, a task can have the id of the first, whose result arrives late."""
    query = Query.of(world, SHORT)
    batch = query.first.begin(0)
    first = batch.task(0, query.input[0][0], task_attempt_id=0)
    batch.task(1, query.input[0][1])
    batch.task(0, query.input[0][0], task_attempt_id=4)
    batch.messages[0] = first
    with pytest.raises(BatchNotCommittedError, match=r"/\d+/0/0-0'"):
        batch.commit()
    batch.abort()
    query.drive(query.first)
    query.check()


def a_late_attempt_of_an_earlier_batch(world: World) -> None:
    """The attempt opens its transaction after the next batch has begun, or after its end."""
    query = Query.of(world, MIDDLE)
    earlier = query.first.begin(0)
    for partition, rows in enumerate(query.input[0]):
        earlier.task(partition, rows)
    counting = dict(earlier.messages)
    earlier.commit()
    later = query.first.begin(1)
    _late(earlier, 0, query.input[0][0], attempt=1)
    for partition, rows in enumerate(query.input[1]):
        later.task(partition, rows)
    _late(earlier, 0, query.input[0][0])
    _late(earlier, 1, query.input[0][1], attempt=1)
    later.commit()
    _late(earlier, 1, query.input[0][1], attempt=2)
    assert counting.keys() == earlier.messages.keys()
    query.first.write(2, [b"z"])
    assert query.committed() == sorted([*flat(query.input), b"z"])


def an_attempt_after_the_last_sweep_of_an_idle_query(world: World) -> None:
    """Nothing would end its transaction before its timeout, and consumers would wait for it."""
    query = Query.of(world, SHORT)
    batch = query.first.begin(0)
    for partition, rows in enumerate(query.input[0]):
        batch.task(partition, rows)
    batch.commit()
    _late(batch, 0, query.input[0][0], attempt=1)
    assert world.is_stable(query.first.topic)
    query.check()


def an_attempt_that_begins_after_the_last_sweep(world: World) -> None:
    """It has initialized its id and checked the owner of the sink id before the decision."""
    query = Query.of(world, SHORT)
    batch = query.first.begin(0)
    for partition, rows in enumerate(query.input[0]):
        batch.task(partition, rows)
    with at("task.produce.before", batch.commit):
        _late(batch, 0, query.input[0][0], attempt=1)
    assert world.is_stable(query.first.topic)
    query.check()


def _late(batch: Batch, partition: int, rows: Rows, **numbers: int) -> None:
    """Run an attempt of a batch that can no longer be decided."""
    with pytest.raises(SinkFencedError):
        batch.task(partition, rows, **numbers)


def a_task_that_fails_leaves_nothing(world: World) -> None:
    query = Query.of(world, SHORT)
    batch = query.first.begin(0)

    def fail() -> None:
        raise BrokerUnreachableError("the network")

    for where in ("task.produce.before", "task.produce.flush.before", "task.produce.after"):
        with at(where, fail), pytest.raises(BrokerUnreachableError):
            batch.task(0, query.input[0][0])
    for partition, rows in enumerate(query.input[0]):
        batch.task(partition, rows, attempt=1)
    batch.commit()
    query.check()


def a_failed_batch_is_not_visible(world: World) -> None:
    query = Query.of(world, SHORT)
    batch = query.first.begin(0)
    prepared = batch.task(0, query.input[0][0])
    with pytest.raises(BatchNotCommittedError, match=r" 1\b"):
        _commit(batch, [prepared, None])
    batch.abort([prepared, None])
    assert query.committed() == []
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


def two_queries_with_one_transactional_id(world: World) -> None:
    """The query that planned last fences the other one, and the decisions of both are kept."""
    one = Run(world=world, topic=world.topic(), sink_id=world.name(), query_id="one")
    two = one.successor(query_id="two")
    first = one.begin(0)
    first.task(0, [b"one"])
    second = two.begin(0)
    second.task(0, [b"two"])
    with pytest.raises(SinkFencedError):
        first.task(1, [b"late"])
    with pytest.raises(SinkFencedError):
        first.commit()
    first.abort()
    second.commit()
    assert world.committed(one.topic) == [b"two"]
    assert world.is_stable(one.topic), "no transaction of the fenced query is left open"
    one.write(0, [b"one"])
    assert world.committed(one.topic) == [b"one", b"two"]
    two.write(1, [b"more"])
    assert world.committed(one.topic) == [b"more", b"one", b"two"]
    assert isinstance(one.begin(0).task(0, [b"one"]), AlreadyCommitted)


def a_checkpoint_is_deleted(world: World) -> None:
    """The query then has a new id and its own batches; no batch is skipped."""
    query = Query.of(world, MIDDLE)
    query.drive(query.first)
    other = query.restarted().successor("run-9", query_id="other")
    other.write(0, [b"x"])
    assert query.committed() == sorted([*flat(query.input), b"x"])


def a_checkpoint_is_copied_and_run_twice(world: World) -> None:
    """Both queries continue with the same batch: one writes it, and the other fails."""
    query = Query.of(world, MIDDLE)
    query.first.write(0, *query.input[0])
    one, two = query.restarted(), query.restarted()
    first, second = one.begin(1), two.begin(1)
    for partition, rows in enumerate(query.input[1]):
        _late(first, partition, rows)
        second.task(partition, rows)
    first.abort()
    second.commit()
    one.write(1, *query.input[1])
    query.check()


def another_query_holds_the_commit_topic(world: World) -> None:
    """The open transaction of another query in the commit topic does not hide later decisions."""
    query = Query.of(world, SHORT)
    other = Run(world=world, topic=world.topic(), sink_id=neighbour_of(query.first.sink_id))
    stalled = other.begin(0)
    stalled.task(0, [b"other"])

    def meanwhile() -> None:
        query.drive(query.first)
        query.restarted().write(0, *query.input[0])

    with at("commit.decide.end_transactions.before", meanwhile):
        stalled.commit()
    query.check()
    assert world.committed(other.topic) == [b"other"]


# --- replays ---


def a_replay_with_other_rows_is_refused(world: World) -> None:
    for rows in ([b"a0", b"a2"], [b"a0"], [b"a0", b"a1", b"a1"], []):
        query = Query.of(world, SHORT)
        query.drive(query.first)
        with pytest.raises(ReplayMismatchError):
            query.restarted().write(0, rows, query.input[0][1])
        query.check()
        lenient = query.restarted().successor(fail_on_replay_mismatch=False)
        lenient.write(0, rows, query.input[0][1])
        query.check()


def two_writes_of_a_batch_need_two_ids(world: World) -> None:
    """The rows of the second write of a foreachBatch function are never dropped silently."""
    run = Run(world=world, topic=world.topic(), sink_id=world.name(), fail_on_replay_mismatch=False)
    run.write(0, [b"first"])
    with pytest.raises(ReplayMismatchError):
        run.write(0, [b"second"])
    assert world.committed(run.topic) == [b"first"]


def a_replay_in_other_partitions_is_the_same(world: World) -> None:
    query = Query.of(world, SHORT)
    query.drive(query.first)
    query.restarted().write(0, [b"b0"], [b"a1"], [b"a0"], [])
    query.check()


def a_replay_from_other_offsets_is_refused(world: World) -> None:
    query = Query.of(world, SHORT)
    query.first.write(0, *query.input[0], offsets=SourceOffsets(hash="one", offsets={}))
    query.restarted().write(0, *query.input[0], offsets=SourceOffsets(hash="one", offsets={}))
    query.restarted().write(0, *query.input[0])
    with pytest.raises(ReplayMismatchError):
        query.restarted().write(0, *query.input[0], offsets=SourceOffsets(hash="two", offsets={}))
    query.check()


def a_replay_from_other_offsets_is_never_accepted(world: World) -> None:
    """A query that is not deterministic can have other rows, but not other input."""
    query = Query.of(world, SHORT, fail_on_replay_mismatch=False)
    query.first.write(0, *query.input[0], offsets=SourceOffsets(hash="one", offsets={}))
    query.restarted().write(0, [b"other"], [], offsets=SourceOffsets(hash="one", offsets={}))
    with pytest.raises(ReplayMismatchError):
        query.restarted().write(0, [b"other"], [], offsets=SourceOffsets(hash="two", offsets={}))
    query.check()


# --- batch jobs ---


def jobs_with_a_batch_id(world: World) -> None:
    """The same batch id is skipped, a lower one is rejected, and ids may have gaps."""
    sink_id, topic = world.name(), world.topic()
    tokens = iter(range(100))

    def job(batch_id: int, rows: Rows) -> None:
        token = f"job-{next(tokens)}"
        run = Run(
            world=world,
            topic=topic,
            sink_id=sink_id,
            query_id=BATCH_JOB,
            run=token,
            batch_id=batch_id,
        )
        run.write(batch_id, rows)

    job(5, [b"a"])
    job(5, [b"a"])
    assert world.committed(topic) == [b"a"]
    with pytest.raises(ReplayMismatchError):
        job(5, [b"b"])
    with pytest.raises(StaleBatchError, match=r"\b4\b.*\b5\b") as caught:
        job(4, [b"b"])
    assert (caught.value.option, caught.value.transactional_id) == ("batchId", sink_id)
    job(9, [b"b"])
    job(9, [b"b"])
    assert world.committed(topic) == [b"a", b"b"]


def jobs_without_a_batch_id(world: World) -> None:
    """Each job is written, regardless of earlier jobs."""
    sink_id, topic = world.name(), world.topic()
    for number, rows in enumerate(([b"a"], [b"a"], [])):
        job = Run(
            world=world, topic=topic, sink_id=sink_id, query_id=f"job-{number}", run=f"job-{number}"
        )
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
    """The offsets are committed with the decision, also for a batch without rows."""
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
