"""Implements `sink.writers.Write` for exactly-once writes: planning, tasks, commit and abort.

Connects the protocol's steps to Spark's calls. Spark pickles a writer to send it to the tasks, and
does so twice. In a batch job, Spark also pickles the writer to send it to the process that commits.
Spark does not pickle the writer that it creates to commit a micro-batch. Pickling is therefore the
only call that always precedes all tasks and never follows a task. Invariant: planning runs once,
when the writer and its `Write` are first pickled, and the plan is pickled with them. Creating a
`Write` sends no requests to brokers, because Spark also creates a `Write` in the process that
commits. `commit` and `abort` receive only options and messages.
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
"""Local properties that Spark sets for the tasks of a micro-batch. The job group is the run id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan:
    """The plan of one batch. `job` is a token that identifies a batch job."""

    plan: Plan
    job: str


class ExactlyOnceWrite:
    """An exactly-once implementation of `sink.writers.Write`.

    The batch is planned when the object is pickled for the first time.
    """

    def __init__(self, options: SinkOptions, schema: StructType, *, is_streaming: bool) -> None:
        self.options = options
        self.schema = schema
        self._is_streaming = is_streaming
        self._planned: JobPlan | None = None

    @classmethod
    def of(
        cls, options: SinkOptions, schema: StructType, *, is_streaming: bool
    ) -> ExactlyOnceWrite:
        """Run all checks that do not require a broker. Raises `SchemaError` and `OptionError`."""
        from pyspark_kafka.client.factory import check_transactional_settings  # noqa: PLC0415

        check_columns(schema, options.topic)
        check_transactional_settings(options.client)
        exactly_once = options.exactly_once
        if exactly_once is not None and exactly_once.group_id is not None:
            from pyspark_kafka.sink.exactly_once.source_offsets import check_store  # noqa: PLC0415

            check_store(str(exactly_once.checkpoint))
        return cls(options, schema, is_streaming=is_streaming)

    def __getstate__(self) -> dict[str, Any]:
        try:
            return {**self.__dict__, "_planned": self._plan()}
        except PysparkKafkaError as error:
            raise _as_pickling_error(error).with_traceback(None) from None

    @property
    def exactly_once(self) -> ExactlyOnce:
        """Return the options of the exactly-once sink."""
        options = self.options.exactly_once
        assert options is not None
        return options

    def _plan(self) -> JobPlan:
        if self._planned is None:
            from pyspark_kafka.sink.exactly_once.planning import plan  # noqa: PLC0415

            with _client(self.options.client) as client:
                planned = plan(
                    client,
                    self.exactly_once,
                    is_single_job=not self._is_streaming and self.exactly_once.batch_id is None,
                )
            self._planned = JobPlan(plan=planned, job=uuid4().hex)
        return self._planned

    def task(self, batches: Iterable[pa.RecordBatch]) -> TaskMessage:
        """Write the rows of the current Spark task. Raises the same errors as `write_task`."""
        from pyspark_kafka.sink.exactly_once.task import write_task  # noqa: PLC0415

        planned, context = self._planned, TaskContext.get()
        assert planned is not None, "the write was not pickled before its tasks"
        assert context is not None, "rows are written only in Spark tasks"
        task = self._streaming_task(context) if self._is_streaming else self._job_task(context)
        with _client(self.options.client) as client:
            message = write_task(
                batches, plan=planned.plan, task=task, options=self.options, client=client
            )
        freeze_garbage_collector()
        return message

    def _job_task(self, context: TaskContext) -> Task:
        assert self._planned is not None
        batch_id, job = self.exactly_once.batch_id, self._planned.job
        if batch_id is not None:
            return _task(context, BATCH_JOB, batch_id, job)
        # A write in foreachBatch is a batch job, with the properties of its micro-batch.
        return _micro_batch_task(context) or _task(context, job, None, job)

    def _streaming_task(self, context: TaskContext) -> Task:
        task = _micro_batch_task(context)
        if task is None:
            found = {name: context.getLocalProperty(name) for name in (_QUERY_ID, _BATCH_ID, _RUN)}
            raise ExactlyOnceError(
                "Spark did not provide the query id and the batch id to a task. The local "
                f"properties of the task are {found}. Nothing was written.",
                advice="Do not change the job group of a streaming query, and use a trigger that "
                "runs micro-batches.",
                transactional_id=self.exactly_once.transactional_id,
            )
        return task

    def commit(
        self, messages: Sequence[WriterCommitMessage | None], batch_id: int | None = None
    ) -> list[Mapping[str, int]]:
        """Commit the rows of all tasks.

        `batch_id` is the id of a micro-batch, or None for a batch job.

        Raises subclasses of `ExactlyOnceError`, which report whether the batch was decided.
        """
        from pyspark_kafka.sink.exactly_once.commit import commit  # noqa: PLC0415

        offsets = None if batch_id is None else self._source_offsets(batch_id)
        with _client(self.options.client) as client:
            commit(client, self.exactly_once, messages, offsets=offsets)
        return new_rows(messages)

    def _source_offsets(self, batch_id: int) -> SourceOffsets | None:
        """Return the source offsets of the micro-batch if they are required or cheap to read.

        With `onReplayMismatch=warn`, they are required, because only the source offsets show that a
        replay with different rows has the same input.
        """
        options = self.exactly_once
        if options.checkpoint is None:
            return None
        from pyspark_kafka.sink.exactly_once.source_offsets import (  # noqa: PLC0415
            read_source_offsets,
        )

        if options.group_id is not None or not options.fail_on_replay_mismatch:
            return read_source_offsets(options.checkpoint, batch_id)
        if "://" in options.checkpoint and not options.checkpoint.startswith("file:"):
            return None  # a comparison of replays is not worth a request to a remote store
        try:
            return read_source_offsets(options.checkpoint, batch_id)
        except PysparkKafkaError as error:
            log.info(
                "If this batch is replayed, its source offsets will not be compared: %s", error
            )
            return None

    def abort(
        self,
        messages: Sequence[WriterCommitMessage | None],
        batch_id: int | None = None,  # noqa: ARG002
    ) -> None:
        """Clean up after a failed batch.

        Never raises, so that Spark reports the original failure.
        """
        from pyspark_kafka.sink.exactly_once.abort import abort  # noqa: PLC0415

        try:
            with _client(self.options.client) as client:
                abort(client, self.exactly_once, messages)
        except Exception:
            log.warning(
                "The cleanup after a failed batch with transactionalId '%s' failed. When the "
                "query starts again, it will abort the batch's transactions, unless they time out "
                "first.",
                self.exactly_once.transactional_id,
                exc_info=True,
            )


def new_rows(messages: Sequence[WriterCommitMessage | None]) -> list[Mapping[str, int]]:
    """Return the row counts by topic for each task that has written rows."""
    results = [message for message in messages if isinstance(message, TaskMessage)]
    return [r.rows_by_topic for r in results if not isinstance(r, AlreadyCommitted)]


def _micro_batch_task(context: TaskContext) -> Task | None:
    query_id, batch_id, run = (
        context.getLocalProperty(name) for name in (_QUERY_ID, _BATCH_ID, _RUN)
    )
    if not query_id or not batch_id or not batch_id.isdecimal() or not run:
        return None
    return _task(context, query_id, int(batch_id), run)


def _task(context: TaskContext, query_id: str, batch_id: int | None, run: str) -> Task:
    return Task(
        query_id=query_id,
        batch_id=batch_id,
        run=run,
        partition=context.partitionId(),
        attempt=context.attemptNumber(),
        task_attempt_id=context.taskAttemptId(),
    )


def _as_pickling_error(error: PysparkKafkaError) -> PysparkKafkaError:
    """Make `error` an instance of `PicklingError` too, and return it.

    If pickling raises any other error, Spark replaces the class and the message of the error.
    """
    kind = type(error)
    name, module = kind.__name__, kind.__module__
    error.__class__ = type(name, (kind, PicklingError), {"__module__": module})
    return error


@cache
def _pool() -> ClientPool[TransactionalClient]:
    """Return the client pool of this process, which may run many tasks or batches."""
    from pyspark_kafka.client.factory import open_transactional_client  # noqa: PLC0415

    return ClientPool(open_transactional_client)


@contextmanager
def _client(options: ClientOptions) -> Iterator[TransactionalClient]:
    """Return a context that provides a client for one step.

    The client is kept open for later steps, because connecting is slow.
    """
    with _pool().lend(options) as client:
        yield _with_failpoints(client)


def _with_failpoints(client: TransactionalClient) -> TransactionalClient:
    """Return the client, wrapped with failpoints if a test has configured them."""
    if not os.environ.get(VARIABLE):
        return client
    from pyspark_kafka.sink.exactly_once.failpoint_client import FailpointClient  # noqa: PLC0415

    return FailpointClient(client)
