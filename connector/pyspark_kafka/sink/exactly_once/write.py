"""What Spark's writers share: planning once, which task this is, and a client for each step.

Purpose: the protocol's steps behind three calls: a write that is pickled and used in tasks, and
`commit` and `abort`, which know no more than options and messages. Invariant: planning is done
where a write is first pickled, once, and travels with it; making a write talks to no broker, since
Spark makes one in the process that commits, too. What it must not know: what the steps do.

Spark pickles a writer to carry it to its tasks (twice), and in a batch job on to the process that
commits. It does not pickle the one that it makes to commit a micro-batch. So pickling is the only
moment that comes before all tasks and not again after them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pickle import PicklingError
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_kafka.client.pool import ClientPool
from pyspark_kafka.errors import ExactlyOnceError, PysparkKafkaError
from pyspark_kafka.options.values import ClientOptions, ExactlyOnce, SinkOptions
from pyspark_kafka.sink.columns import check_columns
from pyspark_kafka.sink.exactly_once.decisions import BATCH_JOB
from pyspark_kafka.sink.exactly_once.messages import AlreadyCommitted, Task, TaskMessage
from pyspark_kafka.sink.exactly_once.names import is_run
from pyspark_kafka.sink.exactly_once.planning import Plan
from pyspark_kafka.sink.exactly_once.steps import VARIABLE
from pyspark_kafka.worker import freeze_garbage_collector

if TYPE_CHECKING:
    from pyspark_kafka.client.transactional_port import TransactionalClient
    from pyspark_kafka.sink.exactly_once.source_offsets import SourceOffsets

log = logging.getLogger(__name__)

_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"
_RUN: Final = "spark.jobGroup.id"
"""Spark's local properties of a micro-batch's tasks; its job group is the run of the query."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan:
    """What planning gives to tasks. `job` is a token of this one, which a batch job goes by."""

    plan: Plan
    job: str


class ExactlyOnceWrite:
    """Implements `sink.writers.Write`; pickling it runs planning, unless that has run."""

    def __init__(self, options: SinkOptions, schema: StructType, *, is_streaming: bool) -> None:
        self.options = options
        self.schema = schema
        self._is_streaming = is_streaming
        self._planned: JobPlan | None = None

    @classmethod
    def of(
        cls, options: SinkOptions, schema: StructType, *, is_streaming: bool
    ) -> ExactlyOnceWrite:
        """Raises `SchemaError` and `OptionError` for what can be told without a broker."""
        from pyspark_kafka.client.factory import check_transactional  # noqa: PLC0415

        check_columns(schema, options.topic)
        check_transactional(options.client)
        exactly_once = options.exactly_once
        if exactly_once is not None and exactly_once.group_id is not None:
            from pyspark_kafka.sink.exactly_once.source_offsets import check_store  # noqa: PLC0415

            check_store(str(exactly_once.checkpoint))
        return cls(options, schema, is_streaming=is_streaming)

    def __getstate__(self) -> dict[str, Any]:
        try:
            return {**self.__dict__, "_planned": self._plan()}
        except PysparkKafkaError as error:
            # Spark hands this class on as it is, and others as something that cannot be serialised.
            raise PicklingError(f"{type(error).__name__}: {error}") from error

    @property
    def exactly_once(self) -> ExactlyOnce:
        """The options that made this write be asked for."""
        options = self.options.exactly_once
        assert options is not None
        return options

    def _plan(self) -> JobPlan:
        if self._planned is None:
            from pyspark_kafka.sink.exactly_once.planning import plan  # noqa: PLC0415

            with _client(self.options.client) as client:
                planned = plan(client, self.exactly_once)
            self._planned = JobPlan(plan=planned, job=uuid4().hex)
        return self._planned

    def task(self, batches: Iterable[pa.RecordBatch]) -> TaskMessage:
        """Write the rows of the task that this process runs; raises what the step raises."""
        from pyspark_kafka.sink.exactly_once.task import write_task  # noqa: PLC0415

        planned, context = self._planned, TaskContext.get()
        assert planned is not None, "tasks get a write that was pickled"
        assert context is not None, "rows are written by tasks of Spark"
        task = self._streaming_task(context) if self._is_streaming else self._job_task(context)
        with _client(self.options.client) as client:
            message = write_task(
                batches, plan=planned.plan, task=task, options=self.options, client=client
            )
        freeze_garbage_collector()
        return message

    def _job_task(self, context: TaskContext) -> Task:
        assert self._planned is not None
        batch_id = self.exactly_once.batch_id
        job = self._planned.job
        return _task(context, job if batch_id is None else BATCH_JOB, batch_id, job)

    def _streaming_task(self, context: TaskContext) -> Task:
        query_id, batch_id, run = (
            context.getLocalProperty(name) for name in (_QUERY_ID, _BATCH_ID, _RUN)
        )
        if not query_id or not batch_id or not batch_id.isdecimal() or not run or not is_run(run):
            raise ExactlyOnceError(
                "Spark did not say which query and micro-batch a task is of: its local properties "
                f"{_QUERY_ID!r}, {_BATCH_ID!r} and {_RUN!r} are {query_id!r}, {batch_id!r} and "
                f"{run!r}. Nothing was written. Do not change the job group of a streaming query, "
                "and use a trigger that makes micro-batches"
            )
        return _task(context, query_id, int(batch_id), run)

    def commit(
        self, messages: Sequence[WriterCommitMessage | None], batch_id: int | None = None
    ) -> list[Mapping[str, int]]:
        """Commit what all tasks have written. `batch_id` is a micro-batch's.

        Raises errors of `ExactlyOnceError`, which say whether anything was decided.
        """
        from pyspark_kafka.sink.exactly_once.commit import commit  # noqa: PLC0415

        offsets = None if batch_id is None else self._source_offsets(batch_id)
        with _client(self.options.client) as client:
            commit(client, self.exactly_once, messages, offsets=offsets)
        return new_rows(messages)

    def _source_offsets(self, batch_id: int) -> SourceOffsets | None:
        """Of the micro-batch, where they are needed or easily had."""
        options = self.exactly_once
        if options.checkpoint is None:
            return None
        from pyspark_kafka.sink.exactly_once.source_offsets import (  # noqa: PLC0415
            read_source_offsets,
        )

        if options.group_id is not None:
            return read_source_offsets(options.checkpoint, batch_id)
        if "://" in options.checkpoint and not options.checkpoint.startswith("file:"):
            return None  # a comparison alone is not worth a look at a distant store
        try:
            return read_source_offsets(options.checkpoint, batch_id)
        except PysparkKafkaError as error:
            log.info("replayed_number are compared without the offsets of their sources: %s", error)
            return None

    def abort(
        self,
        messages: Sequence[WriterCommitMessage | None],
        batch_id: int | None = None,  # noqa: ARG002
    ) -> None:
        """Clean up behind a failed batch; never raises, so that Spark tells why it failed."""
        from pyspark_kafka.sink.exactly_once.abort import abort  # noqa: PLC0415

        try:
            with _client(self.options.client) as client:
                abort(client, self.exactly_once, messages)
        except Exception:
            log.warning(
                "a failed batch under transactionalId '%s' could not be cleaned up; the next start "
                "of a batch does that, or the transactions' timeout",
                self.exactly_once.transactional_id,
                exc_info=True,
            )


def new_rows(messages: Sequence[WriterCommitMessage | None]) -> list[Mapping[str, int]]:
    """Rows by topic of each task that has written, which a replayed one has not."""
    answered = [message for message in messages if isinstance(message, TaskMessage)]
    return [m.rows_by_topic for m in answered if not isinstance(m, AlreadyCommitted)]


def _task(context: TaskContext, query_id: str, batch_id: int | None, run: str) -> Task:
    return Task(
        query_id=query_id,
        batch_id=batch_id,
        run=run,
        partition=context.partitionId(),
        attempt=context.attemptNumber(),
        task_attempt_id=context.taskAttemptId(),
    )


@cache
def _pool() -> ClientPool[TransactionalClient]:
    """Of this process. Spark reuses those of tasks, and those that plan and commit."""
    from pyspark_kafka.client.factory import open_transactional  # noqa: PLC0415

    return ClientPool(open_transactional)


@contextmanager
def _client(options: ClientOptions) -> Iterator[TransactionalClient]:
    """A client for one step; connecting costs, so that it is kept for the next."""
    with _pool().lend(options) as client:
        yield _watched(client)


def _watched(client: TransactionalClient) -> TransactionalClient:
    """The client itself, unless tests want its requests to be failpoints."""
    if not os.environ.get(VARIABLE):
        return client
    from pyspark_kafka.sink.exactly_once.failpoint_client import FailpointClient  # noqa: PLC0415

    return FailpointClient(client)
