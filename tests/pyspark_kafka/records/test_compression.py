"""Tests of compression with each codec and level."""

from __future__ import annotations

import random
import zlib

import pyarrow as pa
import pytest

from pyspark_kafka.records import Codec
from pyspark_kafka.records.compression import LEVELS, compressor
from pyspark_kafka.records.decompression import decompress

RANDOM = random.Random(3).randbytes(200_000)
TEXT = b"".join(b'{"id": %d, "name": "user-%d"}' % (i, i * i % 977) for i in range(9000))
MIXED = TEXT[:90_000] + RANDOM + TEXT[:70_000]
SECTIONS = {"tiny": b"\x0c\0\0\0\x01\x01\0", "text": TEXT, "random": RANDOM, "mixed": MIXED}
CODECS = [codec for codec in Codec if codec is not Codec.NONE]


def compressed(codec: Codec, section: bytes, level: int | None = None) -> bytes:
    return bytes(compressor(codec, level)(memoryview(section)))


@pytest.mark.parametrize("name", SECTIONS)
@pytest.mark.parametrize("codec", CODECS)
def test_round_trip(codec: Codec, name: str) -> None:
    section = SECTIONS[name]
    written = compressed(codec, section)
    found = decompress(codec, memoryview(written), base_offset=0, bytes_max=len(section))
    assert found == section
    assert len(written) < len(section) * 1.001 + 60
    if name == "text":
        assert len(written) < len(section) / 2


@pytest.mark.parametrize("size", [65_535, 65_536, 65_537, 131_072])
def test_lz4_frames_are_as_in_java(size: int) -> None:
    """The header is constant, and blocks of 64 KiB are uncompressed if that is shorter."""
    frame = compressed(Codec.LZ4, RANDOM[:size])
    assert frame[:7] == bytes.fromhex("04224d18 60 40 82")
    position, plain = 7, b""
    while length := int.from_bytes(frame[position : position + 4], "little"):
        assert length & 1 << 31
        length &= (1 << 31) - 1
        assert length == min(1 << 16, size - len(plain))
        plain += frame[position + 4 : position + 4 + length]
        position += 4 + length
    assert plain == RANDOM[:size]
    assert len(frame) == position + 4


@pytest.mark.parametrize("codec", CODECS)
def test_every_level(codec: Codec) -> None:
    levels = LEVELS[codec]
    for level in {*levels[:2], *levels[-2:], *(level for level in (-1, 0) if level in levels)}:
        written = compressed(codec, MIXED[:120_000], level)
        found = decompress(codec, memoryview(written), base_offset=0, bytes_max=1 << 20)
        assert found == MIXED[:120_000]


@pytest.mark.parametrize(
    ("codec", "low", "high"), [("GZIP", 1, 9), ("LZ4", 1, 12), ("ZSTD", 1, 19)]
)
def test_higher_levels_are_smaller(codec: str, low: int, high: int) -> None:
    assert len(compressed(Codec[codec], TEXT, high)) < len(compressed(Codec[codec], TEXT, low))


def test_default_levels_are_kafkas() -> None:
    """gzip uses level 6 and zstd level 3, unlike Arrow. LZ4 uses the fast compressor."""
    assert compressed(Codec.GZIP, TEXT) == compressed(Codec.GZIP, TEXT, 6)
    assert len(compressed(Codec.GZIP, TEXT)) == len(zlib.compress(TEXT, 6, wbits=31))
    assert compressed(Codec.ZSTD, TEXT) == compressed(Codec.ZSTD, TEXT, 3)
    assert compressed(Codec.LZ4, TEXT) == compressed(Codec.LZ4, TEXT, 1)


def test_levels_above_arrows_maximum() -> None:
    assert compressed(Codec.LZ4, TEXT, 17) == compressed(Codec.LZ4, TEXT, 12)
    assert pa.Codec.maximum_compression_level("lz4_raw") == 12


@pytest.mark.parametrize(
    ("codec", "level"),
    [("GZIP", 0), ("GZIP", 10), ("LZ4", 0), ("LZ4", 18), ("ZSTD", 23), ("SNAPPY", 1)],
)
def test_an_unknown_level_is_an_assertion_error(codec: str, level: int) -> None:
    with pytest.raises(AssertionError):
        compressor(Codec[codec], level)
