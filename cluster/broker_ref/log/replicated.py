"""Checks the batches that a follower fetches from its leader.

Invariants: the batches are in offset order, and have gaps only if the leader's log was compacted.
All CRCs are checked, but records are not decoded. Source: `UnifiedLog.appendAsFollower`,
`UnifiedLog.analyzeAndValidateRecords`.
"""

from __future__ import annotations

from crc32c import crc32c
from kio.schema.errors import ErrorCode

from broker_ref.log.batch import (
    ATTRIBUTES_POSITION,
    HEADER_BYTES,
    MAGIC,
    BatchHeader,
    unpack_header,
)
from broker_ref.log.errors import LogError


def check_replicated(records: bytes, *, log_end_offset: int, directory: str) -> list[BatchHeader]:
    """Check the complete batches in `records`, and return their headers.

    As in Kafka, an incomplete batch at the end of `records` is ignored. Raises:
    LogError(OFFSET_OUT_OF_RANGE) if the first batch starts below `log_end_offset`,
    LogError(CORRUPT_MESSAGE) if a batch is invalid, its CRC is wrong, or the batches are not in
    offset order.
    """
    view = memoryview(records)
    headers: list[BatchHeader] = []
    position, next_offset, length = 0, log_end_offset, len(view)
    while position + HEADER_BYTES <= length:
        header = unpack_header(view, position)
        end = position + header.size_bytes
        if (
            header.size_bytes < HEADER_BYTES
            or header.magic != MAGIC
            or header.last_offset_delta < 0
        ):
            raise _corrupt(
                directory, f"there is no record batch in message format v2 at byte {position}"
            )
        if end > length:
            break
        if header.base_offset < next_offset:
            raise _misplaced(directory, header.base_offset, next_offset, is_first=not headers)
        if header.crc != crc32c(view[position + ATTRIBUTES_POSITION : end]):
            raise _corrupt(
                directory, f"the CRC of the batch at offset {header.base_offset} is wrong"
            )
        headers.append(header)
        position, next_offset = end, header.next_offset
    return headers


def _misplaced(directory: str, base_offset: int, next_offset: int, *, is_first: bool) -> LogError:
    if is_first:
        return LogError(
            ErrorCode.offset_out_of_range,
            f"A batch at offset {base_offset} cannot be appended to {directory}, because the log "
            f"end offset is {next_offset}. Truncate the log or fetch from the log end offset.",
        )
    return _corrupt(directory, f"a batch at offset {base_offset} follows offset {next_offset - 1}")


def _corrupt(directory: str, reason: str) -> LogError:
    return LogError(
        ErrorCode.corrupt_message,
        f"The leader's batches for {directory} are corrupt: {reason}. Fetch them again.",
    )
