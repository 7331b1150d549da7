"""Decompress record batches up to a size limit.

Both implementations of `decode` use this module to decompress the records section of a batch. Data
is decompressed in chunks. Decompression allocates at most `bytes_max` bytes plus one chunk, even if
the data declares a larger size.

Most batches are small (the default of Kafka's producer is 16 KB), so the time to create an Arrow
stream matters. For this reason, gzip data is decompressed with Python's zlib, and a chunk is large
enough for most batches.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import Any, Final

import pyarrow as pa

from pyspark_kafka.records.contract import Codec, DecodeError, DecodeFailure

# The stream format of snappy-java (SnappyOutputStream), which Kafka's Java clients write:
#   magic 8 bytes | version int32 | compatible version int32 | (length int32 | raw snappy block)*
_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES: Final = 16

# Three bytes of a snappy block decompress to at most 64 bytes, so a higher ratio is invalid.
_SNAPPY_RATIO_MAX: Final = 32

# The value of `wbits` with which zlib reads the gzip format, with the largest window.
_GZIP: Final = 16 + zlib.MAX_WBITS

# The assumed compression ratio of a batch. One piece is usually enough.
_RATIO_GUESS: Final = 8
_PIECE_BYTES_MIN: Final = 64 * 1024
_PIECE_BYTES_MAX: Final = 8 * 1024 * 1024


def decompress(codec: Codec, data: memoryview, *, base_offset: int, bytes_max: int) -> bytes:
    """Decompress `data`, the records section of the batch with the base offset `base_offset`.

    Raises `DecodeError` if `data` is invalid, or is larger than `bytes_max` bytes after
    decompression.
    """
    try:
        return _PLAIN_OF[codec](data, bytes_max)
    except _TooLargeError:
        raise DecodeError(DecodeFailure.TOO_LARGE, base_offset, bytes_max) from None
    except (pa.ArrowException, OSError, zlib.error) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DecodeError(
            DecodeFailure.COMPRESSED, base_offset, codec.name.lower(), reason
        ) from None


class _TooLargeError(Exception):
    """The decompressed data is larger than allowed."""


def _joined(pieces: Iterator[bytes], bytes_max: int) -> bytes:
    """Join decompressed data. Raises `_TooLargeError` if the result would exceed `bytes_max`."""
    found: list[bytes] = []
    left = bytes_max
    for piece in pieces:
        left -= len(piece)
        if left < 0:
            raise _TooLargeError
        found.append(piece)
    return found[0] if len(found) == 1 else b"".join(found)


def _plain_of_gzip(data: memoryview, bytes_max: int) -> bytes:
    """Decompress gzip data. Producers write one member, but RFC 1952 allows several members."""
    member = zlib.decompressobj(_GZIP)
    plain = member.decompress(data, bytes_max + 1)
    if len(plain) > bytes_max:
        raise _TooLargeError
    if not member.eof:
        raise OSError("the last block is missing")
    if member.unused_data:
        return _plain_of_stream("gzip", data, bytes_max)
    return plain


def _plain_of_stream(name: str, data: memoryview, bytes_max: int) -> bytes:
    """Decompress LZ4 frames or zstd data with Arrow."""
    stream: Any = pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(data)), name)
    piece_bytes = min(max(_RATIO_GUESS * len(data), _PIECE_BYTES_MIN), _PIECE_BYTES_MAX)
    first: bytes = stream.read(min(piece_bytes, bytes_max + 1))
    second: bytes = stream.read(min(piece_bytes, bytes_max + 1))
    if not second and len(first) <= bytes_max:
        return first
    return _joined(chain([first, second], iter(partial(stream.read, piece_bytes), b"")), bytes_max)


def _plain_of_snappy(data: memoryview, bytes_max: int) -> bytes:
    """Decompress raw snappy data (librdkafka) or snappy-java's stream of blocks (Java clients)."""
    blocks = _xerial_blocks(data) if _is_xerial(data) else iter([data] if data else [])
    codec: Any = pa.Codec("snappy")
    left = bytes_max
    found: list[bytes] = []
    for block in blocks:
        size_bytes = _snappy_size(block)
        left -= size_bytes
        if left < 0:
            raise _TooLargeError
        found.append(codec.decompress(block, size_bytes, asbytes=True))
    return found[0] if len(found) == 1 else b"".join(found)


def _is_xerial(data: memoryview) -> bool:
    return bytes(data[: len(_XERIAL_MAGIC)]) == _XERIAL_MAGIC


def _xerial_blocks(data: memoryview) -> Iterator[memoryview]:
    position = _XERIAL_HEADER_BYTES
    while position < len(data):
        start = position + 4
        size_bytes = int.from_bytes(data[position:start], "big")
        if size_bytes == 0 or size_bytes > len(data) - start:
            raise OSError(f"a block has an invalid size of {size_bytes} bytes")
        position = start + size_bytes
        yield data[start:position]


def _snappy_size(block: memoryview) -> int:
    """Return the decompressed size of a raw Snappy block from the varint at its start.

    Raises `OSError` if the size is invalid, or too large for a block of this length.
    """
    size_bytes = 0
    for index, byte in enumerate(block[:5]):
        size_bytes |= (byte & 0x7F) << (7 * index)
        if not byte & 0x80:
            if size_bytes > _SNAPPY_RATIO_MAX * len(block):
                break
            return size_bytes
    raise OSError(f"a block of {len(block)} bytes does not start with a valid size")


_PLAIN_OF: Final[Mapping[Codec, Callable[[memoryview, int], bytes]]] = {
    Codec.GZIP: _plain_of_gzip,
    Codec.SNAPPY: _plain_of_snappy,
    Codec.LZ4: partial(_plain_of_stream, "lz4"),
    Codec.ZSTD: partial(_plain_of_stream, "zstd"),
}
