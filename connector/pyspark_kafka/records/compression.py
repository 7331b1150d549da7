"""The codecs of record batches, as producers write them.

Purpose: a batch's records section compressed, for both implementations, in the forms that Kafka's Java
clients and brokers, librdkafka and kafka-python all read. Invariant: the same bytes for the same
section, codec and level. What it must not know: records.

LZ4 is framed here, since the frames of Arrow's own codec are not what Kafka's Java client takes
(`Lz4BlockInputStream` refuses what is not exactly this):

| size | field            | value                                                                |
| ---: | ---------------- | -------------------------------------------------------------------- |
|    4 | magic            | 0x184D2204, little-endian like all of it                             |
|    1 | FLG              | 0x60: version 1, blocks independent of each other; no checksums of   |
|      |                  | blocks or content, no content size                                   |
|    1 | BD               | 0x40: blocks of at most 64 KiB, as Java writes them                  |
|    1 | header checksum  | 0x82: second byte of the xxHash32 of FLG and BD                      |
|      | blocks           | each: size int32, its highest bit set where the block is plain       |
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
"""The levels that Kafka's producer takes (KIP-390), and ours; none where there are none."""

# What Kafka's Java producer does where no level is set. Arrow's own defaults are others. For LZ4
# it is the fast compressor, which 1 means here.
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

# liblz4 takes what is above for this.
_LZ4_LEVEL_MAX: Final = 12
_LZ4_HEADER: Final = b"\x04\x22\x4d\x18\x60\x40\x82"
_LZ4_BLOCK_BYTES: Final = 64 * 1024
_LZ4_SIZE: Final = struct.Struct("<I")
_LZ4_PLAIN_BIT: Final = 1 << 31
_LZ4_END: Final = b"\0\0\0\0"

Compress = Callable[[memoryview], bytes]
"""A records section to what stands for it in the batch."""


def compressor(codec: Codec, level: int | None) -> Compress:
    """For one thread: what Arrow's codecs keep between calls is not guarded."""
    assert codec is not Codec.NONE
    assert level is None or level in LEVELS[codec]
    arrow_level = _DEFAULT_LEVELS[codec] if level is None else level
    if codec is Codec.LZ4:
        return _Lz4Frames(min(arrow_level or 1, _LZ4_LEVEL_MAX))
    whole: Any = pa.Codec(_ARROW_NAMES[codec], compression_level=arrow_level)
    # As bytes: Arrow's own buffer, shrunk to its size, still gives the one before as its shape.
    return partial(whole.compress, asbytes=True)


class _Lz4Frames:
    """Each section as one frame."""

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
