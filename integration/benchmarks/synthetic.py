"""Python data sources without I/O, which show the maximum speed of any Python data source.

Contains a source that generates rows, a sink that drops rows, and a streaming source and sink.
Invariant: these data sources do only what Spark requires. They have the same columns and the same
number of tasks as the connector that they are compared with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from integration.benchmarks.payload import DISTINCT, values

FABRICATING: Final = "bench_fabricating"
DROPPING: Final = "bench_dropping"
TRIVIAL: Final = "bench_trivial"

_SCHEMA: Final = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
    "timestampType int"
)
_BATCH_ROWS: Final = 20 * DISTINCT
_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")


@dataclass
class _Share(InputPartition):  # type: ignore[misc, unused-ignore]
    """The task number and the number of rows of one task."""

    number: int
    rows: int

    def __init__(self, number: int, rows: int) -> None:
        super().__init__(number)
        self.number = number
        self.rows = rows


def _shares(rows: int, partitions: int) -> list[InputPartition]:
    return [
        _Share(number, rows // partitions + (number < rows % partitions))
        for number in range(partitions)
    ]


class FabricatingSource(DataSource):
    """A batch source that generates rows. Options: `rows`, `partitions`, `valueBytes`."""

    @classmethod
    def name(cls) -> str:
        return FABRICATING

    def schema(self) -> str:
        return _SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return _FabricatingReader(schema.names, self.options)


class _FabricatingReader(DataSourceReader):
    def __init__(self, columns: Sequence[str], options: Mapping[str, str]) -> None:
        self._columns = list(columns)
        self._rows = int(options["rows"])
        self._partitions = int(options["partitions"])
        self._value_bytes = int(options["valueBytes"])

    def partitions(self) -> list[InputPartition]:
        return _shares(self._rows, self._partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the same Arrow batch repeatedly, each time with its own offsets."""
        assert isinstance(partition, _Share)
        whole = _rows(partition.number, _BATCH_ROWS, self._value_bytes)
        template = whole.select(self._columns)
        for first in range(0, partition.rows, _BATCH_ROWS):
            batch = template.slice(0, min(_BATCH_ROWS, partition.rows - first))
            if "offset" in self._columns:
                offsets = pa.array(np.arange(first, first + batch.num_rows, dtype=np.int64))
                index = self._columns.index("offset")
                batch = batch.set_column(index, "offset", offsets)
            yield batch


def _rows(partition: int, count: int, value_bytes: int) -> pa.RecordBatch:
    pool = values(value_bytes)
    return pa.RecordBatch.from_pydict(
        {
            "key": pa.nulls(count, pa.binary()),
            "value": pa.array([pool[i % DISTINCT] for i in range(count)], pa.binary()),
            "topic": pa.repeat(pa.scalar("bench-topic"), count),
            "partition": pa.repeat(pa.scalar(partition, pa.int32()), count),
            "offset": pa.array(np.arange(count, dtype=np.int64)),
            "timestamp": pa.array(np.arange(count, dtype=np.int64), pa.int64()).cast(_TIMESTAMP),
            "timestampType": pa.repeat(pa.scalar(0, pa.int32()), count),
        }
    )


class DroppingSink(DataSource):
    """Batch sink that drops all Arrow batches."""

    @classmethod
    def name(cls) -> str:
        return DROPPING

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: ARG002
        return _DroppingWriter()


class _DroppingWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _dropped(iterator)


def _dropped(iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
    for _ in iterator:
        pass
    return WriterCommitMessage()


class TrivialStream(DataSource):
    """Streaming source and sink.

    The source adds `rows` rows per micro-batch in `partitions` tasks. The sink drops the rows.
    """

    @classmethod
    def name(cls) -> str:
        return TRIVIAL

    def schema(self) -> str:
        return "value binary"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802
        return _TrivialReader(int(self.options["rows"]), int(self.options["partitions"]))

    def streamWriter(  # noqa: N802
        self,
        schema: StructType,  # noqa: ARG002
        overwrite: bool,  # noqa: ARG002
    ) -> DataSourceStreamArrowWriter:
        return _TrivialWriter()


class _TrivialReader(DataSourceStreamReader):
    def __init__(self, rows: int, partitions: int) -> None:
        self._rows = rows
        self._partitions = partitions

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"rows": 0}

    def latestOffset(  # noqa: N802
        self,
        start: dict[str, Any],
        limit: object,  # noqa: ARG002
    ) -> dict[str, int]:
        return {"rows": start["rows"] + self._rows}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return _shares(end["rows"] - start["rows"], self._partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Share)
        yield pa.RecordBatch.from_pydict({"value": pa.array([b"x"] * partition.rows, pa.binary())})

    def commit(self, end: dict[str, Any]) -> None:
        pass


class _TrivialWriter(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _dropped(iterator)


SOURCES: Final = (FabricatingSource, DroppingSink, TrivialStream)
