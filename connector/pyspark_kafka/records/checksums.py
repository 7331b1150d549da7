"""A checksum of rows, which shows whether a replayed batch contains the same rows as before.

The checksum of a set of rows is the sum of the hashes of its rows, so checksums of several sets can
be added. Because checksums are stored in decisions (`sink.exactly_once`), they do not depend on the
order of the rows, the split into batches, the Arrow types, the machine or the release.

`PYSPARK_KAFKA_RECORDS` selects the implementation, as for `decode` and `encode`. The checksum is
not cryptographic: it detects accidental differences, but does not protect against an attacker.
"""

from __future__ import annotations

from typing import Final, Protocol

import pyarrow as pa

from pyspark_kafka.records import IMPLEMENTATION

CHECKSUMS: Final = 2**64
"""The number of possible checksums. Each checksum is a sum modulo this number."""


class RowChecksums(Protocol):
    """The type of `row_checksums`, which returns the sum of the 64-bit hashes of all rows.

    `sink.rows.RowPreparation` prepares the rows. Their columns are those of
    `columns.PRODUCE_SCHEMA`; missing columns are treated as null. `topic`, `key`, `value` and the
    keys and values of headers can have the type binary, string, large_binary or large_string.
    `topic` can be dictionary-encoded. `timestamp` is a timestamp in milliseconds or an int64.

    The hash covers the topic, partition, timestamp, key, value, and the headers in order. Null
    partitions and timestamps are hashed as null, because the partition and the timestamp that the
    producer assigns can differ in a replay. Null and empty values have different hashes. A null
    list of headers and an empty list have the same hash, because Kafka does not distinguish them.
    """

    def __call__(self, batch: pa.RecordBatch) -> int: ...


def _load() -> RowChecksums:
    if IMPLEMENTATION == "pure":
        from pyspark_kafka.records import _pure_checksums as implementation  # noqa: PLC0415
    else:
        from pyspark_kafka.records import _kernel as implementation  # type: ignore[no-redef] # noqa: PLC0415
    return implementation.row_checksums


row_checksums: Final = _load()
