"""The four codecs of record batches, with a limit on the decompressed size.

The records of a batch are decompressed in pieces, and compressed again after compaction. Invariant:
at most `DECOMPRESSED_BYTES_MAX` bytes are decompressed per batch, and at most one block is in
memory. The limit is necessary because a batch header does not contain the decompressed size: a few
kilobytes can expand to gigabytes.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from enum import IntEnum
from typing import Any

import pyarrow as pa
from kio.schema.errors import ErrorCode

from broker_ref.log.errors import LogError

DECOMPRESSED_BYTES_MAX = 1 << 27
"""Maximum number of decompressed bytes per batch. Kafka has no such limit.

The value equals the maximum size of a single record (`RECORD_BYTES_MAX`). It is 128 times the
default of `max.message.bytes`, and even repetitive logs compress only by a factor of about 100.
"""
_PIECE_BYTES = 64 * 1024

# snappy-java's stream format (SnappyOutputStream), which Kafka's Java clients write:
#   magic 8 bytes | version int32 | compatible version int32 | (length int32 | raw snappy block)*
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16
_XERIAL_VERSIONS = b"\0\0\0\1\0\0\0\1"
_XERIAL_BLOCK_BYTES = 32 * 1024

# LZ4 frame: magic | version 1, independent blocks | blocks of at most 64 KB | header checksum, then
#   (length int32, little-endian, top bit: not compressed | block)* | 0 int32
_LZ4_FRAME_HEADER = b"\x04\x22\x4d\x18\x60\x40\x82"
_LZ4_BLOCK_BYTES = 64 * 1024
_LZ4_UNCOMPRESSED_BIT = 1 << 31


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
    """Yield the decompressed bytes of `data` in pieces.

    Raises: LogError(CORRUPT_MESSAGE) if `data` is not valid for the codec or expands to more than
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
                f"The records of a batch are not valid {compression.name.lower()} data: {error}.",
            ) from error
        if piece is None:
            return
        total += len(piece)
        if total > bytes_max:
            raise _too_large(compression, bytes_max)
        yield piece


def compressed(compression: Compression, data: bytes) -> bytes:
    """Compress the encoded records of a batch so that Java clients can read them."""
    if compression is Compression.NONE:
        return data
    if compression is Compression.SNAPPY:
        return _snappy_stream(data)
    if compression is Compression.LZ4:
        return _lz4_frame(data)
    sink: Any = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, _ARROW_NAMES[compression]) as stream:
        stream.write(data)
    return bytes(sink.getvalue())


def _snappy_stream(data: bytes) -> bytes:
    codec: Any = pa.Codec("snappy")
    blocks = [_XERIAL_MAGIC, _XERIAL_VERSIONS]
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = codec.compress(data[start : start + _XERIAL_BLOCK_BYTES], asbytes=True)
        blocks += [len(block).to_bytes(4, "big"), block]
    return b"".join(blocks)


def _lz4_frame(data: bytes) -> bytes:
    """Return a frame of independent blocks, because Java clients cannot read other frames."""
    codec: Any = pa.Codec("lz4_raw")
    blocks = [_LZ4_FRAME_HEADER]
    for start in range(0, len(data), _LZ4_BLOCK_BYTES):
        plain = data[start : start + _LZ4_BLOCK_BYTES]
        block = codec.compress(plain, asbytes=True)
        if len(block) < len(plain):
            blocks += [len(block).to_bytes(4, "little"), block]
        else:
            blocks += [(len(plain) | _LZ4_UNCOMPRESSED_BIT).to_bytes(4, "little"), plain]
    return b"".join([*blocks, bytes(4)])


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
    # Three bytes expand to at most 64 bytes, so a larger size is invalid.
    if size_bytes > bytes_max or size_bytes > 32 * len(block):
        raise _too_large(Compression.SNAPPY, bytes_max)
    codec: Any = pa.Codec("snappy")
    return bytes(codec.decompress(block, size_bytes, asbytes=True))


def _too_large(compression: Compression, bytes_max: int) -> LogError:
    return LogError(
        ErrorCode.corrupt_message,
        f"The decompressed size of a {compression.name.lower()} batch exceeds {bytes_max} bytes, "
        "or is too large for its compressed size.",
    )
