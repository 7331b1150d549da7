"""The codecs of record batches, decompressed with a bound on what comes out.

Purpose: one batch's records section as plain bytes, for both twins. Invariant: no more than
`bytes_max` bytes and one piece are ever held. What it must not know: records.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final

import pyarrow as pa

from pyspark_kafka.records.contract import BatchFault, Fault

# The stream format of snappy-java (SnappyOutputStream), which Kafka's Java clients write:
#   magic 8 bytes | version int32 | compatible version int32 | (length int32 | raw snappy block)*
_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES: Final = 16

# No element of a snappy block gives more than 64 bytes for 3: a larger claim is a lie.
_SNAPPY_RATIO_MAX: Final = 32

# What a batch of ordinary records becomes, so that one piece mostly is all of it.
_RATIO_GUESS: Final = 8
_PIECE_BYTES_MIN: Final = 64 * 1024
_PIECE_BYTES_MAX: Final = 8 * 1024 * 1024


class Codec(IntEnum):
    """Bits 0 to 2 of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def decompress(codec: Codec, data: memoryview, *, base_offset: int, bytes_max: int) -> bytes:
    """The records section `data` of the batch at `base_offset`, decompressed.

    Raises `BatchFault` where `data` is not what the codec says, or gives more than `bytes_max`.
    """
    assert codec is not Codec.NONE
    pieces = _SnappyBlocks(data) if codec is Codec.SNAPPY else _Stream(codec.name.lower(), data)
    found: list[bytes] = []
    left = bytes_max
    try:
        while piece := pieces.next(left + 1):
            left -= len(piece)
            if left < 0:
                raise _TooLarge
            found.append(piece)
    except _TooLarge:
        raise BatchFault(Fault.TOO_LARGE, base_offset, bytes_max) from None
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BatchFault(Fault.COMPRESSED, base_offset, codec.name.lower(), reason) from None
    return found[0] if len(found) == 1 else b"".join(found)


class _TooLarge(Exception):  # noqa: N818, never seen outside
    """More comes out than may."""


class _Stream:
    """gzip, LZ4 frames or zstd, by Arrow."""

    def __init__(self, name: str, data: memoryview) -> None:
        self._piece_bytes = min(max(_RATIO_GUESS * len(data), _PIECE_BYTES_MIN), _PIECE_BYTES_MAX)
        self._stream: Any = pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(data)), name)

    def next(self, bytes_max: int) -> bytes:
        piece: bytes = self._stream.read(min(self._piece_bytes, bytes_max))
        return piece


class _SnappyBlocks:
    """Raw snappy, which librdkafka writes, or snappy-java's stream of blocks."""

    def __init__(self, data: memoryview) -> None:
        self._codec: Any = pa.Codec("snappy")
        self._data = data
        self._framed = bytes(data[: len(_XERIAL_MAGIC)]) == _XERIAL_MAGIC
        self._position = _XERIAL_HEADER_BYTES if self._framed else 0

    def next(self, bytes_max: int) -> bytes:
        plain = b""
        while not plain and self._position < len(self._data):
            plain = self._block(self._next_block(), bytes_max)
        return plain

    def _next_block(self) -> memoryview:
        start, end = self._position, len(self._data)
        if self._framed:
            size_bytes = int.from_bytes(self._data[start : start + 4], "big")
            start += 4
            if size_bytes == 0 or size_bytes > len(self._data) - start:
                raise OSError(f"a block claims {size_bytes} bytes")
            end = start + size_bytes
        self._position = end
        return self._data[start:end]

    def _block(self, block: memoryview, bytes_max: int) -> bytes:
        size_bytes = _snappy_size(block)
        if size_bytes > _SNAPPY_RATIO_MAX * len(block):
            raise OSError(f"a block of {len(block)} bytes claims {size_bytes} bytes of plain data")
        if size_bytes >= bytes_max:
            raise _TooLarge
        plain: bytes = self._codec.decompress(block, size_bytes, asbytes=True)
        return plain


def _snappy_size(block: memoryview) -> int:
    """The size that a raw block begins with, little-endian in groups of 7 bits."""
    size_bytes = 0
    for index, byte in enumerate(block[:5]):
        size_bytes |= (byte & 0x7F) << (7 * index)
        if not byte & 0x80:
            return size_bytes
    raise OSError("a block has no size")
