"""A checksum of rows, to compare the rows of a replayed batch with those of the first run.

Purpose: one number for a set of rows; sums of several sets can be added. Invariant: the same rows
have the same sum in any order, split into any batches, in any Arrow types, on every machine and in
every release: sums are stored in decisions (`sink.exactly_once`). What it must not know: Spark, the
consequences of a difference.

`PYSPARK_KAFKA_RECORDS` selects the implementation, as for `decode` and `encode`. The sum is not
cryptographic: it finds accidental differences, but does not resist an attacker.
"""

from __future__ import annotations

from typing import Final, Protocol

import pyarrow as pa

from pyspark_kafka.records import IMPLEMENTATION

CHECKSUMS: Final = 2**64
"""Sums are modulo this number."""


class RowChecksums(Protocol):
    """The sum, modulo `CHECKSUMS`, of a hash of 64 bits of each row.

    Rows are those of `sink.rows.RowPreparation`, with columns of `columns.PRODUCE_SCHEMA`; missing
    columns are null. `topic`, `key` and `value`, also of headers, may be binary or string, large or
    not; `topic` may be dictionary-encoded; `timestamp` is in milliseconds, or int64.

    The hash covers topic, partition, timestamp, key, value, and headers in order. Null partitions
    and timestamps stay null, since the partitioner's choice and the time of sending differ in a
    replay. Null and empty values differ, but null and empty lists of headers do not, as in Kafka.
    """

    def __call__(self, batch: pa.RecordBatch) -> int: ...


def _load() -> RowChecksums:
    if IMPLEMENTATION == "pure":
        from pyspark_kafka.records import _pure_checksums as implementation  # noqa: PLC0415
    else:
        from pyspark_kafka.records import _kernel as implementation  # type: ignore[no-redef] # noqa: PLC0415
    return implementation.row_checksums


row_checksums: Final = _load()
