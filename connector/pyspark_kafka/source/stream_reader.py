"""Defines the reader for `spark.readStream`, which converts offsets from and to JSON.

Spark keeps one reader in a long-lived process on the driver. Spark requests offsets and partitions
from this reader, and finally calls `stop()`. Spark pickles another instance for the executors,
where only `read` is called. The client is therefore opened when offsets are first requested, and
`read` does not depend on the state of the reader.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper
from pyspark.sql.types import StructType

from pyspark_kafka.client.port import KafkaReadClient
from pyspark_kafka.errors import CheckpointError, PysparkKafkaError
from pyspark_kafka.kafka.offsets import PartitionOffsets
from pyspark_kafka.options.offsets_json import (
    OffsetFormatError,
    OffsetJson,
    from_json_object,
    to_json_object,
)
from pyspark_kafka.options.values import SourceOptions
from pyspark_kafka.source.offset_reader import OffsetReader
from pyspark_kafka.source.prefetch import Prefetcher
from pyspark_kafka.source.ranges import PlannedRange, pack
from pyspark_kafka.source.record_sizes import RecordSizes
from pyspark_kafka.source.schema import projection
from pyspark_kafka.source.spark_features import ADMISSION_CONTROL
from pyspark_kafka.source.stream_planner import StreamPlanner
from pyspark_kafka.source.task_reader import read_task
from pyspark_kafka.tracebacks import short_traceback

if TYPE_CHECKING:
    from pyspark_kafka.source.group_committer import GroupCommitter

if ADMISSION_CONTROL:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
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
        self._client: KafkaReadClient | None = None
        self._planner: StreamPlanner | None = None
        self._group: GroupCommitter | None = None
        self._prefetcher: Prefetcher | None = None
        self._prefetched: list[pa.RecordBatch] = []

    @short_traceback
    def initialOffset(self) -> OffsetJson:
        return to_json_object(self._open().initial_offsets())

    @short_traceback
    def latestOffset(
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> OffsetJson:
        """Return the end offset of the next micro-batch.

        `start` is the end offset of the previous micro-batch, which is complete, or the initial
        offset of a new query. Spark versions before 4.2 pass no arguments.
        """
        begin = None if start is None else _from_checkpoint(start)
        if begin is not None and not self._open().is_unplanned_start(begin):
            self._commit_to_group(begin)
        limited = not ADMISSION_CONTROL or not isinstance(limit, ReadAllAvailable | None)
        return to_json_object(self._open().latest_offsets(begin, limited=limited))

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the default read limit of the query.

        If several options limit the micro-batches, the result contains only one of these limits.
        The planner applies all of them.
        """
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        if self._options.min_offsets_per_trigger is not None:
            return ReadMinRows(self._options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def reportLatestOffset(self) -> OffsetJson | None:
        """Return the latest offsets, which Spark uses to show the lag in the query's progress."""
        latest = self._planner.latest_known if self._planner is not None else None
        return to_json_object(latest) if latest else None

    @short_traceback
    def prepareForTriggerAvailableNow(self) -> None:
        self._open().prepare_available_now()

    @short_traceback
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        plans = self._open().plan(_from_checkpoint(start), _from_checkpoint(end))
        tasks = pack(plans, self._options.max_partitions, lambda plan: plan.fetch_range.size)
        if len(tasks) == 1:
            self._prefetch(tasks[0])
        return [InputPartition(task) for task in tasks]

    def _prefetch(self, task: tuple[PlannedRange, ...]) -> None:
        assert self._prefetcher is not None
        records = self._prefetcher.read(task)
        if records is not None:
            self._prefetched = records
            self.__class__ = _PrefetchedReader

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        task: tuple[PlannedRange, ...] = partition.value
        return read_task(lambda _client: task, self._columns, self._options)

    @short_traceback
    def commit(self, end: dict[str, Any]) -> None:
        """Commit offsets to the group. Spark calls this method when the next micro-batch starts."""
        if self._options.commit_offsets:
            self._commit_to_group(_from_checkpoint(end))

    def _commit_to_group(self, offsets: PartitionOffsets) -> None:
        if not self._options.commit_offsets:
            return
        if self._group is None:
            from pyspark_kafka.source.group_committer import GroupCommitter  # noqa: PLC0415

            self._group = GroupCommitter(self._options.client)
        self._group.commit(offsets)

    def stop(self) -> None:
        client, self._client, self._planner, self._prefetcher = self._client, None, None, None
        group, self._group = self._group, None
        for resource in (client, group):
            if resource is not None:
                resource.close()

    def _open(self) -> StreamPlanner:
        if self._planner is None:
            from pyspark_kafka.client.factory import open_client  # noqa: PLC0415

            self._client = open_client(self._options.client)
            self._planner = StreamPlanner(
                OffsetReader(self._client, self._options),
                self._options,
                RecordSizes(self._client, self._options),
            )
            self._prefetcher = Prefetcher(self._client, self._columns, self._options)
        return self._planner


class _PrefetchedReader(KafkaStreamReader, _SimpleStreamReaderWrapper):
    """A reader that holds prefetched records, which Spark has not requested yet.

    A reader has this class only while it holds such records. Spark calls `getCache` after
    `partitions` only if the reader is a `_SimpleStreamReaderWrapper`.
    """

    def getCache(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        records, self._prefetched = self._prefetched, []
        self.__class__ = KafkaStreamReader  # type: ignore[assignment]
        return iter(records)


class FailedStreamReader(DataSourceStreamReader):
    """Raises the error that prevented the creation of a reader.

    If `DataSource.streamReader` raised an error, Spark would have no reader, but would still call
    `reader.stop()`. This call would add an `UnboundLocalError` to the error that the user sees.
    """

    def __init__(self, error: PysparkKafkaError) -> None:
        self._error = error

    @short_traceback
    def _raise(self, *_: Any, **__: Any) -> Any:
        raise self._error

    initialOffset = latestOffset = partitions = read = _raise  # noqa: N815


def _from_checkpoint(offset: dict[str, Any]) -> PartitionOffsets:
    try:
        return from_json_object(offset)
    except OffsetFormatError as error:
        raise CheckpointError(
            f"The checkpoint contains invalid offsets {offset!r}: {error.problem}.",
            topic=error.topic,
            partition=error.partition,
        ) from None
