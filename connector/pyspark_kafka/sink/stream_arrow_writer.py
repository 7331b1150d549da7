"""The streaming writer for Spark 4.1 and later, which hands over Arrow batches.

In a module of its own because its base class does not exist before. What it must not know: clients.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter

from pyspark_kafka.sink.writer import StreamCommits, Written

if TYPE_CHECKING:
    from pyspark_kafka.sink.writer import WritePlan


class StreamArrowWriter(StreamCommits, DataSourceStreamArrowWriter):
    """Appends a micro-batch's rows."""

    def __init__(self, write: WritePlan) -> None:
        self._write = write

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return self._write.task(iterator)
