"""Spark's writers, batch and streaming, over one `Write`.

Purpose: the classes that Spark calls. Invariant: everything that can be checked without a broker
is checked when a writer is created. Must not know: clients, how rows are written.

Spark passes Arrow batches to batch writers since 4.0 and to streaming writers since 4.1. Before
that, streaming rows are converted to Arrow batches here.
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

log = logging.getLogger(__name__)

Messages = Sequence[WriterCommitMessage | None]
"""The results of a batch's tasks; None for a task that failed."""


class Write(Protocol):
    """The write of one micro-batch or job, pickled to its tasks."""

    @property
    def schema(self) -> StructType: ...

    def task(self, batches: Iterable[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task."""

    def commit(self, messages: Messages, batch_id: int | None) -> list[Mapping[str, int]]:
        """Commit the rows of all tasks; return the rows by topic of each task that wrote any."""

    def abort(self, messages: Messages, batch_id: int | None) -> None:
        """Clean up after a failed batch."""


def batch_writer(options: SinkOptions, schema: StructType) -> DataSourceWriter:
    """Return Spark's batch writer; raises `SchemaError` and `OptionError`."""
    return BatchWriter(_write(options, schema, is_streaming=False))


def stream_writer(options: SinkOptions, schema: StructType) -> DataSourceStreamWriter:
    """Return Spark's streaming writer; raises `SchemaError` and `OptionError`."""
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
    """Appends a DataFrame's rows."""

    def __init__(self, write: Write) -> None:
        self._write = write

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._write.task(iterator)

    def commit(self, messages: Messages) -> None:
        log.info("Batch written: %s", format_rows(self._write.commit(messages, None)))

    def abort(self, messages: Messages) -> None:
        self._write.abort(messages, None)


class _StreamCommits(DataSourceStreamWriter):
    """The driver's part of both streaming writers."""

    def __init__(self, write: Write) -> None:
        self._write = write

    def commit(self, messages: Messages, batchId: int) -> None:  # noqa: N803
        rows = self._write.commit(messages, batchId)
        log.info("Micro-batch %d written: %s", batchId, format_rows(rows))

    def abort(self, messages: Messages, batchId: int) -> None:  # noqa: N803
        self._write.abort(messages, batchId)


class StreamRowWriter(_StreamCommits):
    """Appends a micro-batch's rows where Spark passes rows (4.0)."""

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        return self._write.task(arrow_batches(iterator, self._write.schema))


if _takes_arrow():

    class StreamArrowWriter(_StreamCommits, pyspark.sql.datasource.DataSourceStreamArrowWriter):
        """Appends a micro-batch's rows where Spark passes Arrow batches (4.1 and later)."""

        def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
            return self._write.task(iterator)
