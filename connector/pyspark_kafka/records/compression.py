"""Compress record batches.

Both implementations of `encode` use this module to compress the records section of a batch. Kafka's
Java clients and brokers, librdkafka and kafka-python can read the compressed section. The same
section, codec and level always result in the same bytes.

This module writes the LZ4 frames itself, because Kafka's Java client rejects the frames of Arrow's
codec. `Lz4BlockInputStream` requires this format:

| size | field            | value                                                                |
| ---: | ---------------- | -------------------------------------------------------------------- |
|    4 | magic            | 0x184D2204, little-endian like all numbers here                      |
|    1 | FLG              | 0x60: version 1, independent blocks; no checksums of blocks or       |
|      |                  | content, no content size                                             |
|    1 | BD               | 0x40: blocks of at most 64 KiB, as in Java                           |
|    1 | header checksum  | 0x82: second byte of the xxHash32 of FLG and BD                      |
|      | blocks           | each: size int32, with the highest bit set if it is not compressed   |
|    4 | end mark         | 0                                                                    |
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import pyarrow as pa

from pyspark_kafka.records.contract import Buffer, Codec

LEVELS: Final[Mapping[Codec, range]] = {
    Codec.NONE: range(0),
    Codec.GZIP: range(1, 10),
    Codec.SNAPPY: range(0),
    Codec.LZ4: range(1, 18),
    Codec.ZSTD: range(-(1 << 17), 23),
}
"""The levels that Kafka's producer accepts (KIP-390). Codecs without levels have an empty range."""

# The defaults of Kafka's Java producer, which differ from the defaults of Arrow. The producer's
# default for LZ4 is the fast compressor, which is level 1 here.
_DEFAULT_LEVELS: Final[Mapping[Codec, int | None]] = {
    Codec.GZIP: 6,
    Codec.SNAPPY: None,
    Codec.LZ4: 1,
    Codec.ZSTD: 3,
}
_ARROW_NAMES: Final[Mapping[Codec, str]] = {
    Codec.GZIP: "gzip",
    Codec.SNAPPY: "snappy",
    Codec.LZ4: "lz4_raw",
    Codec.ZSTD: "zstd",
}

# liblz4 reduces higher levels to this level.
_LZ4_LEVEL_MAX: Final = 12
_LZ4_HEADER: Final = b"\x04\x22\x4d\x18\x60\x40\x82"
_LZ4_BLOCK_BYTES: Final = 64 * 1024
_LZ4_SIZE: Final = struct.Struct("<I")
_LZ4_PLAIN_BIT: Final = 1 << 31
_LZ4_END: Final = b"\0\0\0\0"

Compress = Callable[[memoryview], bytes]
"""A function that compresses a records section."""


def compressor(codec: Codec, level: int | None) -> Compress:
    """Return a compressor, which is not thread-safe."""
    assert codec is not Codec.NONE
    assert level is None or level in LEVELS[codec]
    arrow_level = _DEFAULT_LEVELS[codec] if level is None else level
    if codec is Codec.LZ4:
        return _Lz4Frames(min(arrow_level or 1, _LZ4_LEVEL_MAX))
    whole: Any = pa.Codec(_ARROW_NAMES[codec], compression_level=arrow_level)
    # Use `asbytes`: a memoryview of a buffer that Arrow has shrunk still has the old size.
    return partial(whole.compress, asbytes=True)


class _Lz4Frames:
    """A compressor that returns one LZ4 frame for each records section."""

    def __init__(self, level: int) -> None:
        self._codec: Any = pa.Codec(_ARROW_NAMES[Codec.LZ4], compression_level=level)

    def __call__(self, section: memoryview) -> bytes:
        frame: list[Buffer] = [_LZ4_HEADER]
        for start in range(0, len(section), _LZ4_BLOCK_BYTES):
            plain = section[start : start + _LZ4_BLOCK_BYTES]
            block = self._codec.compress(plain, asbytes=True)
            if len(block) < len(plain):
                frame += [_LZ4_SIZE.pack(len(block)), block]
            else:
                frame += [_LZ4_SIZE.pack(len(plain) | _LZ4_PLAIN_BIT), plain]
        frame.append(_LZ4_END)
        return b"".join(frame)
