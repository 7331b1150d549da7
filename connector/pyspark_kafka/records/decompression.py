"""The codecs of record batches, decompressed with a bound on what comes out.

Purpose: one batch's records section as plain bytes, for both implementations. Invariant: no more than
`bytes_max` bytes and one piece are ever held, whatever sizes are claimed. What it must not know:
records.

Batches mostly are small, 16 KB by the default of Kafka's producer, and what a stream of Arrow takes
to be made counts: so gzip is Python's own, and one read is all that a usual batch needs.
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

# No element of a snappy block gives more than 64 bytes for 3: a larger claim is a lie.
_SNAPPY_RATIO_MAX: Final = 32

# zlib's name of the gzip format, with the largest window.
_GZIP: Final = 16 + zlib.MAX_WBITS

# What a batch of ordinary records becomes, so that one piece mostly is all of it.
_RATIO_GUESS: Final = 8
_PIECE_BYTES_MIN: Final = 64 * 1024
_PIECE_BYTES_MAX: Final = 8 * 1024 * 1024


def decompress(codec: Codec, data: memoryview, *, base_offset: int, bytes_max: int) -> bytes:
    """The records section `data` of the batch at `base_offset`, decompressed.

    Raises `DecodeError` where `data` is not what the codec says, or gives more than `bytes_max`.
    """
    try:
        return _PLAIN_OF[codec](data, bytes_max)
    except _TooLarge:
        raise DecodeError(DecodeFailure.TOO_LARGE, base_offset, bytes_max) from None
    except (pa.ArrowException, OSError, zlib.error) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DecodeError(
            DecodeFailure.COMPRESSED, base_offset, codec.name.lower(), reason
        ) from None


class _TooLarge(Exception):  # noqa: N818, never seen outside
    """More comes out than may."""


def _joined(pieces: Iterator[bytes], bytes_max: int) -> bytes:
    """The pieces, while they are no more than `bytes_max` bytes. Raises `_TooLarge`."""
    found: list[bytes] = []
    left = bytes_max
    for piece in pieces:
        left -= len(piece)
        if left < 0:
            raise _TooLarge
        found.append(piece)
    return found[0] if len(found) == 1 else b"".join(found)


def _plain_of_gzip(data: memoryview, bytes_max: int) -> bytes:
    """One member, as all producers write it; more (RFC 1952) go the way of streams."""
    member = zlib.decompressobj(_GZIP)
    plain = member.decompress(data, bytes_max + 1)
    if len(plain) > bytes_max:
        raise _TooLarge
    if not member.eof:
        raise OSError("its last block is not there")
    if member.unused_data:
        return _plain_of_stream("gzip", data, bytes_max)
    return plain


def _plain_of_stream(name: str, data: memoryview, bytes_max: int) -> bytes:
    """LZ4 frames or zstd, by Arrow."""
    stream: Any = pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(data)), name)
    piece_bytes = min(max(_RATIO_GUESS * len(data), _PIECE_BYTES_MIN), _PIECE_BYTES_MAX)
    first: bytes = stream.read(min(piece_bytes, bytes_max + 1))
    second: bytes = stream.read(min(piece_bytes, bytes_max + 1))
    if not second and len(first) <= bytes_max:
        return first
    return _joined(chain([first, second], iter(partial(stream.read, piece_bytes), b"")), bytes_max)


def _plain_of_snappy(data: memoryview, bytes_max: int) -> bytes:
    """Raw snappy, which librdkafka writes, or snappy-java's stream of blocks."""
    blocks = _xerial_blocks(data) if _is_xerial(data) else iter([data] if data else [])
    codec: Any = pa.Codec("snappy")
    left = bytes_max
    found: list[bytes] = []
    for block in blocks:
        size_bytes = _snappy_size(block)
        left -= size_bytes
        if left < 0:
            raise _TooLarge
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
            raise OSError(f"a block claims {size_bytes} bytes")
        position = start + size_bytes
        yield data[start:position]


def _snappy_size(block: memoryview) -> int:
    """The size that a raw block begins with, little-endian in groups of 7 bits.

    Raises `OSError` where it is none, or more than the block can give.
    """
    size_bytes = 0
    for index, byte in enumerate(block[:5]):
        size_bytes |= (byte & 0x7F) << (7 * index)
        if not byte & 0x80:
            if size_bytes > _SNAPPY_RATIO_MAX * len(block):
                break
            return size_bytes
    raise OSError(f"a block of {len(block)} bytes has no size, or one that cannot be")


_PLAIN_OF: Final[Mapping[Codec, Callable[[memoryview, int], bytes]]] = {
    Codec.GZIP: _plain_of_gzip,
    Codec.SNAPPY: _plain_of_snappy,
    Codec.LZ4: partial(_plain_of_stream, "lz4"),
    Codec.ZSTD: partial(_plain_of_stream, "zstd"),
}
