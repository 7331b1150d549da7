"""Writes one micro-batch or batch job at least once.

Implements the `Write` protocol of `sink.writers` without transactions. Invariant:
`AtLeastOnceWrite.of` runs all checks of the schema and the options on the driver.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_kafka.errors import counted
from pyspark_kafka.options.values import ClientOptions, SinkOptions
from pyspark_kafka.sink.columns import check_columns
from pyspark_kafka.worker import freeze_garbage_collector

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Written(WriterCommitMessage):
    """The result of a task: the number of acknowledged rows per topic."""

    rows_by_topic: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class AtLeastOnceWrite:
    """An at-least-once implementation of `sink.writers.Write`. It is pickled for the executors."""

    options: SinkOptions
    schema: StructType

    @classmethod
    def of(cls, options: SinkOptions, schema: StructType) -> AtLeastOnceWrite:
        """Check the schema and the options. Raises `SchemaError` and `OptionError`."""
        check_columns(schema, options.topic)
        # The group id has no effect on a producer, and may be random.
        _check_settings(_Settings(replace(options.client, group_id="")))
        return cls(options=options, schema=schema)

    def task(self, batches: Iterable[pa.RecordBatch]) -> Written:
        """Write the rows of one task. Raises the same errors as `write_task`."""
        # Imported locally, because only tasks need it (see `_check_settings`).
        from pyspark_kafka.sink.at_least_once.task import write_task  # noqa: PLC0415

        written = Written(
            rows_by_topic=write_task(batches, client=self.options.client, topic=self.options.topic)
        )
        freeze_garbage_collector()
        return written

    def commit(
        self,
        messages: Sequence[WriterCommitMessage | None],
        batch_id: int | None,  # noqa: ARG002
    ) -> list[Mapping[str, int]]:
        """Return the row counts per topic for each task. The rows have already been written."""
        return _rows(messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batch_id: int | None) -> None:
        """Log the number of rows that finished tasks have written.

        If Spark retries the batch, these rows are written again.
        """
        batch = "Batch" if batch_id is None else f"Micro-batch {batch_id}"
        rows = format_rows(_rows(messages))
        log.warning("%s failed. Rows written by its finished tasks: %s", batch, rows)


@dataclass(frozen=True)
class _Settings:
    """Client options as a cache key.

    A streaming query creates a writer for every micro-batch, but checks its client options only
    once.
    """

    options: ClientOptions

    def __hash__(self) -> int:
        return hash((self.options.bootstrap_servers, tuple(sorted(self.options.kafka.items()))))


@lru_cache(maxsize=16)
def _check_settings(settings: _Settings) -> None:
    """Check the settings with the engine. Raises `OptionError`."""
    # Imported locally: the process that commits loads this module, but does not check settings.
    from pyspark_kafka.client.factory import check_settings  # noqa: PLC0415

    check_settings(settings.options, role="producer")


def _rows(messages: Sequence[WriterCommitMessage | None]) -> list[Mapping[str, int]]:
    return [message.rows_by_topic for message in messages if isinstance(message, Written)]


def format_rows(rows_by_topic: Iterable[Mapping[str, int]]) -> str:
    """Return the row counts by topic as text: `3 rows to a, 1 row to b`, or `none`."""
    rows = Counter[str]()
    for of_task in rows_by_topic:
        rows.update(of_task)
    return (
        ", ".join(f"{counted(rows[topic], 'row')} to {topic}" for topic in sorted(rows)) or "none"
    )
