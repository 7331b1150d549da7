"""Tests of a write as Spark uses it: planned once, pickled, and passed to tasks and commit."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext, cloudpickle
from pyspark.sql.types import StructType

from pyspark_kafka.client import factory
from pyspark_kafka.errors import (
    BatchNotCommittedError,
    BrokerUnreachableError,
    CheckpointError,
    ExactlyOnceError,
    OptionError,
    SchemaError,
    SinkFencedError,
)
from pyspark_kafka.kafka.transactions import ProducerIdAndEpoch
from pyspark_kafka.options.parse import parse_sink_options
from pyspark_kafka.options.values import ClientOptions, ExactlyOnce, SinkOptions
from pyspark_kafka.sink.exactly_once import abort, commit, planning, steps, task, write
from pyspark_kafka.sink.exactly_once.decisions import BATCH_JOB, RowTotals
from pyspark_kafka.sink.exactly_once.failpoint_client import FailpointClient
from pyspark_kafka.sink.exactly_once.messages import AlreadyCommitted, Empty, Task, TaskMessage
from pyspark_kafka.sink.exactly_once.planning import Plan
from pyspark_kafka.sink.exactly_once.source_offsets import SourceOffsets
from pyspark_kafka.sink.exactly_once.write import ExactlyOnceWrite, new_rows

SCHEMA = StructType().add("value", "string")
OWNER = ProducerIdAndEpoch(producer_id=7, producer_epoch=3)
RUN = "0b5c2f0e-0000-4000-8000-000000000000"
OF_A_STREAM = {
    "sql.streaming.queryId": "query",
    "streaming.sql.batchId": "12",
    "spark.jobGroup.id": RUN,
}


def options(**given: str) -> SinkOptions:
    """Return options with transactionalId 'x', for a stream unless `batchId` is given."""
    all_given = {"kafka.bootstrap.servers": "a:1", "topic": "t", "transactionalId": "x", **given}
    return parse_sink_options(all_given, streaming="batchId" not in given)


def a_write(**given: str) -> ExactlyOnceWrite:
    return ExactlyOnceWrite(options(**given), SCHEMA, is_streaming=True)


def a_job(**given: str) -> ExactlyOnceWrite:
    return ExactlyOnceWrite(options(**given), SCHEMA, is_streaming=False)


def message(**changes: Any) -> TaskMessage:
    one = Empty(
        task=Task(query_id="q", batch_id=1, run=RUN, partition=0, attempt=0, task_attempt_id=5),
        owner=OWNER,
        version=2,
        generation=3,
        commit_partition=0,
        last_number=0,
        rows_by_topic={},
    )
    return replace(one, **changes)


class FakeClient:
    def __init__(self) -> None:
        self.is_open = True

    def close(self) -> None:
        self.is_open = False

    def __enter__(self) -> FakeClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass
class Steps:
    """A fake of the protocol that records the arguments of each step."""

    opened: list[FakeClient] = field(default_factory=list)
    planned: list[ExactlyOnce] = field(default_factory=list)
    single_jobs: list[bool] = field(default_factory=list)
    tasks: list[tuple[Task, Plan, Any]] = field(default_factory=list)
    commits: list[tuple[Sequence[TaskMessage], SourceOffsets | None, Any]] = field(
        default_factory=list
    )
    aborts: list[Sequence[TaskMessage]] = field(default_factory=list)
    failure: Exception | None = None

    def open(self, _options: ClientOptions, **_: object) -> FakeClient:
        self.opened.append(FakeClient())
        return self.opened[-1]

    def plan(self, client: Any, options: ExactlyOnce, *, is_single_job: bool) -> Plan:
        assert client.is_open
        self.single_jobs.append(is_single_job)
        self.planned.append(options)
        self._fail()
        return Plan(
            owner=OWNER, version=2, generation=3, commit_partition=0, forgotten_number=0, last={}
        )

    def write_task(
        self, batches: Any, *, plan: Plan, task: Task, options: SinkOptions, client: Any
    ) -> TaskMessage:
        self.tasks.append((task, plan, client))
        self._fail()
        rows = sum(batch.num_rows for batch in batches)
        return message(task=task, rows_by_topic={options.topic: rows})

    def commit(
        self,
        client: Any,
        _options: ExactlyOnce,
        messages: Sequence[TaskMessage],
        *,
        offsets: SourceOffsets | None,
    ) -> None:
        self.commits.append((messages, offsets, client))
        self._fail()

    def abort(self, _client: Any, _options: ExactlyOnce, messages: Sequence[TaskMessage]) -> None:
        self.aborts.append(messages)
        self._fail()

    def _fail(self) -> None:
        if self.failure is not None:
            raise self.failure


@pytest.fixture
def protocol(monkeypatch: pytest.MonkeyPatch) -> Iterator[Steps]:
    steps = Steps()
    monkeypatch.setattr(factory, "open_transactional_client", steps.open)
    monkeypatch.setattr(planning, "plan", steps.plan)
    monkeypatch.setattr(task, "write_task", steps.write_task)
    monkeypatch.setattr(commit, "commit", steps.commit)
    monkeypatch.setattr(abort, "abort", steps.abort)
    monkeypatch.setattr(write, "freeze_garbage_collector", lambda: None)
    write._pool.cache_clear()
    yield steps
    write._pool.cache_clear()


InTask = Callable[..., None]


@pytest.fixture
def in_task(monkeypatch: pytest.MonkeyPatch) -> InTask:
    """Return a function that makes this process a Spark task with the given local properties."""

    class Context:
        def __init__(self, properties: dict[str, str]) -> None:
            self._properties = properties

        def getLocalProperty(self, name: str) -> str | None:  # noqa: N802
            return self._properties.get(name)

        def partitionId(self) -> int:  # noqa: N802
            return 4

        def attemptNumber(self) -> int:  # noqa: N802
            return 1

        def taskAttemptId(self) -> int:  # noqa: N802
            return 99

    def enter(**properties: str) -> None:
        monkeypatch.setattr(TaskContext, "get", lambda: Context(properties))

    return enter


def carried(one: ExactlyOnceWrite) -> ExactlyOnceWrite:
    """Return a copy, as Spark sends it to an executor."""
    again: ExactlyOnceWrite = pickle.loads(cloudpickle.dumps(one))  # type: ignore[no-untyped-call]
    return again


def rows(count: int) -> Iterator[pa.RecordBatch]:
    yield pa.record_batch([pa.array(["v"] * count)], names=["value"])


def test_schema_and_options_are_checked_on_creation(protocol: Steps) -> None:
    with pytest.raises(SchemaError, match="'value'"):
        ExactlyOnceWrite.of(options(), StructType().add("key", "string"), is_streaming=True)
    for wrong in ({"engine": "librdkafka"}, {"kafka.ssl.crl.location": "x"}):
        with pytest.raises(OptionError, match=next(iter(wrong))):
            ExactlyOnceWrite.of(options(**wrong), SCHEMA, is_streaming=True)
    with pytest.raises(OptionError, match="'dbfs:"):
        ExactlyOnceWrite.of(
            options(
                commitOffsets="true",
                checkpointLocation="dbfs:/checkpoint",
                **{"kafka.group.id": "g"},
            ),
            SCHEMA,
            is_streaming=True,
        )
    assert protocol.opened == []


def test_creating_a_write_contacts_no_broker(protocol: Steps) -> None:
    ExactlyOnceWrite.of(options(), SCHEMA, is_streaming=True)
    assert (protocol.opened, protocol.planned) == ([], [])


def test_planning_runs_once_per_write(protocol: Steps) -> None:
    one = a_write()
    first, second = carried(one), carried(one)
    again = carried(first)
    assert [each.transactional_id for each in protocol.planned] == ["x"]
    assert job(first) == job(second) == job(again)


def job(one: ExactlyOnceWrite) -> str:
    assert one._planned is not None
    return one._planned.job


def test_failed_planning_reports_its_error(protocol: Steps) -> None:
    protocol.failure = SinkFencedError("Another run has taken over.")
    with pytest.raises(SinkFencedError, match=r"^Another run has taken") as caught:
        carried(a_write())
    assert isinstance(caught.value, pickle.PicklingError)  # Spark replaces other errors


def test_streaming_task_reads_sparks_properties(protocol: Steps, in_task: InTask) -> None:
    in_task(**OF_A_STREAM)
    answer = carried(a_write()).task(rows(3))
    expected = Task(
        query_id="query", batch_id=12, run=RUN, partition=4, attempt=1, task_attempt_id=99
    )
    assert answer.rows_by_topic == {"t": 3}
    ((found, plan, _client),) = protocol.tasks
    assert (found, plan) == (
        expected,
        Plan(owner=OWNER, version=2, generation=3, commit_partition=0, forgotten_number=0, last={}),
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"sql.streaming.queryId": ""},
        {"streaming.sql.batchId": "x"},
    ],
)
def test_streaming_task_without_sparks_properties_is_refused(
    protocol: Steps, in_task: InTask, wrong: dict[str, str]
) -> None:
    in_task(**{**OF_A_STREAM, **wrong})
    with pytest.raises(ExactlyOnceError) as caught:
        carried(a_write()).task(rows(1))
    assert caught.value.transactional_id == "x"
    assert protocol.tasks == []


def test_job_is_a_query_of_its_own(protocol: Steps, in_task: InTask) -> None:
    in_task(**{"spark.jobGroup.id": "a job group of the user"})
    for _ in range(2):
        one = a_job()
        carried(one).task(rows(1))
        carried(one).task(rows(1))
    found = [each for each, _, _ in protocol.tasks]
    assert all(each.batch_id is None and each.query_id == each.run for each in found)
    assert [each.run == found[0].run for each in found] == [True, True, False, False]


def test_job_in_foreach_batch_is_the_micro_batch(protocol: Steps, in_task: InTask) -> None:
    in_task(**OF_A_STREAM)
    carried(a_job()).task(rows(1))
    ((found, _, _),) = protocol.tasks
    assert (found.query_id, found.batch_id, found.run) == ("query", 12, RUN)


def test_only_a_job_without_batch_id_is_single(protocol: Steps) -> None:
    for one in (a_job(), a_job(batchId="3"), a_write()):
        carried(one)
    assert protocol.single_jobs == [True, False, False]


def test_job_with_batch_id_belongs_to_the_batch_query(protocol: Steps, in_task: InTask) -> None:
    in_task()
    carried(a_job(batchId="5")).task(rows(1))
    ((found, _, _),) = protocol.tasks
    assert (found.query_id, found.batch_id) == (BATCH_JOB, 5)
    assert found.run not in ("", BATCH_JOB)


def test_process_reuses_a_client_until_it_fails(protocol: Steps, in_task: InTask) -> None:
    """Spark reuses its Python processes for tasks, for planning and for commits."""
    in_task(**OF_A_STREAM)
    one = carried(a_write())
    one.task(rows(1))
    one.commit([message()], 1)
    carried(a_write()).task(rows(1))
    assert len(protocol.opened) == 1
    protocol.failure = BrokerUnreachableError("gone")
    with pytest.raises(BrokerUnreachableError):
        one.task(rows(1))
    assert not protocol.opened[0].is_open
    protocol.failure = None
    one.task(rows(1))
    assert len(protocol.opened) == 2


def test_requests_are_failpoints_only_in_tests(
    protocol: Steps, in_task: InTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_task(**OF_A_STREAM)
    one = carried(a_write())
    one.task(rows(1))
    one.commit([message()], 1)
    assert isinstance(protocol.tasks[0][2], FakeClient)
    assert isinstance(protocol.commits[0][2], FakeClient)
    monkeypatch.setenv(steps.VARIABLE, f"{__name__}:_ignore")
    one.task(rows(1))
    one.commit([message()], 1)
    assert isinstance(protocol.tasks[1][2], FailpointClient)
    assert isinstance(protocol.commits[1][2], FailpointClient)


def _ignore(_failpoint: str) -> None:
    pass


def test_commit_does_not_plan(protocol: Steps) -> None:
    a_write().commit([message(), message()], 12)
    ((messages, offsets, _client),) = protocol.commits
    assert (len(messages), offsets, protocol.planned) == (2, None, [])


def test_commit_gets_missing_results(protocol: Steps) -> None:
    a_write().commit([message(), None], 12)
    ((messages, _offsets, _client),) = protocol.commits
    assert messages[1] is None


def write_offsets(checkpoint: Path, batch_id: int, line: str) -> None:
    (checkpoint / "offsets").mkdir(parents=True)
    (checkpoint / "offsets" / str(batch_id)).write_text(f"v1\n{{}}\n{line}")


def test_commit_gets_the_source_offsets_of_the_batch(protocol: Steps, tmp_path: Path) -> None:
    write_offsets(tmp_path, 12, '{"t":{"0":5}}')
    group = {"commitOffsets": "true", "kafka.group.id": "g"}
    for given in ({}, group):
        a_write(checkpointLocation=str(tmp_path), **given).commit([message()], 12)
    alone, grouped = (offsets for _, offsets, _ in protocol.commits)
    assert alone == grouped
    assert alone is not None
    assert list(alone.offsets.values()) == [5]


def test_unreadable_offsets_are_only_an_error_with_a_group(protocol: Steps, tmp_path: Path) -> None:
    a_write(checkpointLocation=str(tmp_path)).commit([message()], 12)
    a_write(checkpointLocation="s3://bucket/c").commit([message()], 12)
    assert [offsets for _, offsets, _ in protocol.commits] == [None, None]
    group = {"commitOffsets": "true", "kafka.group.id": "g"}
    with pytest.raises(CheckpointError, match="offsets/12"):
        a_write(checkpointLocation=str(tmp_path), **group).commit([message()], 12)
    assert len(protocol.commits) == 2, "a commit without all results decides nothing"


def test_failed_commit_is_raised(protocol: Steps) -> None:
    protocol.failure = BatchNotCommittedError("no row of the batch will become visible")
    with pytest.raises(BatchNotCommittedError):
        a_write().commit([message()], 1)


def test_abort_gets_all_messages_and_never_raises(
    protocol: Steps, caplog: pytest.LogCaptureFixture
) -> None:
    protocol.failure = BrokerUnreachableError("gone")
    with caplog.at_level(logging.WARNING):
        a_write().abort([None, message(), None])
    assert [len(messages) for messages in protocol.aborts] == [3]
    assert "'x'" in caplog.text
    assert "gone" in caplog.text


def test_counted_rows_are_not_new_rows() -> None:
    counted = AlreadyCommitted(
        **{
            name: getattr(message(), name)
            for name in (
                "task",
                "owner",
                "version",
                "generation",
                "commit_partition",
                "last_number",
            )
        },
        rows_by_topic={"t": 5},
        decision_number=1,
        totals=RowTotals(row_count=5),
    )
    assert new_rows([message(rows_by_topic={"t": 2}), None, counted]) == [{"t": 2}]
