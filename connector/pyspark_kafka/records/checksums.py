"""A checksum of rows that says whether a batch that is written again has the same rows.

Purpose: one number for any set of rows: that of a task's rows, and of all tasks' together.
Invariant: the same rows give the same sum, in whatever order, batches and Arrow types they come, on
every machine and in every release: sums are kept in decisions (`sink.exactly_once`) and compared
years later. What it must not know: Spark, what a difference means.

It is chosen by `PYSPARK_KAFKA_RECORDS` as `decode` and `encode` are. It tells rows apart that differ
by accident; it does not resist somebody who looks for other rows with the same sum.
"""

from __future__ import annotations

from typing import Final, Protocol

import pyarrow as pa

from pyspark_kafka.records import IMPLEMENTATION

CHECKSUMS: Final = 2**64
"""How many there are: sums are taken modulo this."""


class RowChecksums(Protocol):
    """The sum, modulo `CHECKSUMS`, of a hash of 64 bits of each row.

    Rows are those of `sink.rows.RowPreparation`, with columns of `columns.PRODUCE_SCHEMA`; those
    that are missing are null. `topic`, `key` and `value`, and those of headers, may be binary or
    string, large or not; `topic` may be dictionary-encoded; `timestamp` is in milliseconds, or
    int64.

    What counts of a row is its topic, partition and timestamp as given (null stays null: the
    partition that a partitioner chooses and the time of sending are other ones next time), its key,
    its value and its headers in their order. Null and empty differ, but for lists of headers, which
    are the same for Kafka.
    """

    def __call__(self, batch: pa.RecordBatch) -> int: ...


def _load() -> RowChecksums:
    if IMPLEMENTATION == "pure":
        from pyspark_kafka.records import _pure_checksums as implementation  # noqa: PLC0415
    else:
        from pyspark_kafka.records import _kernel as implementation  # type: ignore[no-redef] # noqa: PLC0415
    return implementation.row_checksums


row_checksums: Final = _load()
