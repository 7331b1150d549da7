"""What Spark calls for `spark.read`: planning on the driver, reading on executors."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_kafka.options import SourceOptions
from pyspark_kafka.source.offset_reader import OffsetReader
from pyspark_kafka.source.partition import KafkaInputPartition, read_partition
from pyspark_kafka.source.planner import plan_batch
from pyspark_kafka.source.schema import projection


class KafkaBatchReader(DataSourceReader):
    """Pickled to the executors with its options; opens clients where it needs them."""

    def __init__(self, schema: StructType, options: SourceOptions) -> None:
        self._columns = projection(schema, include_headers=options.include_headers)
        self._options = options

    def partitions(self) -> list[InputPartition]:
        from pyspark_kafka.client.factory import open_client  # noqa: PLC0415

        with open_client(self._options.client) as client:
            plans = plan_batch(OffsetReader(client, self._options), self._options)
        return [KafkaInputPartition(plan) for plan in plans]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition, self._columns, self._options)
