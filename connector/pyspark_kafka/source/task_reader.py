"""Reads the ranges of a Spark task on an executor, for batch and streaming reads.

Invariant: connections are never pickled, and clients are kept in a pool in the Python worker.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from functools import cache, partial

import pyarrow as pa

from pyspark_kafka.client.pool import ClientPool
from pyspark_kafka.client.port import KafkaReadClient
from pyspark_kafka.columns import SOURCE_SCHEMA
from pyspark_kafka.options.values import SourceOptions
from pyspark_kafka.source.range_reader import read_range
from pyspark_kafka.source.ranges import PlannedRange
from pyspark_kafka.tracebacks import short_traceback
from pyspark_kafka.worker import freeze_garbage_collector


@cache
def _pool() -> ClientPool[KafkaReadClient]:
    from pyspark_kafka.client.factory import open_client  # noqa: PLC0415

    return ClientPool(partial(open_client, is_checked=True))


@short_traceback
def read_task(
    ranges: Callable[[KafkaReadClient], Iterable[PlannedRange]],
    columns: tuple[str, ...],
    options: SourceOptions,
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a task. `ranges` returns the ranges that the task must read."""
    with _pool().lend(options.client) as client:
        yield from read_ranges(client, ranges(client), columns, options)
    freeze_garbage_collector()


def read_ranges(
    client: KafkaReadClient,
    ranges: Iterable[PlannedRange],
    columns: tuple[str, ...],
    options: SourceOptions,
) -> Generator[pa.RecordBatch, None, None]:
    """Yield the records of these ranges. The batches have the schema that Spark expects."""
    schema = pa.schema([SOURCE_SCHEMA.field(name) for name in columns])
    for planned in ranges:
        for batch in read_range(client, planned, columns, options):
            yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)
