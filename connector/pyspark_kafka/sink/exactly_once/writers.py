"""Spark's writers for rows that are written exactly once.

Purpose: the thin shell that Spark calls; the work is `write.Write`. Invariant: as in `sink.writer`,
all that can be refused without a broker is refused when a writer is made. What it must not know:
clients, the protocol.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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

from pyspark_kafka.options import SinkOptions
from pyspark_kafka.sink.exactly_once.messages import TaskMessage
from pyspark_kafka.sink.exactly_once.write import Write, new_rows
from pyspark_kafka.sink.row_batches import arrow_batches
from pyspark_kafka.sink.writer import log_written


def batch_writer(options: SinkOptions, schema: StructType) -> DataSourceWriter:
    """Raises `SchemaError` and `OptionError` for what cannot be written."""
    return BatchWriter(Write.of(options, schema, is_streaming=False))


def stream_writer(options: SinkOptions, schema: StructType) -> DataSourceStreamWriter:
    """Raises `SchemaError` and `OptionError` for what cannot be written."""
    write = Write.of(options, schema, is_streaming=True)
    if hasattr(pyspark.sql.datasource, "DataSourceStreamArrowWriter"):
        from pyspark_kafka.sink.exactly_once.stream_arrow_writer import (  # noqa: PLC0415
            StreamArrowWriter,
        )

        return StreamArrowWriter(write)
    return StreamRowWriter(write)


class BatchWriter(DataSourceArrowWriter):
    """Appends a DataFrame's rows."""

    def __init__(self, write: Write) -> None:
        self._write = write

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        return self._write.task(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._write.commit(messages)
        log_written("batch", new_rows(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._write.abort(messages)


class StreamCommits(DataSourceStreamWriter):
    """The driver's part of both streaming writers."""

    def __init__(self, write: Write) -> None:
        self._write = write

    def commit(
        self,
        messages: Sequence[WriterCommitMessage | None],
        batchId: int,  # noqa: N803
    ) -> None:
        self._write.commit(messages, batchId)
        log_written(f"micro-batch {batchId}", new_rows(messages))

    def abort(
        self,
        messages: Sequence[WriterCommitMessage | None],
        batchId: int,  # noqa: ARG002, N803
    ) -> None:
        self._write.abort(messages)


class StreamRowWriter(StreamCommits):
    """Appends a micro-batch's rows, where Spark cannot hand over Arrow."""

    def write(self, iterator: Iterator[Row]) -> TaskMessage:
        return self._write.task(arrow_batches(iterator, self._write.schema))
