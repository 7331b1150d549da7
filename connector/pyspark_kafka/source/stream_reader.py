"""What Spark calls for `spark.readStream`: JSON offsets in and out of the planner.

Spark keeps one reader in a long-lived process of the driver, which asks for offsets and
partitions until `stop()`; another, made anew and pickled to the executors, only reads. So the
client is opened when offsets are first asked for, and no state that matters to `read` is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_kafka.client.port import KafkaReads
from pyspark_kafka.errors import CheckpointError
from pyspark_kafka.kafka.offsets import PartitionOffsets
from pyspark_kafka.options.offsets_json import (
    OffsetFormatError,
    OffsetJson,
    from_json_object,
    to_json_object,
)
from pyspark_kafka.options.values import SourceOptions
from pyspark_kafka.source.offset_reader import OffsetReader
from pyspark_kafka.source.partition import KafkaInputPartition, read_partition
from pyspark_kafka.source.schema import projection
from pyspark_kafka.source.spark_features import ADMISSION_CONTROL
from pyspark_kafka.source.stream_planner import StreamPlanner

if TYPE_CHECKING:
    from pyspark_kafka.source.group_commits import GroupCommits

if ADMISSION_CONTROL:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )

    class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
        pass
else:
    if TYPE_CHECKING:
        from pyspark.sql.streaming.datasource import ReadLimit

    class _StreamReader(DataSourceStreamReader):  # type: ignore[no-redef]
        pass


class KafkaStreamReader(_StreamReader):
    def __init__(self, schema: StructType, options: SourceOptions) -> None:
        self._columns = projection(schema, include_headers=options.include_headers)
        self._options = options
        self._client: KafkaReads | None = None
        self._planner: StreamPlanner | None = None
        self._group: GroupCommits | None = None

    def initialOffset(self) -> OffsetJson:
        return to_json_object(self._open().initial_offsets())

    def latestOffset(
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> OffsetJson:
        """Spark 4.2 and later pass both arguments, earlier ones none.

        Where a micro-batch would start is where the last one that is complete has ended.
        """
        begin = None if start is None else _from_checkpoint(start)
        if begin is not None and not self._open().is_initial(begin):
            self._tell_group(begin)
        limited = ADMISSION_CONTROL and not isinstance(limit, ReadAllAvailable | None)
        return to_json_object(
            self._open().latest_offsets(
                begin,
                max_rows=limit.max_rows if limited and isinstance(limit, ReadMaxRows) else None,
                delay=limited,
            )
        )

    def getDefaultReadLimit(self) -> ReadLimit:
        """`minOffsetsPerTrigger` next to a maximum is ours to apply: there is room for one only."""
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.min_offsets_per_trigger is not None:
            return ReadMinRows(self._options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def reportLatestOffset(self) -> OffsetJson | None:
        """What exists, for the query's progress; next to the end offset it tells the lag."""
        latest = self._planner.latest_known if self._planner is not None else None
        return to_json_object(latest) if latest else None

    def prepareForTriggerAvailableNow(self) -> None:
        self._open().prepare_available_now()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        plans = self._open().plan(_from_checkpoint(start), _from_checkpoint(end))
        return [KafkaInputPartition(plan) for plan in plans]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition, self._columns, self._options)

    def commit(self, end: dict[str, Any]) -> None:
        """Spark is done with all up to here, and says so when the next micro-batch begins."""
        if self._options.commit_offsets:
            self._tell_group(_from_checkpoint(end))

    def _tell_group(self, offsets: PartitionOffsets) -> None:
        """How far the query has come, for who watches the group."""
        if not self._options.commit_offsets:
            return
        if self._group is None:
            from pyspark_kafka.source.group_commits import GroupCommits  # noqa: PLC0415

            self._group = GroupCommits(self._options.client)
        self._group.commit(offsets)

    def stop(self) -> None:
        client, self._client, self._planner = self._client, None, None
        group, self._group = self._group, None
        for each in (client, group):
            if each is not None:
                each.close()

    def _open(self) -> StreamPlanner:
        if self._planner is None:
            from pyspark_kafka.client.factory import open_client  # noqa: PLC0415

            self._client = open_client(self._options.client)
            self._planner = StreamPlanner(OffsetReader(self._client, self._options), self._options)
        return self._planner


def _from_checkpoint(offset: dict[str, Any]) -> PartitionOffsets:
    try:
        return from_json_object(offset)
    except OffsetFormatError as error:
        raise CheckpointError(
            f"the checkpoint has the offset {offset!r}, which is none of Kafka's: {error}. Restore "
            "the checkpoint, or start with a new checkpointLocation and 'startingOffsets'"
        ) from None
