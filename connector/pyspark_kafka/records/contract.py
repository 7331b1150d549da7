"""What decoding is asked, what it gives, and what it says of damaged bytes.

Purpose: the one statement that the implementations share, so that they differ in nothing but speed: types,
bounds, and the words of every error. Invariant: a fault is raised as a `DecodeError`, and
`as_error` alone turns it into an error of the package. What it must not know: how bytes are
parsed, connections, Spark.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Protocol

import pyarrow as pa

from pyspark_kafka.columns import SOURCE_SCHEMA
from pyspark_kafka.errors import CorruptBatchError, KafkaError
from pyspark_kafka.kafka.transactions import AbortedTransaction

Buffer = bytes | bytearray | memoryview

ROWS_MAX: Final = 100_000
"""Of one Arrow batch."""

BATCH_BYTES_MAX: Final = 16 * 1024 * 1024
BATCH_BYTES_LIMIT: Final = 1 << 30
"""`bytes_max` may not be more: Arrow's offsets of binary columns have 31 bits."""

BATCHES_MAX: Final = 4
"""Arrow batches of one call: little that was fetched may be much once decompressed."""

DECOMPRESSED_BYTES_MAX: Final = 256 * 1024 * 1024
"""A batch does not say how large its records are; a few kilobytes may stand for gigabytes."""

HEADER_OVERHEAD_BYTES: Final = 8
"""What a header counts beside its bytes: two offsets of Arrow, however empty it is."""


class Codec(IntEnum):
    """Bits 0 to 2 of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeRequest:
    """Rows `start_offset` to before `end_offset` of one partition, as some of the columns.

    `aborted` is None for read_uncommitted, else what the fetch response names. Payload of one
    Arrow batch (keys, values and headers, of the wanted columns) is at most `bytes_max` bytes
    unless a single row has more. When `batches_max` of them are full, decoding ends with the record
    batch at hand: call again with the same bytes, from `next_offset` on.
    """

    topic: str
    partition: int
    start_offset: int
    end_offset: int
    columns: tuple[str, ...]
    aborted: tuple[AbortedTransaction, ...] | None
    bytes_max: int = BATCH_BYTES_MAX
    rows_max: int = ROWS_MAX
    batches_max: int = BATCHES_MAX
    decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX

    def __post_init__(self) -> None:
        assert self.columns, "an Arrow batch without columns has no rows either"
        assert 0 < self.bytes_max <= BATCH_BYTES_LIMIT
        assert 0 < self.rows_max <= ROWS_MAX
        assert self.batches_max > 0
        assert self.start_offset >= 0

    @property
    def schema(self) -> pa.Schema:
        """Of the batches: the wanted columns in the wanted order."""
        return pa.schema([SOURCE_SCHEMA.field(name) for name in self.columns])


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeResult:
    """Rows in the order of their offsets, and where to go on.

    `next_offset` is one past the last offset looked at, rows or none, but never below
    `start_offset`; it is `end_offset` where nothing of the range can follow.
    """

    batches: list[pa.RecordBatch]
    next_offset: int


class Decode(Protocol):
    """Decode the records field of one partition of a fetch response.

    `data` is whole record batches of format 2 (KIP-98), maybe with a part of one at the end, which
    is ignored. Control batches and aborted transactions are left out. Checked strictly in order,
    batch by batch and record by record, up to the end of the range and no further. Raises
    `CorruptBatchError` for what is damaged, `KafkaError` for what is sound but has no place in
    the wanted columns. No input makes it read outside `data`.
    """

    def __call__(self, data: Buffer, wanted: DecodeRequest) -> DecodeResult: ...


class DecodeFailure(IntEnum):
    """What can be wrong with a batch; the numbers are what the kernel passes about."""

    LEGACY = 1
    MAGIC = 2
    LENGTH = 3
    BACKWARD = 4
    CRC = 5
    OFFSETS = 6
    COUNT = 7
    CODEC = 8
    COMPRESSED = 9
    TOO_LARGE = 10
    MARKER = 11
    RECORDS_CUT = 12
    RECORD_LENGTH = 13
    RECORD_CUT = 14
    RECORD_REST = 15
    NUMBER = 16
    OFFSET = 17
    FIELD_LENGTH = 18
    HEADER_COUNT = 19
    TRAILING = 20
    TIMESTAMP = 21
    HEADER_KEY = 22


_DAMAGE: Final[Mapping[DecodeFailure, str]] = {
    DecodeFailure.MAGIC: "its magic byte is {0}, where formats have 0, 1 or 2",
    DecodeFailure.LENGTH: "it claims a length of {0} bytes, less than its own header",
    DecodeFailure.BACKWARD: "only offsets from {0} on can come there",
    DecodeFailure.CRC: "its CRC is {0:08x}, that of its bytes {1:08x}",
    DecodeFailure.OFFSETS: "it claims a last offset delta of {0}",
    DecodeFailure.COUNT: "it counts {0} records for {1} offsets",
    DecodeFailure.CODEC: "it claims compression codec {0}, where there are 0 to 4",
    DecodeFailure.COMPRESSED: "its records cannot be decompressed as {0}: {1}",
    DecodeFailure.MARKER: "the key of its control record has {0} bytes and version {1}",
    DecodeFailure.RECORDS_CUT: "its bytes end before record {0} of {1}",
    DecodeFailure.RECORD_LENGTH: "record {0} claims {1} bytes, and {2} are left",
    DecodeFailure.RECORD_CUT: "record {0} ends inside one of its fields",
    DecodeFailure.RECORD_REST: "record {0} has {1} bytes behind its last field",
    DecodeFailure.NUMBER: "record {0} holds a number that its type cannot",
    DecodeFailure.OFFSET: "record {0} claims offset delta {1}, where {2} to {3} can come",
    DecodeFailure.FIELD_LENGTH: "record {0} claims a field of {1} bytes, and {2} are left",
    DecodeFailure.HEADER_COUNT: "record {0} claims {1} headers, and {2} bytes are left",
    DecodeFailure.TRAILING: "{0} bytes follow its last record",
}

_SOUND: Final[Mapping[DecodeFailure, str]] = {
    DecodeFailure.LEGACY: (
        "{where}: the message at offset {offset} has the legacy message format v{0}, which the "
        "native engine does not decode; read it with 'engine' set to 'librdkafka'"
    ),
    DecodeFailure.TOO_LARGE: (
        "{where}: the records of the batch at offset {offset} are more than {0} bytes once "
        "decompressed, and it is refused; if they are meant, read it with 'engine' set to "
        "'librdkafka'"
    ),
    DecodeFailure.TIMESTAMP: (
        "{where}: the record at offset {offset} has the timestamp {0}, which as milliseconds is "
        "beyond what Spark can hold; its producer probably wrote another unit. Read it with a "
        "schema that leaves the column 'timestamp' out"
    ),
    DecodeFailure.HEADER_KEY: (
        "{where}: the record at offset {offset} has a header whose key is not UTF-8, which cannot "
        "be decoded; read it without 'includeHeaders'"
    ),
}
"""Faults of whole batches, which an error of damage would tell wrongly."""


class DecodeError(Exception):
    """`kind` of fault in the batch (or the record) at `offset`, with what its text asks for."""

    def __init__(self, kind: DecodeFailure, offset: int, *details: object) -> None:
        super().__init__(kind, offset, *details)
        self.kind = kind
        self.offset = offset
        self.details = details


def as_error(fault: DecodeError, wanted: DecodeRequest) -> KafkaError:
    """The error of the package for a fault: the one place with its words."""
    where = f"{wanted.topic}-{wanted.partition}"
    if fault.kind in _SOUND:
        kind = CorruptBatchError if fault.kind is DecodeFailure.TOO_LARGE else KafkaError
        text = _SOUND[fault.kind]
        return kind(text.format(*fault.details, where=where, offset=fault.offset))
    return CorruptBatchError(
        f"{where}: the record batch at offset {fault.offset} is damaged: "
        f"{_DAMAGE[fault.kind].format(*fault.details)}. If it stays so, the log of a broker is: "
        "restore it from another replica, or read around the batch with 'startingOffsets' and "
        "'endingOffsets'"
    )
