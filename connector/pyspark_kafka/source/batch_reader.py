"""What Spark calls for `spark.read`: planning on the driver, reading on executors."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_kafka.options.values import FilterPushdown, SourceOptions
from pyspark_kafka.source.offset_reader import OffsetReader
from pyspark_kafka.source.partition import KafkaInputPartition, read_partition
from pyspark_kafka.source.planner import plan_batch
from pyspark_kafka.source.pushdown import EVERYTHING, prune
from pyspark_kafka.source.pushdown_filters import condition_of
from pyspark_kafka.source.schema import projection
from pyspark_kafka.source.spark_features import FILTER_PUSHDOWN, SCANS_KEPT_APART

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

log = logging.getLogger(__name__)


class KafkaBatchReader(DataSourceReader):
    """Pickled to the executors with its options; opens clients where it needs them."""

    def __init__(self, schema: StructType, options: SourceOptions) -> None:
        self._columns = projection(schema, include_headers=options.include_headers)
        self._options = options
        self._pruning = EVERYTHING

    def partitions(self) -> list[InputPartition]:
        from pyspark_kafka.client.factory import open_client  # noqa: PLC0415

        with open_client(self._options.client) as client:
            reader = OffsetReader(client, self._options)
            plans = plan_batch(reader, self._options, self._pruning)
        return [KafkaInputPartition(plan) for plan in plans]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition, self._columns, self._options)


class KafkaFilterPushdownReader(KafkaBatchReader):
    """The same, for queries whose filters narrow what is read.

    It is a class of its own because Spark refuses a reader with `pushFilters` while
    `spark.sql.python.filterPushdown.enabled` is false, by an error that names both.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Called before `partitions`; returns the filters that Spark has to evaluate still."""
        conditions = [condition_of(one) for one in filters]
        self._pruning, exact = prune([c for c in conditions if c is not None])
        answers = iter(exact)
        return [
            one
            for one, condition in zip(filters, conditions, strict=True)
            if condition is None or not next(answers)
        ]


def batch_reader(
    schema: StructType,
    options: SourceOptions,
    *,
    filter_pushdown: bool = FILTER_PUSHDOWN,
    scans_kept_apart: bool = SCANS_KEPT_APART,
) -> KafkaBatchReader:
    """The reader for these options on this Spark; the last two say what that can do."""
    everything = "the filters of the query do not narrow what is read, and Spark evaluates them"
    if options.filter_pushdown is FilterPushdown.OFF:
        return KafkaBatchReader(schema, options)
    if not filter_pushdown:
        log.warning(
            "option 'filterPushdown' needs Spark 4.1 or later, since this one tells Python sources "
            "no filters: %s",
            everything,
        )
        return KafkaBatchReader(schema, options)
    if options.filter_pushdown is FilterPushdown.ON and not scans_kept_apart:
        log.warning(
            "option 'filterPushdown' is 'true', and this Spark (before 5.0) mixes up the filters "
            "of different uses of one DataFrame: %s. Where each load() is used in one scan only, "
            "set the option to 'single-scan'",
            everything,
        )
        return KafkaBatchReader(schema, options)
    return KafkaFilterPushdownReader(schema, options)
