"""Tests of a task, which prepares all its rows or none, and skips rows that are decided."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import pyarrow as pa
import pytest
from kio.schema.errors import ErrorCode

from pyspark_kafka.errors import (
    BrokerUnreachableError,
    DeliveryError,
    OptionError,
    OutcomeUnknownError,
    ReplayMismatchError,
    RowError,
    RowsLostError,
    SinkFencedError,
    StaleBatchError,
)
from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.kafka.transactions import EndTransaction, TransactionState
from pyspark_kafka.options.values import ExactlyOnce, SinkOptions
from pyspark_kafka.records.checksums import row_checksums
from pyspark_kafka.sink.exactly_once.decisions import BATCH_JOB, RowTotals
from pyspark_kafka.sink.exactly_once.failpoint_client import FailpointClient
from pyspark_kafka.sink.exactly_once.messages import (
    AlreadyCommitted,
    Empty,
    Prepared,
    Task,
    TaskMessage,
)
from pyspark_kafka.sink.exactly_once.planning import LastDecision, Plan, UnknownOutcome
from pyspark_kafka.sink.exactly_once.task import write_task
from pyspark_kafka.sink.rows import RowPreparation
from tests.pyspark_kafka.client.records import options
from tests.pyspark_kafka.sink.exactly_once.drivers import rows
from tests.pyspark_kafka.sink.exactly_once.fake_cluster import FakeCluster
from tests.pyspark_kafka.sink.exactly_once.runs import at, values

SINK_ID = "orders"
TASK = Task(query_id="q", batch_id=7, run="run-1", partition=3, attempt=1, task_attempt_id=37)
OWN_ID = "orders/9/3/1-1"
OPTIONS = ExactlyOnce(
    transactional_id=SINK_ID,
    transaction_timeout_ms=120_000,
    commit_topic="commits",
    group_id=None,
    checkpoint=None,
    batch_id=None,
    fail_on_replay_mismatch=True,
)
ROWS = values([b"a", b"b", b"a"])


def totals(batch: pa.RecordBatch, topic: str = "t") -> RowTotals:
    """Return the totals of a batch as a task calculates them."""
    prepared = RowPreparation(topic=topic, partition_count=lambda _: 1).prepare(batch)
    return RowTotals(row_count=batch.num_rows, checksum=row_checksums(prepared))


def last(batch_id: int | None, lost: Mapping[int, RowTotals] | None = None) -> LastDecision:
    lost = lost or {}
    return LastDecision(
        number=11,
        batch_id=batch_id,
        lost=frozenset(lost),
        totals_of_lost=lost,
    )


class Attempt:
    """A task on a fake cluster, planned by the sink's owner."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.client = cluster.client("task")
        self.batches: list[pa.RecordBatch] | Iterator[pa.RecordBatch] = [ROWS]
        self.task = TASK
        self.options = OPTIONS
        self.topic: str | None = "t"
        self.last: dict[str, LastDecision] = {}
        cluster.create_topic("t")
        self.owner = cluster.client("driver").init_producer_id(SINK_ID, timeout_ms=30_000)

    def run(self) -> TaskMessage:
        version = self.cluster.transaction_version
        return write_task(
            self.batches,
            plan=Plan(
                owner=self.owner,
                version=version,
                generation=9,
                commit_partition=0,
                forgotten_number=0,
                last=self.last,
            ),
            task=self.task,
            options=SinkOptions(
                client=options("none:1"), topic=self.topic, exactly_once=self.options
            ),
            client=FailpointClient(self.client),
            now_ms=lambda: self.cluster.now_ms,
        )

    def check_aborted(self) -> None:
        """Check that no transaction is open and no row was committed."""
        assert self.cluster.committed("t") == []
        assert self.cluster.is_stable("t")


@pytest.fixture
def attempt(fake: FakeCluster) -> Attempt:
    """Return a task of batch 7 of query q, which is not decided yet."""
    return Attempt(fake)


def test_rows_are_left_prepared(attempt: Attempt) -> None:
    attempt.last = {"q": last(6), "other": last(8)}
    message = attempt.run()
    assert isinstance(message, Prepared)
    assert message.owner == attempt.owner
    assert message.last_number == 11
    assert message.decision_number is None
    assert message.rows_by_topic == {"t": 3}
    entry = message.entry
    assert entry.transactional_id == OWN_ID
    assert entry.partition == 3
    assert entry.producer == attempt.cluster.producer_of(OWN_ID)
    assert entry.version == attempt.cluster.transaction_version
    assert entry.started_ms == attempt.cluster.now_ms
    assert entry.totals == totals(ROWS)
    assert entry.last_offsets == {TopicPartition("t", 0): 2}
    assert attempt.cluster.state(OWN_ID) is TransactionState.ONGOING
    assert attempt.cluster.committed("t") == []
    assert [producer.is_closed for producer in attempt.client.producers] == [True]


def test_messages_can_be_pickled(attempt: Attempt) -> None:
    message = attempt.run()
    assert pickle.loads(pickle.dumps(message)) == message


def test_several_batches_are_one_transaction(attempt: Attempt) -> None:
    attempt.batches = [values([]), values([b"a"]), values([]), values([b"b", b"a"])]
    message = attempt.run()
    assert isinstance(message, Prepared)
    assert message.entry.totals == totals(ROWS)
    assert message.entry.last_offsets == {TopicPartition("t", 0): 2}


@pytest.mark.parametrize("batches", [[], [values([])]])
def test_task_without_rows_opens_no_transaction(
    attempt: Attempt, batches: list[pa.RecordBatch]
) -> None:
    attempt.batches = batches
    message = attempt.run()
    assert isinstance(message, Empty)
    assert (message.owner, message.last_number) == (attempt.owner, 0)
    assert attempt.client.asked() == []


def test_decided_batch_is_counted_and_not_written(attempt: Attempt) -> None:
    attempt.last = {"q": last(7)}
    message = attempt.run()
    assert isinstance(message, AlreadyCommitted)
    assert message.totals == totals(ROWS)
    assert message.decision_number == message.last_number == 11
    assert message.owner == attempt.owner
    assert attempt.client.producers == []
    assert OWN_ID not in attempt.cluster.ids


def test_counting_is_a_step(attempt: Attempt) -> None:
    attempt.last = {"q": last(7)}
    with at() as failpoints:
        attempt.run()
    assert failpoints.met == [
        "task.check.before",
        "task.check.after",
        "task.count.before",
        "task.count.after",
    ]


def test_counted_rows_are_checked_as_written_rows_are(attempt: Attempt) -> None:
    attempt.last = {"q": last(7)}
    attempt.topic = None
    attempt.batches = [
        pa.RecordBatch.from_arrays(
            [pa.array([b"a"], pa.binary()), pa.array([None], pa.string())], ["value", "topic"]
        )
    ]
    with pytest.raises(RowError) as caught:
        attempt.run()
    assert caught.value.column == "topic"


def test_older_batch_is_refused(attempt: Attempt) -> None:
    attempt.last = {"q": last(8)}
    with pytest.raises(StaleBatchError) as raised:
        attempt.run()
    text = str(raised.value)
    assert re.search(r"(?i)batch 7\b.*\bq\b.*\brun-1\b.*batch 8\b", text)
    assert raised.value.transactional_id == "orders"
    assert attempt.client.asked() == []


def test_job_with_a_lower_id_is_refused(attempt: Attempt) -> None:
    attempt.last = {BATCH_JOB: last(8)}
    attempt.task = replace(TASK, query_id=BATCH_JOB)
    with pytest.raises(StaleBatchError, match=r"\b7\b.*\b8\b") as caught:
        attempt.run()
    assert (caught.value.option, caught.value.transactional_id) == ("batchId", "orders")


def test_job_without_an_id_is_always_written(attempt: Attempt) -> None:
    attempt.last = {"q": last(None), BATCH_JOB: last(8)}
    attempt.task = replace(TASK, batch_id=None)
    message = attempt.run()
    assert isinstance(message, Prepared)
    assert message.last_number == 11


def test_query_with_an_unknown_outcome_is_refused(attempt: Attempt) -> None:
    unknown = UnknownOutcome(what="It is unknown.", advice="Settle it.")
    attempt.last = {"q": replace(last(6), unknown=unknown)}
    with pytest.raises(OutcomeUnknownError) as caught:
        attempt.run()
    assert str(caught.value) == "It is unknown. Settle it."
    assert caught.value.transactional_id == "orders"
    attempt.last = {"another": replace(last(6), unknown=unknown)}
    assert isinstance(attempt.run(), Prepared)


def test_batch_after_lost_rows_is_refused(attempt: Attempt) -> None:
    attempt.last = {"q": last(6, {4: RowTotals(), 2: RowTotals()})}
    with pytest.raises(RowsLostError, match=r"batch 6\b.*\b2, 4\b"):
        attempt.run()
    assert attempt.client.asked() == []


def test_lost_rows_are_written_again(attempt: Attempt) -> None:
    attempt.last = {"q": last(7, {3: totals(ROWS)})}
    attempt.batches = [values([b"b", b"a", b"a"])]
    message = attempt.run()
    assert isinstance(message, Prepared)
    assert message.decision_number == 11
    assert message.entry.totals == totals(ROWS)


def test_surviving_rows_are_counted(attempt: Attempt) -> None:
    attempt.last = {"q": last(7, {4: totals(ROWS)})}
    assert isinstance(attempt.run(), AlreadyCommitted)


@pytest.mark.parametrize("rows", [[b"a", b"b"], [b"a", b"b", b"b"], []])
def test_lost_rows_are_not_replaced_by_others(attempt: Attempt, rows: list[bytes]) -> None:
    attempt.last = {"q": last(7, {3: totals(ROWS)})}
    attempt.batches = [values(rows)]
    with pytest.raises(ReplayMismatchError, match=rf"\b3 rows\b.*\b{len(rows)} rows\b") as caught:
        attempt.run()
    assert caught.value.transactional_id == "orders"
    attempt.check_aborted()


def test_failing_input_aborts(attempt: Attempt) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield ROWS
        raise ZeroDivisionError

    attempt.batches = batches()
    with pytest.raises(ZeroDivisionError):
        attempt.run()
    attempt.check_aborted()


@pytest.mark.parametrize("request_name", ["produce", "flush"])
def test_failure_aborts(attempt: Attempt, request_name: str) -> None:
    attempt.client.fail(request_name, DeliveryError("t-0: no answer"))
    with pytest.raises(DeliveryError, match="t-0: no answer"):
        attempt.run()
    assert [producer.is_aborted for producer in attempt.client.producers] == [True]
    attempt.check_aborted()


def test_failing_abort_does_not_hide_the_failure(attempt: Attempt) -> None:
    attempt.client.fail("flush", DeliveryError("t-0: no answer"))
    attempt.client.fail("end_transactions", BrokerUnreachableError("neither here"))
    with pytest.raises(DeliveryError, match="t-0: no answer"):
        attempt.run()


def test_invalid_row_aborts(attempt: Attempt) -> None:
    good = pa.RecordBatch.from_arrays(
        [pa.array([b"a"], pa.binary()), pa.array([0], pa.int32())], ["value", "partition"]
    )
    bad = pa.RecordBatch.from_arrays(
        [pa.array([b"a"], pa.binary()), pa.array([1], pa.int32())], ["value", "partition"]
    )
    attempt.batches = [good, bad]
    with pytest.raises(RowError) as caught:
        attempt.run()
    assert (caught.value.topic, caught.value.partition) == ("t", 1)
    attempt.check_aborted()


def test_refused_id_opens_nothing(attempt: Attempt) -> None:
    attempt.options = replace(OPTIONS, transaction_timeout_ms=10**9)
    with pytest.raises(OptionError, match="transactionTimeout"):
        attempt.run()
    assert attempt.client.producers == []


def _other_attempt(attempt: Attempt) -> Callable[[], object]:
    """Return a function that fences the id, as a sweep or a later attempt does."""
    other = attempt.cluster.client("other")
    return lambda: other.init_producer_id(OWN_ID, timeout_ms=30_000)


@pytest.mark.parametrize("where", ["task.produce.before", "task.produce.produce.before"])
def test_fenced_attempt_fails(attempt: Attempt, where: str) -> None:
    with at(where, _other_attempt(attempt)), pytest.raises(SinkFencedError) as raised:
        attempt.run()
    assert f"'{OWN_ID}'" in str(raised.value)
    assert raised.value.transactional_id == "orders"
    assert attempt.cluster.producer_of(OWN_ID).producer_epoch > 0
    attempt.check_aborted()


def test_attempt_that_writes_for_too_long_fails_with_advice(attempt: Attempt) -> None:
    timeout_ms = attempt.options.transaction_timeout_ms

    def slow_rows() -> Iterator[pa.RecordBatch]:
        yield ROWS
        attempt.cluster.advance(timeout_ms + 1)
        yield ROWS

    attempt.batches = slow_rows()
    with pytest.raises(SinkFencedError) as raised:
        attempt.run()
    assert "'transactionTimeout'" in raised.value.advice
    assert raised.value.transactional_id == "orders"
    attempt.check_aborted()


@pytest.mark.parametrize("where", ["task.init.before", "task.look.before"])
def test_attempt_of_a_fenced_run_begins_no_transaction(attempt: Attempt, where: str) -> None:
    other = attempt.cluster.client("other")
    with (
        at(where, lambda: other.init_producer_id(SINK_ID, timeout_ms=30_000)),
        pytest.raises(SinkFencedError, match="'orders'"),
    ):
        attempt.run()
    assert attempt.client.producers == []
    attempt.check_aborted()


@pytest.mark.parametrize("where", ["task.init.before", "task.look.before"])
def test_attempt_after_the_decision_begins_no_transaction(attempt: Attempt, where: str) -> None:
    """No sweep would end it while the query is idle."""
    cluster, driver = attempt.cluster, attempt.cluster.client("driver")

    def decide() -> None:
        version = cluster.transaction_version
        writer = driver.transactional_producer(SINK_ID, attempt.owner, version)
        writer.send(rows("t", 0, ["the decision"]))
        end = EndTransaction(
            transactional_id=SINK_ID, producer=attempt.owner, is_commit=True, version=version
        )
        assert driver.end_transactions([end])[SINK_ID] is ErrorCode.none

    with at(where, decide), pytest.raises(SinkFencedError):
        attempt.run()
    assert attempt.client.producers == []
    assert cluster.is_stable("t")


def test_task_without_rows_sends_no_request(attempt: Attempt) -> None:
    attempt.batches = []
    assert isinstance(attempt.run(), Empty)
    assert attempt.client.asked() == []
