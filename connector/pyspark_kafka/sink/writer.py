"""Spark's writers, batch and streaming.

Purpose: the thin shell that Spark calls; the work is `task.write_task`. Invariant: everything that
can be refused on the driver is refused when a writer is made. At-least-once: rows of failed
attempts stay in the topic, and a batch that Spark runs again is written again. Writers for
`transactionalId` are made in `exactly_once.writers`. What it must not know: clients.

Where Spark hands over Arrow (batch since 4.0, streaming since 4.1) the Arrow writers serve;
before, rows are put into Arrow batches here.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

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

from pyspark_kafka.options import ClientOptions, SinkOptions
from pyspark_kafka.sink.columns import check_columns
from pyspark_kafka.sink.row_batches import arrow_batches
from pyspark_kafka.worker import settle

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Written(WriterCommitMessage):
    """What a task reports: confirmed rows by topic."""

    rows_by_topic: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class WritePlan:
    """The plan of a write, pickled to the executors."""

    options: SinkOptions
    schema: StructType

    @classmethod
    def of(cls, options: SinkOptions, schema: StructType) -> WritePlan:
        """Raises `SchemaError` and `OptionError`."""
        check_columns(schema, options.topic)
        _check_settings(_Settings(options.client))
        return cls(options=options, schema=schema)

    def task(self, batches: Iterable[pa.RecordBatch]) -> Written:
        # Of tasks alone, see `check_settings`.
        from pyspark_kafka.sink.task import write_task  # noqa: PLC0415

        written = Written(
            rows_by_topic=write_task(batches, client=self.options.client, topic=self.options.topic)
        )
        settle()
        return written


@dataclass(frozen=True)
class _Settings:
    """Client options that can be a key of a cache: a streaming query makes writers all the time."""

    options: ClientOptions

    def __hash__(self) -> int:
        return hash((self.options.bootstrap_servers, tuple(sorted(self.options.kafka.items()))))


@lru_cache(maxsize=16)
def _check_settings(settings: _Settings) -> None:
    """Have the engine judge the settings; raises `OptionError`."""
    # Of planning alone: Spark commits in a process of its own, which loads this module, too.
    from pyspark_kafka.client.factory import check_settings  # noqa: PLC0415

    check_settings(settings.options, role="producer")


def batch_writer(options: SinkOptions, schema: StructType) -> DataSourceWriter:
    """Raises `SchemaError` and `OptionError` for what cannot be written."""
    if options.exactly_once is not None:
        from pyspark_kafka.sink.exactly_once import writers  # noqa: PLC0415

        return writers.batch_writer(options, schema)
    return BatchWriter(WritePlan.of(options, schema))


def stream_writer(options: SinkOptions, schema: StructType) -> DataSourceStreamWriter:
    """Raises `SchemaError` and `OptionError` for what cannot be written."""
    if options.exactly_once is not None:
        from pyspark_kafka.sink.exactly_once import writers  # noqa: PLC0415

        return writers.stream_writer(options, schema)
    write = WritePlan.of(options, schema)
    if hasattr(pyspark.sql.datasource, "DataSourceStreamArrowWriter"):
        from pyspark_kafka.sink.stream_arrow_writer import StreamArrowWriter  # noqa: PLC0415

        return StreamArrowWriter(write)
    return StreamRowWriter(write)


class BatchWriter(DataSourceArrowWriter):
    """Appends a DataFrame's rows."""

    def __init__(self, write: WritePlan) -> None:
        self._write = write

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return self._write.task(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        log_written("batch", _rows(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _log_failed("batch", messages)


class StreamCommits(DataSourceStreamWriter):
    """The driver's part of both streaming writers."""

    def commit(
        self,
        messages: Sequence[WriterCommitMessage | None],
        batchId: int,  # noqa: N803
    ) -> None:
        log_written(f"micro-batch {batchId}", _rows(messages))

    def abort(
        self,
        messages: Sequence[WriterCommitMessage | None],
        batchId: int,  # noqa: N803
    ) -> None:
        _log_failed(f"micro-batch {batchId}", messages)


class StreamRowWriter(StreamCommits):
    """Appends a micro-batch's rows, where Spark cannot hand over Arrow."""

    def __init__(self, write: WritePlan) -> None:
        self._write = write

    def write(self, iterator: Iterator[Row]) -> Written:
        return self._write.task(arrow_batches(iterator, self._write.schema))


def log_written(what: str, rows_by_topic: Iterable[Mapping[str, int]]) -> None:
    """Say how many rows of a finished batch are in which topic, out of its tasks' counts."""
    log.info("%s written: %s", what, _summary(rows_by_topic))


def _log_failed(what: str, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Say what a failed batch leaves: rows of finished tasks stay, and come again in a retry."""
    written = _summary(_rows(messages))
    log.warning("%s failed; its finished tasks have written: %s", what, written)


def _rows(messages: Sequence[WriterCommitMessage | None]) -> Iterator[Mapping[str, int]]:
    return (message.rows_by_topic for message in messages if isinstance(message, Written))


def _summary(rows_by_topic: Iterable[Mapping[str, int]]) -> str:
    rows = Counter[str]()
    for counted in rows_by_topic:
        rows.update(counted)
    return ", ".join(f"{count} rows to {topic}" for topic, count in sorted(rows.items())) or "none"
