"""The four compression codecs for record batches, with a limit on the decompressed size.

The records of a batch are decompressed in pieces, and compressed again after compaction. Invariant:
at most `DECOMPRESSED_BYTES_MAX` bytes are decompressed per batch, and at most one block is in
memory. The limit is necessary because a batch header does not contain the decompressed size: a few
kilobytes can expand to gigabytes.
"""

from __future__ import annotations

import gzip
import io
import sys
import zlib
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import Any, Final

import cramjam
from kio.schema.errors import ErrorCode

from broker_ref.log.errors import LogError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

DECOMPRESSED_BYTES_MAX = 1 << 27
"""Maximum number of decompressed bytes per batch. Kafka has no such limit.

The value equals the maximum size of a single record (`RECORD_BYTES_MAX`). It is 128 times the
default of `max.message.bytes`, and even repetitive data compresses only by a factor of about 100.
"""
_PIECE_BYTES = 64 * 1024

# snappy-java's stream format (SnappyOutputStream), which Kafka's Java clients write:
#   magic 8 bytes | version int32 | compatible version int32 | (length int32 | raw snappy block)*
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16
_XERIAL_VERSIONS = b"\0\0\0\1\0\0\0\1"
_XERIAL_BLOCK_BYTES = 32 * 1024

# LZ4 frame, as in Kafka's Lz4BlockInputStream and Lz4BlockOutputStream:
#   magic 4 bytes | flags | block size | content size int64, optional | header checksum, then
#   (length int32, top bit: not compressed | block | checksum int32, optional)* | 0 int32
# All integers are little-endian. The log relies on the CRC of the batch, and ignores the checksums.
_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_LZ4_HEADER_BYTES = 7
_LZ4_VERSION_1_INDEPENDENT_BLOCKS = 0b011
_LZ4_BLOCK_CHECKSUM_BIT = 1 << 4
_LZ4_CONTENT_SIZE_BIT = 1 << 3
_LZ4_UNCOMPRESSED_BIT = 1 << 31
_LZ4_BLOCK_BYTES = 64 * 1024
_LZ4_HEADER_OF_64_KB_BLOCKS = _LZ4_MAGIC + b"\x60\x40\x82"


class Compression(IntEnum):
    """Compression codec: bits 0 to 2 of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


_OPEN: Final[dict[Compression, Callable[[io.BytesIO], Any]]] = {
    Compression.GZIP: gzip.open,
    Compression.ZSTD: zstd.open,
}
_INVALID: Final = (
    OSError,  # gzip, and our own checks
    EOFError,
    zlib.error,
    zstd.ZstdError,
    cramjam.DecompressionError,
)


def decompressed_pieces(
    compression: Compression, data: memoryview, *, bytes_max: int = DECOMPRESSED_BYTES_MAX
) -> Iterator[bytes | memoryview]:
    """Yield the decompressed bytes of `data` in pieces.

    Raises: LogError(CORRUPT_MESSAGE) if `data` cannot be decompressed or expands to more than
    `bytes_max` bytes.
    """
    pieces: Iterator[bytes | memoryview]
    if compression is Compression.NONE:
        pieces = iter((data,))
    elif compression is Compression.SNAPPY:
        pieces = _snappy_pieces(data, bytes_max)
    elif compression is Compression.LZ4:
        pieces = _lz4_pieces(data)
    else:
        pieces = _stream_pieces(compression, data)
    total = 0
    while True:
        try:
            piece = next(pieces, None)
        except _INVALID as error:
            raise LogError(
                ErrorCode.corrupt_message,
                f"The records of a batch are not valid {compression.name.lower()} data: {error}.",
            ) from error
        if piece is None:
            return
        total += len(piece)
        if total > bytes_max:
            raise _too_large(compression, bytes_max)
        yield piece


def compressed(compression: Compression, data: bytes) -> bytes:
    """Compress the encoded records of a batch at Kafka's default compression level."""
    if compression is Compression.GZIP:
        return gzip.compress(data, compresslevel=6, mtime=0)
    if compression is Compression.SNAPPY:
        return _snappy_stream(data)
    if compression is Compression.LZ4:
        return _lz4_frame(data)
    if compression is Compression.ZSTD:
        return bytes(zstd.compress(data))
    return data


def _snappy_stream(data: bytes) -> bytes:
    blocks = [_XERIAL_MAGIC, _XERIAL_VERSIONS]
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK_BYTES]))
        blocks += [len(block).to_bytes(4, "big"), block]
    return b"".join(blocks)


def _lz4_frame(data: bytes) -> bytes:
    blocks = [_LZ4_HEADER_OF_64_KB_BLOCKS]
    for start in range(0, len(data), _LZ4_BLOCK_BYTES):
        plain = data[start : start + _LZ4_BLOCK_BYTES]
        block = bytes(cramjam.lz4.compress_block(plain, store_size=False))
        if len(block) < len(plain):
            blocks += [len(block).to_bytes(4, "little"), block]
        else:
            blocks += [(len(plain) | _LZ4_UNCOMPRESSED_BIT).to_bytes(4, "little"), plain]
    return b"".join([*blocks, bytes(4)])


def _stream_pieces(compression: Compression, data: memoryview) -> Iterator[bytes]:
    with _OPEN[compression](io.BytesIO(data)) as stream:
        while piece := stream.read(_PIECE_BYTES):
            yield piece


def _lz4_pieces(data: memoryview) -> Iterator[bytes | memoryview]:
    if len(data) < _LZ4_HEADER_BYTES or data[:4] != _LZ4_MAGIC:
        raise OSError("the LZ4 frame has no header")
    flags, block_size = data[4], data[5] >> 4
    if flags >> 5 != _LZ4_VERSION_1_INDEPENDENT_BLOCKS or block_size not in range(4, 8):
        raise OSError("Kafka supports only LZ4 frames with independent blocks of 64 KB to 4 MB")
    block = bytearray(1 << (2 * block_size + 8))
    position = _LZ4_HEADER_BYTES + (8 if flags & _LZ4_CONTENT_SIZE_BIT else 0)
    checksum_bytes = 4 if flags & _LZ4_BLOCK_CHECKSUM_BIT else 0
    while position + 4 <= len(data):
        length = int.from_bytes(data[position : position + 4], "little")
        if length == 0:
            return
        is_compressed = not length & _LZ4_UNCOMPRESSED_BIT
        length &= ~_LZ4_UNCOMPRESSED_BIT
        position += 4
        if length > min(len(block), len(data) - position):
            raise OSError(f"an LZ4 block of {length} bytes exceeds the size of the batch")
        piece = data[position : position + length]
        if is_compressed:
            yield bytes(memoryview(block)[: cramjam.lz4.decompress_block_into(piece, block)])
        else:
            yield piece
        position += length + checksum_bytes
    raise OSError("the LZ4 frame has no end")


def _snappy_pieces(data: memoryview, bytes_max: int) -> Iterator[bytes]:
    if bytes(data[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        yield _snappy_block(data, bytes_max)
        return
    position = _XERIAL_HEADER_BYTES
    while position < len(data):
        block_bytes = int.from_bytes(data[position : position + 4], "big")
        position += 4
        if block_bytes == 0 or position + block_bytes > len(data):
            raise OSError(f"a snappy block of {block_bytes} bytes exceeds the size of the batch")
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
        raise OSError("a snappy block has an invalid length")
    # In snappy, three bytes expand to at most 64 bytes, so a larger size is invalid.
    if size_bytes > bytes_max or size_bytes > 32 * len(block):
        raise _too_large(Compression.SNAPPY, bytes_max)
    return bytes(cramjam.snappy.decompress_raw(block))


def _too_large(compression: Compression, bytes_max: int) -> LogError:
    return LogError(
        ErrorCode.corrupt_message,
        f"The decompressed size of a {compression.name.lower()} batch exceeds {bytes_max} bytes, "
        "or is too large for its compressed size.",
    )
