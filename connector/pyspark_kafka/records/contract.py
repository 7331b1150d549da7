"""The interface for decoding: the request, the result and the errors.

Both implementations of `decode` share these types, limits and error texts. Their parsers raise
`DecodeError`, which `to_kafka_error` converts to a `KafkaError`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, Protocol

import pyarrow as pa

from pyspark_kafka.columns import SOURCE_SCHEMA
from pyspark_kafka.errors import CorruptBatchError, KafkaError
from pyspark_kafka.kafka.transactions import AbortedTransaction

Buffer = bytes | bytearray | memoryview

ROWS_MAX: Final = 100_000
"""The maximum number of rows in one Arrow batch."""

BATCH_BYTES_MAX: Final = 16 * 1024 * 1024
BATCH_BYTES_LIMIT: Final = 1 << 30
"""The maximum value of `bytes_max`, because offsets in Arrow's binary columns have 31 bits."""

BATCHES_MAX: Final = 4
"""The maximum number of Arrow batches per call. A small response can decompress to many rows."""

DECOMPRESSED_BYTES_MAX: Final = 256 * 1024 * 1024
"""The maximum decompressed size of a batch. The header of a batch does not contain this size."""

HEADER_OVERHEAD_BYTES: Final = 8
"""The number of bytes that are added to the size of a header for its two Arrow offsets."""


class Codec(IntEnum):
    """A compression codec: bits 0 to 2 of the attributes of a batch."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeRequest:
    """The parameters of `decode` for one partition: columns, offsets and limits.

    The offsets are `start_offset` (inclusive) to `end_offset` (exclusive). `aborted` contains the
    aborted transactions of the Fetch response, and is None for `read_uncommitted`. The payload of
    an Arrow batch (selected keys, values and headers) has at most `bytes_max` bytes, unless a
    single row is larger. When `batches_max` Arrow batches are full, decoding stops after the
    current record batch. To continue, call `decode` again with the same bytes, and set
    `start_offset` to the `next_offset` of the result.
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
        assert self.columns, "an Arrow batch without columns cannot have rows"
        assert 0 < self.bytes_max <= BATCH_BYTES_LIMIT
        assert 0 < self.rows_max <= ROWS_MAX
        assert self.batches_max > 0
        assert self.start_offset >= 0

    @property
    def schema(self) -> pa.Schema:
        """The schema of the Arrow batches: the requested columns, in the requested order."""
        return pa.schema([SOURCE_SCHEMA.field(name) for name in self.columns])


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeResult:
    """The rows in offset order, and the offset at which to continue.

    `next_offset` is the offset after the last decoded batch, even if that batch has no rows. It is
    at least `start_offset`, and it is `end_offset` if the whole range was decoded.
    """

    batches: list[pa.RecordBatch]
    next_offset: int


class Decode(Protocol):
    """The type of `decode`, which decodes the records of one partition in a Fetch response.

    `data` contains record batches in message format v2 (KIP-98). An incomplete batch at the end is
    ignored. The result contains neither control records nor records of aborted transactions.
    Batches and records are validated in order, up to the end of the range. Raises
    `CorruptBatchError` for corrupt bytes, and `KafkaError` for valid records that the columns
    cannot represent. `decode` never reads memory outside `data`, even if `data` is corrupt.
    """

    def __call__(self, data: Buffer, request: DecodeRequest) -> DecodeResult: ...


class DecodeFailure(IntEnum):
    """The reasons why a batch cannot be decoded. The compiled kernel returns them as numbers."""

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
    RECORD_TRAILING = 15
    NUMBER = 16
    OFFSET = 17
    FIELD_LENGTH = 18
    HEADER_COUNT = 19
    TRAILING = 20
    TIMESTAMP = 21
    HEADER_KEY = 22


_CORRUPTION: Final[Mapping[DecodeFailure, str]] = {
    DecodeFailure.MAGIC: "its magic byte is {0} instead of 0, 1 or 2",
    DecodeFailure.LENGTH: "its length is {0} bytes, which is too short for a header",
    DecodeFailure.BACKWARD: "its base offset must be at least {0}",
    DecodeFailure.CRC: "its stored CRC is {0:08x}, but its computed CRC is {1:08x}",
    DecodeFailure.OFFSETS: "its last offset delta is {0}, which is invalid",
    DecodeFailure.COUNT: "its record count is {0}, but it has {1} offsets",
    DecodeFailure.CODEC: "its compression codec is {0} instead of 0 to 4",
    DecodeFailure.COMPRESSED: "its records cannot be decompressed as {0}: {1}",
    DecodeFailure.MARKER: "the key of its control record is invalid ({0} bytes, version {1})",
    DecodeFailure.RECORDS_CUT: "its bytes end before record {0} of {1}",
    DecodeFailure.RECORD_LENGTH: "record {0} has a length of {1} bytes, but {2} bytes are left",
    DecodeFailure.RECORD_CUT: "record {0} ends inside a field",
    DecodeFailure.RECORD_TRAILING: "record {0} has {1} bytes after its last field",
    DecodeFailure.NUMBER: "record {0} has a number with too many bits",
    DecodeFailure.OFFSET: "record {0} has offset delta {1} instead of a value from {2} to {3}",
    DecodeFailure.FIELD_LENGTH: "record {0} has a field of {1} bytes, but only {2} bytes are left",
    DecodeFailure.HEADER_COUNT: "record {0} has {1} headers, but only {2} bytes are left",
    DecodeFailure.TRAILING: "{0} bytes follow its last record",
}


class DecodeError(Exception):
    """The batch or record at `offset` cannot be decoded. The error message contains `details`."""

    def __init__(self, failure: DecodeFailure, offset: int, *details: object) -> None:
        super().__init__(failure, offset, *details)
        self.failure = failure
        self.offset = offset
        self.details = details


def to_kafka_error(error: DecodeError, request: DecodeRequest) -> KafkaError:
    """Convert a `DecodeError` to a `KafkaError`."""
    where = f"at offset {error.offset} of {request.topic}-{request.partition}"
    if error.failure in _CORRUPTION:
        what = _CORRUPTION[error.failure].format(*error.details)
        return CorruptBatchError(
            f"The record batch {where} is corrupt: {what}.", **_fields(error, request)
        )
    (detail,) = error.details or (None,)
    if error.failure is DecodeFailure.TOO_LARGE:
        return CorruptBatchError(
            f"The record batch {where} is larger than {detail} bytes after decompression.",
            advice="If the batch is valid, set 'engine' to 'librdkafka' to read it.",
            **_fields(error, request),
        )
    if error.failure is DecodeFailure.LEGACY:
        return KafkaError(
            f"The message {where} uses the legacy message format v{detail}, which the native "
            "engine does not support.",
            advice="Set 'engine' to 'librdkafka'.",
            **_fields(error, request),
        )
    if error.failure is DecodeFailure.TIMESTAMP:
        return KafkaError(
            f"The record {where} has the timestamp {detail}, which is outside Spark's range. "
            "The producer of the record probably did not use milliseconds.",
            advice="Read with a schema that does not contain the column 'timestamp'.",
            column="timestamp",
            **_fields(error, request),
        )
    assert error.failure is DecodeFailure.HEADER_KEY, error.failure
    return KafkaError(
        f"The record {where} has a header key that is not UTF-8.",
        advice="Set 'includeHeaders' to 'false'.",
        column="headers",
        **_fields(error, request),
    )


def _fields(error: DecodeError, request: DecodeRequest) -> dict[str, Any]:
    return {"topic": request.topic, "partition": request.partition, "offset": error.offset}
