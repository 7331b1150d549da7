"""Defines Spark's batch and streaming writers. Each writer delegates to a `Write`.

Invariant: a writer is created only after all checks that do not require a broker have succeeded.

Spark 4.0 and later pass Arrow batches to batch writers, but only Spark 4.1 and later pass them to
streaming writers. On Spark 4.0, the streaming writer converts the rows to Arrow batches.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import pyarrow as pa
import pyspark.sql.datasource
from pyspark.sql import Row
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamWriter,
    DataSourceWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from pyspark_kafka.options.values import SinkOptions
from pyspark_kafka.sink.at_least_once.write import AtLeastOnceWrite, format_rows
from pyspark_kafka.sink.row_batches import arrow_batches
from pyspark_kafka.tracebacks import short_traceback

log = logging.getLogger(__name__)

Messages = Sequence[WriterCommitMessage | None]
"""The results of all tasks of a batch. The result of a failed task is None."""


class Write(Protocol):
    """Writes the rows of one micro-batch or batch job. Spark pickles this object for the tasks."""

    @property
    def schema(self) -> StructType: ...

    def task(self, batches: Iterable[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task."""

    @short_traceback
    def commit(self, messages: Messages, batch_id: int | None) -> list[Mapping[str, int]]:
        """Commit the rows of all tasks.

        Returns the row counts by topic for each task that has written rows.
        """

    @short_traceback
    def abort(self, messages: Messages, batch_id: int | None) -> None:
        """Clean up after a failed batch."""


def batch_writer(options: SinkOptions, schema: StructType) -> DataSourceWriter:
    """Return Spark's batch writer, or raise `SchemaError` or `OptionError`."""
    return BatchWriter(_write(options, schema, is_streaming=False))


def stream_writer(options: SinkOptions, schema: StructType) -> DataSourceStreamWriter:
    """Return Spark's streaming writer, or raise `SchemaError` or `OptionError`."""
    write = _write(options, schema, is_streaming=True)
    return StreamArrowWriter(write) if _takes_arrow() else StreamRowWriter(write)


def _takes_arrow() -> bool:
    return hasattr(pyspark.sql.datasource, "DataSourceStreamArrowWriter")


def _write(options: SinkOptions, schema: StructType, *, is_streaming: bool) -> Write:
    if options.exactly_once is None:
        return AtLeastOnceWrite.of(options, schema)
    from pyspark_kafka.sink.exactly_once.write import ExactlyOnceWrite  # noqa: PLC0415

    return ExactlyOnceWrite.of(options, schema, is_streaming=is_streaming)


class BatchWriter(DataSourceArrowWriter):
    """The writer for batch jobs. It appends the rows of a DataFrame."""

    def __init__(self, write: Write) -> None:
        self._write = write

    @short_traceback
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._write.task(iterator)

    @short_traceback
    def commit(self, messages: Messages) -> None:
        log.info("Batch written: %s", format_rows(self._write.commit(messages, None)))

    @short_traceback
    def abort(self, messages: Messages) -> None:
        self._write.abort(messages, None)


class _StreamCommits(DataSourceStreamWriter):
    """The methods that both streaming writers run on the driver."""

    def __init__(self, write: Write) -> None:
        self._write = write

    @short_traceback
    def commit(self, messages: Messages, batchId: int) -> None:  # noqa: N803
        rows = self._write.commit(messages, batchId)
        log.info("Micro-batch %d written: %s", batchId, format_rows(rows))

    @short_traceback
    def abort(self, messages: Messages, batchId: int) -> None:  # noqa: N803
        self._write.abort(messages, batchId)


class StreamRowWriter(_StreamCommits):
    """The streaming writer for Spark 4.0, which passes rows."""

    @short_traceback
    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        return self._write.task(arrow_batches(iterator, self._write.schema))


if _takes_arrow():

    class StreamArrowWriter(_StreamCommits, pyspark.sql.datasource.DataSourceStreamArrowWriter):
        """The streaming writer for Spark 4.1 and later, which pass Arrow batches."""

        @short_traceback
        def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
            return self._write.task(iterator)
