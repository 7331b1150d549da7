"""The unit of work that Spark carries from driver to executor, and what the executor does with it.

Purpose: the one place where both readers meet: `KafkaInputPartition` and `read_partition`.
Invariant: nothing with a connection is pickled; clients come from this worker's pool.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from pyspark_kafka.client.pool import ClientPool
from pyspark_kafka.client.port import KafkaReads
from pyspark_kafka.columns import SOURCE_SCHEMA
from pyspark_kafka.options.values import SourceOptions
from pyspark_kafka.source.fetching import read_range
from pyspark_kafka.source.ranges import PlannedRange
from pyspark_kafka.worker import freeze_garbage_collector


class KafkaInputPartition(InputPartition):
    """One range of one topic partition."""

    def __init__(self, plan: PlannedRange) -> None:
        super().__init__(plan)
        self.plan = plan


@cache
def _pool() -> ClientPool[KafkaReads]:
    from pyspark_kafka.client.factory import open_client  # noqa: PLC0415

    return ClientPool(partial(open_client, is_checked=True))


def read_partition(
    partition: InputPartition, columns: tuple[str, ...], options: SourceOptions
) -> Iterator[pa.RecordBatch]:
    """The records of a partition; none for the empty one that Spark makes where a plan is empty."""
    if not isinstance(partition, KafkaInputPartition):
        return
    schema = pa.schema([SOURCE_SCHEMA.field(name) for name in columns])
    with _pool().lend(options.client) as client:
        for batch in read_range(client, partition.plan, columns, options):
            yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)
    freeze_garbage_collector()
