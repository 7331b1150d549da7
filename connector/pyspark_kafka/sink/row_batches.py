"""Converts Spark's rows to Arrow batches, for Spark versions that pass rows to the writer.

A writer that receives rows can therefore share the code of the writers that receive Arrow batches.
Invariant: the number of rows in a batch is bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.types import StringType, StructType, TimestampType

from pyspark_kafka.columns import HEADERS_TYPE

_ROWS_PER_BATCH: Final = 1_000
_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")


def arrow_batches(rows: Iterable[Row], schema: StructType) -> Iterator[pa.RecordBatch]:
    """Yield the rows as Arrow batches. Check `schema` with `check_columns` before this call."""
    types = {field.name: _arrow_type(field.name, field.dataType) for field in schema.fields}
    iterator = iter(rows)
    while chunk := list(islice(iterator, _ROWS_PER_BATCH)):
        columns = zip(*chunk, strict=True)
        yield pa.RecordBatch.from_arrays(
            [
                pa.array([_VALUE.get(name, _same)(value) for value in column], types[name])
                for name, column in zip(types, columns, strict=True)
            ],
            names=list(types),
        )


def _arrow_type(name: str, data_type: object) -> Any:
    match name:
        case "partition":
            return pa.int32()
        case "timestamp":
            return _TIMESTAMP
        case "headers":
            return HEADERS_TYPE
    return pa.string() if isinstance(data_type, StringType) else pa.binary()


def _same(value: Any) -> Any:
    return value


def _microseconds(value: Any) -> Any:
    """Convert a naive datetime, which is in local time, to microseconds since the Unix epoch."""
    return TimestampType().toInternal(value)


def _headers(value: Any) -> Any:
    return None if value is None else [None if h is None else (h[0], h[1]) for h in value]


_VALUE: Final[Mapping[str, Callable[[Any], Any]]] = {
    "timestamp": _microseconds,
    "headers": _headers,
}
