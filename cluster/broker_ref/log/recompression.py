"""Compresses batches from producers with the codec of the topic (`compression.type`).

A batch is stored unchanged if it already uses this codec, or if the topic has
`compression.type=producer`. Invariant: only the codec, the size and the CRC of a batch change.
Source: `LogValidator.validateMessagesAndAssignOffsetsCompressed`.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from broker_ref.log.batch import COMPRESSION_MASK, HEADER_BYTES, BatchHeader
from broker_ref.log.compression import compressed, decompressed_pieces
from broker_ref.log.config import LogConfig
from broker_ref.log.errors import LogError
from broker_ref.log.filtering import pack
from broker_ref.log.records import split_records


def recompressed(header: BatchHeader, batch: memoryview, config: LogConfig) -> bytes | memoryview:
    """Return the batch after compressing it with the codec of the topic.

    Raises: LogError with INVALID_RECORD or CORRUPT_MESSAGE if the records cannot be
    decompressed, or with MESSAGE_TOO_LARGE if the result exceeds `max.message.bytes`.
    """
    codec = config.codec
    if codec is None or codec is header.compression or header.is_control:
        return batch
    section = b"".join(decompressed_pieces(header.compression, batch[HEADER_BYTES:]))
    for _ in split_records(iter((section,)), header.record_count):
        pass  # The iteration checks that the records are complete.
    result = pack(
        header,
        compressed(codec, section),
        attributes=header.attributes & ~COMPRESSION_MASK | codec,
        base_timestamp=header.base_timestamp,
        max_timestamp=header.max_timestamp,
        record_count=header.record_count,
    )
    if len(result) > config.max_message_bytes:
        raise LogError(
            ErrorCode.message_too_large,
            f"A record batch of {header.size_bytes} bytes was recompressed with "
            f"compression.type={config.compression_type}. The new size of {len(result)} bytes "
            f"exceeds max.message.bytes={config.max_message_bytes}.",
        )
    return result
