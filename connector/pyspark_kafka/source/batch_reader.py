"""The readers for `spark.read`. They plan a read on the driver, and read records on executors."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING
from uuid import uuid4

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_kafka.client.port import KafkaReadClient
from pyspark_kafka.options.values import FilterPushdown, SourceOptions
from pyspark_kafka.source.batch_planner import (
    BatchTask,
    has_fixed_bounds,
    plan_again,
    plan_batch,
    resolve_bounds,
)
from pyspark_kafka.source.executions import agree, later_execution
from pyspark_kafka.source.offset_reader import OffsetReader
from pyspark_kafka.source.pruning import EVERYTHING, prune
from pyspark_kafka.source.ranges import PlannedRange
from pyspark_kafka.source.schema import projection
from pyspark_kafka.source.spark_features import FILTER_PUSHDOWN, FILTERS_PER_SCAN
from pyspark_kafka.source.spark_filters import condition_of
from pyspark_kafka.source.task_reader import read_task
from pyspark_kafka.tracebacks import short_traceback

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

log = logging.getLogger(__name__)


class KafkaBatchReader(DataSourceReader):
    """The reader for batch queries. It has no client, because Spark pickles it for executors."""

    def __init__(self, schema: StructType, options: SourceOptions) -> None:
        self._columns = projection(schema, include_headers=options.include_headers)
        self._options = options
        self._pruning = EVERYTHING
        self._plan_id = uuid4().hex

    @short_traceback
    def partitions(self) -> list[InputPartition]:
        from pyspark_kafka.client.factory import open_client  # noqa: PLC0415

        with open_client(self._options.client) as client:
            reader = OffsetReader(client, self._options)
            tasks = plan_batch(reader, self._options, self._pruning)
        return [InputPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        task: BatchTask = partition.value
        return read_task(partial(self._ranges, task), self._columns, self._options)

    def _ranges(self, task: BatchTask, client: KafkaReadClient) -> list[PlannedRange]:
        """Return the planned ranges of a task.

        If Spark executes the plan again, resolve the start and end offsets again, unless the user
        specified all of them as offsets.
        """
        execution = None if has_fixed_bounds(self._options) else later_execution(self._plan_id)
        if execution is None:
            return [part.planned for part in task if part.planned is not None]
        reader = OffsetReader(client, self._options)
        bounds = agree(
            self._plan_id,
            execution,
            lambda: resolve_bounds(reader, self._options, self._pruning),
        )
        return plan_again(task, bounds, reader, self._options, self._pruning)


class KafkaFilterPushdownReader(KafkaBatchReader):
    """A batch reader that supports filter pushdown.

    This is a separate class, because Spark rejects a reader with a `pushFilters` method if
    `spark.sql.python.filterPushdown.enabled` is false.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Return the filters that Spark has to evaluate. Spark calls this before `partitions`."""
        conditions = [condition_of(spark_filter) for spark_filter in filters]
        self._pruning, exact = prune([c for c in conditions if c is not None])
        is_exact = iter(exact)
        return [
            spark_filter
            for spark_filter, condition in zip(filters, conditions, strict=True)
            if condition is None or not next(is_exact)
        ]


def batch_reader(
    schema: StructType,
    options: SourceOptions,
    *,
    filter_pushdown: bool = FILTER_PUSHDOWN,
    filters_per_scan: bool = FILTERS_PER_SCAN,
) -> KafkaBatchReader:
    """Return the reader for these options.

    `filter_pushdown` and `filters_per_scan` are features of the installed Spark version.
    """
    if options.filter_pushdown is FilterPushdown.OFF:
        return KafkaBatchReader(schema, options)
    if not filter_pushdown:
        log.warning(
            "Option 'filterPushdown' has no effect, because it requires Spark 4.1 or later. The "
            "query reads all records, and Spark evaluates the filters."
        )
        return KafkaBatchReader(schema, options)
    if options.filter_pushdown is FilterPushdown.ON and not filters_per_scan:
        log.warning(
            "Option 'filterPushdown' has the value 'true', which requires Spark 5.0 or later. The "
            "query reads all records, and Spark evaluates the filters. If the query scans the "
            "result of each load() only once, set the option to 'single-scan'."
        )
        return KafkaBatchReader(schema, options)
    return KafkaFilterPushdownReader(schema, options)
