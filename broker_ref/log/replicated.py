"""Batches as a follower gets them from its leader.

Purpose: tell from the bytes of a fetch response which batches it holds, whole and sound. Invariant:
offsets ascend, with gaps only where the leader's log was compacted; every CRC has been checked;
records are not decoded. What it must not know: segments. Source: UnifiedLog.appendAsFollower,
analyzeAndValidateRecords.
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
    """The headers of the whole batches in `records`, which may follow `log_end_offset`.

    A part of a batch at the end is ignored, as Kafka trims it. Raises: LogError(OFFSET_OUT_OF_RANGE)
    where the first batch starts below `log_end_offset`, LogError(CORRUPT_MESSAGE) where the bytes
    are no batches, a CRC is wrong, or offsets do not ascend.
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
            raise _corrupt(directory, f"no batch of format 2 is at byte {position}")
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
            f"A batch at offset {base_offset} cannot be appended to {directory}, which ends at "
            f"offset {next_offset}: truncate it, or fetch from its end.",
        )
    return _corrupt(directory, f"a batch at offset {base_offset} comes after {next_offset - 1}")


def _corrupt(directory: str, reason: str) -> LogError:
    return LogError(
        ErrorCode.corrupt_message,
        f"The leader's batches for {directory} are damaged: {reason}. Fetch them again.",
    )
