"""Failure scenarios: late and lost responses, and transactions that time out.

They follow the rules of `scenarios`. Most of them need the fake cluster, because a real cluster
does not fail on demand.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

from pyspark_kafka.errors import (
    BatchNotCommittedError,
    BrokerUnreachableError,
    OutcomeUnknownError,
    PysparkKafkaError,
    ReplayMismatchError,
    RowsLostError,
)
from pyspark_kafka.kafka.transactions import EndTransaction
from pyspark_kafka.sink.exactly_once.commit_topic import CommitTopic
from pyspark_kafka.sink.exactly_once.decisions import Decision
from pyspark_kafka.sink.exactly_once.messages import AlreadyCommitted, Prepared
from tests.pyspark_kafka.sink.exactly_once.fake_client import FakeClient
from tests.pyspark_kafka.sink.exactly_once.query import SHORT, Query, flat
from tests.pyspark_kafka.sink.exactly_once.runs import Batch, Killed, World, at, kill
from tests.pyspark_kafka.sink.exactly_once.worlds import FakeWorld

# --- late and lost responses ---


def abort_after_a_commit_that_has_decided(world: World) -> None:
    for where in (
        "commit.decide.after",
        "commit.roll_forward.before",
        "commit.roll_forward.after",
        "commit.sweep.after",
    ):
        query = Query.of(world, SHORT)
        with at(where, _no_network), pytest.raises(BrokerUnreachableError):
            query.drive(query.first)
        query.restarted().begin(0)
        query.check()
        query.drive(query.restarted())
        query.check()


def the_response_to_the_decision_is_lost(world: FakeWorld) -> None:
    """The batch is decided and must not be treated as undecided."""
    query = Query.of(world, SHORT)
    batch = _with_failure_at_decision(query, "lose")
    with pytest.raises(OutcomeUnknownError):
        batch.commit()
    batch.abort()
    query.drive(query.restarted())
    query.check()


def the_network_fails_around_the_decision(world: World) -> None:
    """The network fails before the deciding request, and then after it."""
    for edge in ("before", "after"):
        query = Query.of(world, SHORT)
        batch = _prepared(query)
        where = f"commit.decide.end_transactions.{edge}"
        with at(where, _no_network), pytest.raises(OutcomeUnknownError, match="the network"):
            batch.commit()
        batch.abort()
        query.drive(query.restarted())
        query.check(where)


def the_decision_is_lost(world: FakeWorld) -> None:
    """The batch is undecided and must not be treated as decided."""
    query = Query.of(world, SHORT)
    batch = _with_failure_at_decision(query, "fail")
    with pytest.raises(OutcomeUnknownError):
        batch.commit()
    batch.abort()
    assert query.committed() == []
    query.drive(query.restarted())
    query.check()


def _with_failure_at_decision(query: Query, how: str) -> Batch:
    """Return a prepared batch whose deciding EndTxn fails before or after it is executed."""
    batch = _prepared(query)
    world = query.world
    assert isinstance(world, FakeWorld)
    original = world.cluster.client

    def client(name: str = "client") -> FakeClient:
        opened = original(name)
        if name.endswith("-commit"):
            world.cluster.client = original  # type: ignore[method-assign]
            if how == "lose":
                opened.lose_response("end_transactions")
            else:
                opened.fail("end_transactions", BrokerUnreachableError("not sent"))
        return opened

    world.cluster.client = client  # type: ignore[method-assign]
    return batch


def _prepared(query: Query) -> Batch:
    batch = query.first.begin(0)
    for partition, rows in enumerate(query.input[0]):
        batch.task(partition, rows)
    return batch


def a_decision_is_delivered_late(world: World, *, every: int = 1) -> int:
    """The deciding request arrives at any failpoint of abort() and of the next start.

    Either the request is rejected, or the batch was decided before its rows could be aborted.
    """
    return _delivered_late(world, calls_abort=True, every=every)


def a_decision_of_a_dead_driver_is_delivered_late(world: World, *, every: int = 1) -> int:
    """The deciding request arrives at any failpoint of the next start, without abort()."""
    return _delivered_late(world, calls_abort=False, every=every)


def _delivered_late(world: World, *, calls_abort: bool, every: int = 1) -> int:
    place = 0
    while True:
        world = world.fresh()
        query = Query.of(world, SHORT)
        batch = _prepared(query)
        with (
            at("commit.decide.end_transactions.before", _no_network),
            pytest.raises(OutcomeUnknownError),
        ):
            batch.commit()
        with at(place, _end_of(batch)) as failpoints:
            if calls_abort:
                batch.abort()
            again = query.restarted().begin(0)
            again.play(*query.input[0])
        if not failpoints.is_done:
            return place
        where = f"delivered at failpoint {place} ({failpoints.met[place]})"
        assert not any(last.lost for last in again.plan.last.values()), where
        query.check(where)
        place += every


def _end_of(batch: Batch) -> Callable[[], object]:
    end = EndTransaction(
        transactional_id=batch.run.sink_id,
        producer=batch.plan.owner,
        is_commit=True,
        version=batch.plan.version,
    )

    def deliver() -> None:
        with batch.run.world.client("late") as client:
            client.end_transactions([end])

    return deliver


def _no_network() -> None:
    raise BrokerUnreachableError("the network")


def the_decision_gets_an_error_code(world: FakeWorld) -> None:
    """The sink must not assume an outcome after an error code."""
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
        batch = _prepared(query)
        world.cluster.respond_to_end_txn(query.first.sink_id, code)
        with pytest.raises(OutcomeUnknownError):
            batch.commit()
        batch.abort()
        assert query.committed() == []
        query.drive(query.restarted())
        query.check()


def markers_are_late(world: FakeWorld) -> None:
    """A decided batch counts as committed, although consumers do not see it yet."""
    query = Query.of(world, SHORT)
    batch = _prepared(query)
    world.cluster.holds_markers = True
    with suppress(PysparkKafkaError):
        batch.commit()
    batch.abort()
    world.cluster.holds_markers = False
    world.cluster.write_markers()
    query.drive(query.restarted())
    query.check()


def a_coordinator_moves(world: FakeWorld) -> None:
    """One ListTransactions response omits an open transaction; a later response contains it."""
    query = Query.of(world, SHORT)
    batch = query.first.begin(0)
    left = batch.task(0, query.input[0][0])
    assert isinstance(left, Prepared)
    world.cluster.unlisted_ids.add(left.entry.transactional_id)
    new = query.restarted()
    second = new.begin(0)
    for partition, rows in enumerate(query.input[0]):
        second.task(partition, rows)
    second.commit()
    world.cluster.unlisted_ids.clear()
    new.write(1, [b"z"])
    assert world.committed(query.first.topic) == sorted([*flat(query.input), b"z"])


# --- transactions time out ---


def a_prepared_transaction_times_out_before_the_decision(world: FakeWorld) -> None:
    query = Query.of(world, SHORT)
    batch = query.first.begin(0)
    batch.task(0, query.input[0][0])
    world.cluster.advance(query.first.timeout_ms + 1)
    batch.task(1, query.input[0][1])
    with pytest.raises(BatchNotCommittedError, match=r"/0/0-0'.*\b0\b.*\b2\b"):
        batch.commit()
    batch.abort()
    query.drive(query.restarted())
    query.check()


def a_batch_close_to_its_timeout_is_not_decided(world: FakeWorld) -> None:
    query = Query.of(world, SHORT)
    batch = _prepared(query)
    world.cluster.advance(query.first.timeout_ms - 59_000)
    with pytest.raises(BatchNotCommittedError, match=r"59000 ms.*transactionTimeout"):
        batch.commit()
    batch.abort()
    query.drive(query.restarted())
    query.check()


def decided_rows_are_lost_and_written_again(world: FakeWorld) -> None:
    """The transactions time out between verification and the commit of the tasks' transactions."""
    query = Query.of(world, SHORT)
    batch = query.first.begin(0)
    batch.task(0, query.input[0][0])
    world.cluster.advance(100_000)
    batch.task(1, query.input[0][1])
    with (
        at("commit.roll_forward.before", lambda: world.cluster.advance(500_001)),
        pytest.raises(RowsLostError, match=r"\b2\b.*\b0\b.*\bx-\d+/\d+/0/0-0\b"),
    ):
        batch.commit()
    batch.abort()
    assert query.committed() == [b"b0"]
    again = query.restarted().begin(0)
    assert isinstance(again.task(0, query.input[0][0]), Prepared)
    assert isinstance(again.task(1, query.input[0][1]), AlreadyCommitted)
    again.commit()
    query.check()
    query.completed = 0
    query.restarted().write(1, [b"z"])
    assert query.committed() == [*flat(query.input), b"z"]


def lost_rows_are_found_by_the_next_start(world: FakeWorld) -> None:
    """The driver died between decision and roll forward, and the transactions timed out."""
    query = Query.of(world, SHORT)
    with at("commit.roll_forward.before", kill), suppress(Killed):
        query.drive(query.first)
    world.cluster.advance(query.first.timeout_ms + 1)
    query.drive(query.restarted())
    query.check()
    query.restarted().write(0, *query.input[0])
    query.check()


def lost_rows_need_the_same_tasks(world: FakeWorld) -> None:
    """With fewer tasks, no run could write the rows of the missing partition."""
    query = Query.of(world, SHORT)
    batch = query.first.begin(0)
    batch.task(1, query.input[0][1])
    world.cluster.advance(100_000)
    batch.task(0, query.input[0][0])
    with (
        at("commit.roll_forward.before", lambda: world.cluster.advance(500_001)),
        pytest.raises(RowsLostError),
    ):
        batch.commit()
    all_rows = [row for rows in query.input[0] for row in rows]
    for _ in range(2):
        with pytest.raises(RowsLostError) as caught:
            query.restarted().write(0, all_rows)
        assert all(
            part in caught.value.advice for part in ("has 1 task,", "had 2", "--accept-loss")
        )
    query.drive(query.restarted())
    query.check()


def a_batch_after_lost_rows_is_refused(world: FakeWorld) -> None:
    query = Query.of(world, SHORT)
    with at("commit.roll_forward.before", kill), suppress(Killed):
        query.drive(query.first)
    world.cluster.advance(query.first.timeout_ms + 1)
    batch = query.restarted().begin(1)
    with pytest.raises(RowsLostError, match=r"(?i)batch 0\b.*\b0, 1\b"):
        batch.task(0, [b"next"])
    query.drive(query.restarted())
    query.check()


def lost_rows_are_replaced_by_other_rows(world: FakeWorld) -> None:
    query = Query.of(world, SHORT)
    with at("commit.roll_forward.before", kill), suppress(Killed):
        query.drive(query.first)
    world.cluster.advance(query.first.timeout_ms + 1)
    batch = query.restarted().begin(0)
    for rows in ([b"a0", b"a2"], [b"a0"], []):
        with pytest.raises(ReplayMismatchError, match=r"(?i)partition 0\b.*\b2 rows\b"):
            batch.task(0, rows)
    assert query.committed() == []


def lost_rows_are_not_written_again(world: FakeWorld) -> None:
    """The replay has fewer partitions than the batch."""
    query = Query.of(world, ((SHORT[0][0], []),))
    query.first.write(0, [], SHORT[0][0])
    query.first.write(1, [b"y"], [b"z"])
    with at("commit.roll_forward.before", kill), suppress(Killed):
        query.first.write(2, [b"a"], [b"b"])
    world.cluster.advance(query.first.timeout_ms + 1)
    batch = query.restarted().begin(2)
    batch.task(0, [b"a"])
    with pytest.raises((RowsLostError, ReplayMismatchError)):
        batch.commit()


def a_supplement_keeps_the_surviving_rows(world: FakeWorld) -> None:
    """Rows are lost again: only the rows of the first supplement are written again."""
    query = Query.of(world, (([b"a"], [b"b"], [b"c"]),))
    batch = query.first.begin(0)
    batch.task(0, [b"a"])
    world.cluster.advance(200_000)
    batch.task(1, [b"b"])
    world.cluster.advance(200_000)
    batch.task(2, [b"c"])
    with (
        at("commit.roll_forward.before", lambda: world.cluster.advance(200_001)),
        pytest.raises(RowsLostError),
    ):
        batch.commit()
    assert query.committed() == [b"b", b"c"]
    again = query.restarted()
    with at("commit.roll_forward.before", kill), suppress(Killed):
        again.write(0, [b"a"], [b"b"], [b"c"])
    world.cluster.advance(query.first.timeout_ms + 1)
    third = query.restarted().begin(0)
    kinds = [type(third.task(n, rows)) for n, rows in enumerate(query.input[0])]
    assert kinds == [Prepared, AlreadyCommitted, AlreadyCommitted]
    decisions: list[Decision] = []

    def look() -> None:
        with query.first.process("reader") as client:
            topic = CommitTopic(client, query.first.options.commit_topic, query.first.sink_id)
            decisions.append(topic.read().queries[query.first.query_id].decision)

    with at("commit.mark.before", look):
        third.commit()
    query.check()
    assert sorted(entry.partition for entry in decisions[0].entries) == [0, 1, 2]
    assert decisions[0].totals.row_count == 3
    fourth = query.restarted().begin(0)
    kinds = [type(fourth.task(n, rows)) for n, rows in enumerate(query.input[0])]
    assert kinds == [AlreadyCommitted] * 3
