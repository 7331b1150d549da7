"""The four codecs of record batches, read as streams with a bound on the output.

Purpose: hand out the decompressed records section of a batch piece by piece. Invariant: never
more than `DECOMPRESSED_BYTES_MAX` bytes from one batch, and never more than one block in memory.
A batch does not say how large its records are, so a few kilobytes may stand for gigabytes.
What it must not know: records.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from enum import IntEnum
from typing import Any

import pyarrow as pa
from kio.schema.errors import ErrorCode

from broker_ref.log.errors import LogError

DECOMPRESSED_BYTES_MAX = 1 << 30
_PIECE_BYTES = 64 * 1024

# snappy-java's stream format (SnappyOutputStream), which Kafka's Java clients write:
#   magic 8 bytes | version int32 | compatible version int32 | (length int32 | raw snappy block)*
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16


class Compression(IntEnum):
    """Compression codec: bits 0 to 2 of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


_ARROW_NAMES = {Compression.GZIP: "gzip", Compression.LZ4: "lz4", Compression.ZSTD: "zstd"}


def decompressed_pieces(
    compression: Compression, data: memoryview, *, bytes_max: int = DECOMPRESSED_BYTES_MAX
) -> Iterator[bytes | memoryview]:
    """The decompressed bytes of `data`, in pieces.

    Raises: LogError(CORRUPT_MESSAGE) if `data` is not what its codec says or gives more than
    `bytes_max` bytes.
    """
    pieces: Iterator[bytes | memoryview]
    if compression is Compression.NONE:
        pieces = iter((data,))
    elif compression is Compression.SNAPPY:
        pieces = _snappy_pieces(data, bytes_max)
    else:
        pieces = _arrow_pieces(_ARROW_NAMES[compression], data)
    total = 0
    while True:
        try:
            piece = next(pieces, None)
        except (pa.ArrowException, OSError, zlib.error) as error:
            raise LogError(
                ErrorCode.corrupt_message,
                f"The records section of a batch is not valid {compression.name.lower()}: {error}",
            ) from error
        if piece is None:
            return
        total += len(piece)
        if total > bytes_max:
            raise _too_large(compression, bytes_max)
        yield piece


def _arrow_pieces(codec: str, data: memoryview) -> Iterator[bytes]:
    source: Any = pa.BufferReader(pa.py_buffer(data))
    with pa.CompressedInputStream(source, codec) as stream:
        while piece := stream.read(_PIECE_BYTES):
            yield piece


def _snappy_pieces(data: memoryview, bytes_max: int) -> Iterator[bytes]:
    if bytes(data[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        yield _snappy_block(data, bytes_max)
        return
    position = _XERIAL_HEADER_BYTES
    while position < len(data):
        block_bytes = int.from_bytes(data[position : position + 4], "big")
        position += 4
        if block_bytes == 0 or position + block_bytes > len(data):
            raise OSError(f"a snappy block of {block_bytes} bytes leaves the batch")
        yield _snappy_block(data[position : position + block_bytes], bytes_max)
        position += block_bytes


def _snappy_block(block: memoryview, bytes_max: int) -> bytes:
    size_bytes, shift = 0, 0
    for byte in block[:5]:
        size_bytes |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            break
    else:
        raise OSError("a snappy block has no valid length")
    # No snappy element gives more than 64 bytes for 3 of input; a larger claim is a bomb.
    if size_bytes > bytes_max or size_bytes > 32 * len(block):
        raise _too_large(Compression.SNAPPY, bytes_max)
    codec: Any = pa.Codec("snappy")
    return bytes(codec.decompress(block, size_bytes, asbytes=True))


def _too_large(compression: Compression, bytes_max: int) -> LogError:
    return LogError(
        ErrorCode.corrupt_message,
        f"A {compression.name.lower()} batch claims more than {bytes_max} bytes of records, "
        "or more than its codec can hold; it is refused as damaged.",
    )
