"""Helpers of the encoding tests: rows and settings with defaults, and decoded batches."""

from __future__ import annotations

import importlib
import struct
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from pyspark_kafka.columns import HEADERS_TYPE
from pyspark_kafka.records import Encode, EncodedBatch, Encoding, ProducerState, decode
from tests.pyspark_kafka.records.batches import HEADER_BYTES, decode_request

NOW = 1_700_000_000_000
PRODUCER = ProducerState(producer_id=4711, producer_epoch=3, next_sequences={})
NO_PRODUCER = ProducerState(producer_id=-1, producer_epoch=-1, next_sequences={})

FIELDS = (
    "base_offset", "length", "partition_leader_epoch", "magic", "crc", "attributes",
    "last_offset_delta", "base_timestamp", "max_timestamp", "producer_id", "producer_epoch",
    "base_sequence", "record_count",
)  # fmt: skip


def encoding_implementation(name: str) -> Encode:
    module = "_kernel" if name == "cython" else "_pure_encode"
    encode: Encode = importlib.import_module(f"pyspark_kafka.records.{module}").encode
    return encode


def encoding(**fields: Any) -> Encoding:
    defaults: dict[str, Any] = {
        "topic": "clicks",
        "partition_count": 8,
        "unkeyed": (0,),
        "producer": PRODUCER,
        "now_ms": NOW,
        "batch_bytes_max": 1_000_000,
    }
    return Encoding(**(defaults | fields))


def state(sequences: dict[int, int], **fields: Any) -> ProducerState:
    return ProducerState(producer_id=4711, producer_epoch=3, next_sequences=sequences, **fields)


def rows_of(
    values: Sequence[bytes | None],
    *,
    keys: Sequence[bytes | None] | None = None,
    partitions: Sequence[int | None] | None = None,
    timestamps: Sequence[int | None] | None = None,
    headers: Sequence[Any] | None = None,
) -> pa.RecordBatch:
    """Build rows with the given columns only."""
    columns: dict[str, Any] = {"value": pa.array(values, pa.binary())}
    if keys is not None:
        columns["key"] = pa.array(keys, pa.binary())
    if partitions is not None:
        columns["partition"] = pa.array(partitions, pa.int32())
    if timestamps is not None:
        columns["timestamp"] = pa.array(timestamps, pa.timestamp("ms", tz="UTC"))
    if headers is not None:
        columns["headers"] = pa.array(headers, HEADERS_TYPE)
    return pa.RecordBatch.from_pydict(columns)


def header(batch: EncodedBatch) -> dict[str, int]:
    found = struct.unpack_from(">qiibIhiqqqhii", batch.data)
    return dict(zip(FIELDS, found, strict=True))


def records(batch: EncodedBatch) -> list[dict[str, Any]]:
    """Return key, value, headers and timestamp in milliseconds of each record; check offsets."""
    found: list[dict[str, Any]] = []
    assert header(batch)["length"] == len(batch.data) - 12
    for arrow in decode(batch.data, decode_request()).batches:
        stamps = arrow.column("timestamp").cast(pa.int64()).to_pylist()
        for row, stamp in zip(arrow.to_pylist(), stamps, strict=True):
            assert row["offset"] == len(found)
            assert stamp % 1000 == 0
            fields = {name: row[name] for name in ("key", "value", "headers")}
            found.append(fields | {"timestamp": stamp // 1000})
    assert len(found) == batch.record_count == header(batch)["record_count"]
    return found


def values(batches: Iterable[EncodedBatch]) -> list[list[bytes | None]]:
    return [[record["value"] for record in records(batch)] for batch in batches]


def section(batch: EncodedBatch) -> memoryview:
    return batch.data[HEADER_BYTES:]
