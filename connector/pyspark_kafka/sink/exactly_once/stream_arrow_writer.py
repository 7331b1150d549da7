"""The streaming writer for Spark 4.1 and later, which hands over Arrow batches.

In a module of its own because its base class does not exist before. What it must not know: clients.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter

from pyspark_kafka.sink.exactly_once.messages import TaskMessage
from pyspark_kafka.sink.exactly_once.writers import StreamCommits


class StreamArrowWriter(StreamCommits, DataSourceStreamArrowWriter):
    """Appends a micro-batch's rows."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        return self._write.task(iterator)
