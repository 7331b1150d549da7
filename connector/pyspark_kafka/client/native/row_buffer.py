"""The rows of one topic that have not been encoded as batches yet.

This module also splits rows by topic, splits rows into slices of limited size, and checks that each
record is small enough to be sent. Invariant: rows of one topic keep their order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_kafka.client.delivery_errors import DeliveryErrors

_RECORD_OVERHEAD_BYTES: Final = 61 + 21
"""The size of a batch header plus the maximum size of a record without key, value and headers
(`DefaultRecordBatch.estimateBatchSizeUpperBound`)."""
_HEADER_OVERHEAD_BYTES: Final = 10
_DATA: Final = ("key", "value", "partition", "timestamp", "headers")


@dataclass(slots=True)
class RowBuffer:
    """The buffered rows of one topic. `oldest_at` is the time when the oldest row was added."""

    pieces: list[pa.RecordBatch] = field(default_factory=list)
    bytes: int = 0
    oldest_at: float = 0.0

    def add(self, rows: pa.RecordBatch, now: float) -> None:
        """Append rows."""
        if not self.pieces:
            self.oldest_at = now
        self.pieces.append(rows)
        self.bytes += rows.nbytes

    def take(self, bytes_max: int) -> pa.RecordBatch:
        """Remove the oldest slices of rows, and return them as one Arrow batch.

        The batch contains at most `bytes_max` bytes, unless the first slice is larger. If the batch
        consists of several slices, the rows are copied.
        """
        count, size = 1, self.pieces[0].nbytes
        for piece in self.pieces[1:]:
            if size + piece.nbytes > bytes_max:
                break
            count, size = count + 1, size + piece.nbytes
        pieces, self.pieces = self.pieces[:count], self.pieces[count:]
        self.bytes -= size
        if count == 1:
            return pieces[0]
        names = [name for name in _DATA if any(name in p.schema.names for p in pieces)]
        return pa.concat_batches([_with_columns(piece, names, pieces) for piece in pieces])

    @property
    def has_keys(self) -> bool:
        """Whether the newest rows have keys or partitions."""
        return bool(self.pieces) and any(
            name in self.pieces[-1].schema.names
            and self.pieces[-1].column(name).null_count < self.pieces[-1].num_rows
            for name in ("key", "partition")
        )


def _with_columns(
    piece: pa.RecordBatch, names: list[str], pieces: list[pa.RecordBatch]
) -> pa.RecordBatch:
    if piece.schema.names == names:
        return piece
    schema = pa.unify_schemas([one.schema for one in pieces])
    columns = [
        piece.column(name)
        if name in piece.schema.names
        else pa.nulls(piece.num_rows, schema.field(name).type)
        for name in names
    ]
    return pa.RecordBatch.from_arrays(columns, names=names)


def by_topic(batch: pa.RecordBatch) -> list[tuple[str, pa.RecordBatch]]:
    """Split rows by topic, in their original order. The results omit the `topic` column."""
    data = batch.select([name for name in _DATA if name in batch.schema.names])
    topics = batch.column("topic")
    encoded = topics.dictionary_encode()
    names = encoded.dictionary.to_pylist()
    if len(names) == 1:
        return [(names[0], data)]
    # The sort is stable, so the rows of a topic keep their order.
    order = pc.sort_indices(encoded.indices)
    counts = {one["values"].as_py(): one["counts"].as_py() for one in topics.value_counts()}
    found = []
    start = 0
    for name in names:
        # The rows are copied, because a slice would keep the rows of all topics in memory.
        found.append((name, data.take(order.slice(start, counts[name]))))
        start += counts[name]
    return found


def pieces_of(rows: pa.RecordBatch, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """Yield slices of at most `bytes_max` bytes. A larger row is in a slice of its own."""
    if rows.nbytes <= bytes_max or rows.num_rows == 1:
        yield rows
        return
    half = rows.num_rows // 2
    yield from pieces_of(rows.slice(0, half), bytes_max)
    yield from pieces_of(rows.slice(half), bytes_max)


def check_record_sizes(rows: pa.RecordBatch, topic: str, errors: DeliveryErrors) -> None:
    """Raise `RowError` for the first record that exceeds the maximum request size."""
    limit = errors.record_bytes_max - _RECORD_OVERHEAD_BYTES
    columns = [name for name in ("key", "value") if name in rows.schema.names]
    headers = rows.column("headers") if "headers" in rows.schema.names else None
    # Fast path: usually, even a record with the largest key, value and headers would fit.
    bound = sum(pc.max(pc.binary_length(rows.column(name))).as_py() or 0 for name in columns)
    if headers is not None:
        bound += _most_header_bytes(headers)
    if bound <= limit:
        return
    for index in range(rows.num_rows):
        sizes = {name: len(rows.column(name)[index].as_py() or b"") for name in columns}
        of_row = [] if headers is None else headers[index].as_py() or []
        header_bytes = sum(map(_header_bytes, of_row))
        overhead_bytes = len(of_row) * _HEADER_OVERHEAD_BYTES
        if sum(sizes.values()) + header_bytes + overhead_bytes > limit:
            raise errors.record_too_large(
                topic,
                value_bytes=sizes.get("value", 0),
                key_bytes=sizes.get("key", 0),
                header_bytes=header_bytes,
            )


def _most_header_bytes(headers: Any) -> int:
    headers = headers.drop_null()  # In Arrow, a null list may have child values.
    flat = pc.list_flatten(headers)
    if len(flat) == 0:
        return 0
    sizes = [pc.binary_length(pc.struct_field(flat, [name])).fill_null(0) for name in (0, 1)]
    sums = (
        pa.table({"row": pc.list_parent_indices(headers), "bytes": pc.add(*sizes)})
        .group_by("row")
        .aggregate([("bytes", "sum"), ("bytes", "count")])
    )
    most: int = pc.max(
        pc.add(sums["bytes_sum"], pc.multiply(sums["bytes_count"], _HEADER_OVERHEAD_BYTES))
    ).as_py()
    return most


def _header_bytes(header: dict[str, Any]) -> int:
    key, value = header["key"], header["value"]
    return len(key.encode()) + len(value or b"")
