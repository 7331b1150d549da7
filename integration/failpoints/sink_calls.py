"""Calls the sink as Spark's Python processes do.

Each call does one of the following: it creates and pickles a writer, writes a partition, commits,
or aborts. Invariant: as in Spark, calls exchange only pickled bytes.

The calls follow `write_into_data_source`, `commit_data_source_write` and
`python_streaming_sink_runner` of `pyspark.sql.worker`. In a streaming query, the process that
commits creates its own writer from the options. In a batch job, it receives the writer that was
pickled during planning.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.serializers import CPickleSerializer
from pyspark.sql.datasource import CaseInsensitiveDict, DataSourceStreamWriter, DataSourceWriter
from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType

from pyspark_kafka.datasource import KafkaDataSource

_SCHEMA: Final = StructType(
    [StructField("value", BinaryType()), StructField("partition", IntegerType())]
)
_COLUMNS: Final = pa.schema([("value", pa.binary()), ("partition", pa.int32())])
_ROWS_PER_BATCH: Final = 2
_PICKLES: Final[Any] = CPickleSerializer()
"""Spark's pickler, which supports closures."""

Writer = DataSourceWriter | DataSourceStreamWriter


class RowsFailedError(Exception):
    """The error in a task whose rows cannot be computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sink:
    """The options that a user sets on `writeStream` or `write`."""

    options: Mapping[str, str]
    is_streaming: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskInput:
    """The input of a task attempt.

    `properties` are the local properties of the Spark task. Each row consists of a value and a
    Kafka partition. If `fails_after` is set, the task attempt fails after this number of rows.
    """

    partition: int
    attempt: int
    task_attempt_id: int
    properties: Mapping[str, str] = field(default_factory=dict)
    rows: Sequence[tuple[bytes, int]]
    fails_after: int | None = None


def plan(sink: Sink) -> bytes:
    """Create a writer, and pickle it for the tasks and for the commit of a batch job."""
    writer = _create(sink)

    def write(rows: Iterator[pa.RecordBatch]) -> Any:
        # Spark also sends a closure over the writer to the tasks.
        return writer.write(rows)

    for_tasks = _PICKLES.dumps(write)
    for_commit = _PICKLES.dumps(writer)
    return bytes(_PICKLES.dumps((for_tasks, for_commit)))


def write(planned: bytes, task: TaskInput) -> bytes:
    """Write rows; return the pickled commit message."""
    for_tasks, _ = _PICKLES.loads(planned)
    context = TaskContext()
    context._partitionId = task.partition
    context._attemptNumber = task.attempt
    context._taskAttemptId = task.task_attempt_id
    context._stageId = 0
    context._localProperties = dict(task.properties)
    TaskContext._setTaskContext(context)
    message = _PICKLES.loads(for_tasks)(_batches(task))
    return bytes(_PICKLES.dumps(message))


def commit(sink: Sink, planned: bytes, messages: Sequence[bytes | None], batch_id: int) -> bytes:
    """Commit a batch; return empty bytes."""
    writer, loaded = _load(sink, planned, messages)
    if sink.is_streaming:
        writer.commit(loaded, batch_id)
    else:
        writer.commit(loaded)
    return b""


def abort(sink: Sink, planned: bytes, messages: Sequence[bytes | None], batch_id: int) -> bytes:
    """Abort a batch; return empty bytes. The messages of failed tasks are None."""
    writer, loaded = _load(sink, planned, messages)
    if sink.is_streaming:
        writer.abort(loaded, batch_id)
    else:
        writer.abort(loaded)
    return b""


def _create(sink: Sink) -> Writer:
    source = KafkaDataSource(CaseInsensitiveDict(sink.options))
    if sink.is_streaming:
        return source.streamWriter(_SCHEMA, overwrite=False)
    return source.writer(_SCHEMA, overwrite=False)


def _load(sink: Sink, planned: bytes, messages: Sequence[bytes | None]) -> tuple[Any, list[Any]]:
    if sink.is_streaming:
        writer: Any = _create(sink)
    else:
        writer = _PICKLES.loads(_PICKLES.loads(planned)[1])
    return writer, [None if message is None else _PICKLES.loads(message) for message in messages]


def _batches(task: TaskInput) -> Iterator[pa.RecordBatch]:
    rows = task.rows if task.fails_after is None else task.rows[: task.fails_after]
    for start in range(0, len(rows), _ROWS_PER_BATCH):
        values, partitions = zip(*rows[start : start + _ROWS_PER_BATCH], strict=True)
        columns = [pa.array(values, pa.binary()), pa.array(partitions, pa.int32())]
        yield pa.RecordBatch.from_arrays(columns, schema=_COLUMNS)
    if task.fails_after is not None:
        raise RowsFailedError(f"computing rows failed after {task.fails_after} rows")
