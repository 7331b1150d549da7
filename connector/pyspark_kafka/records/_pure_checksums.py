"""The checksum of rows, in plain Python.

This is the readable reference implementation, which is also used if the compiled kernel (`_kernel`)
is not installed. It returns the same sums as `_kernel`, and the sums are the same in every release.

Each step combines the current hash with little-endian words of 64 bits. `fold(a, b)` multiplies two
words and XORs the upper 64 bits of the product with the lower 64 bits. W0 to W7 are constants. The
steps for a row:

    topic       as a field, starting with the hash 0
    place       fold(hash ^ W4 ^ place, timestamp ^ W5). The lower 32 bits of `place` are the
                partition, or 0 for null. Bit 32 is set if there is a partition, and bit 33 if there
                is a timestamp.
    key, value  as fields
    headers     the key and value of each header as fields, then fold(hash ^ W6, count ^ W7)

The steps for a field:

    null        hash + W0
    not null    1. 64 bytes at a time while at least 64 bytes remain, in four lanes (`_stripes`)
                2. 16 bytes at a time while more than 16 bytes remain, as two words a and b:
                   fold(a ^ W2, b ^ hash)
                3. the last 16 bytes of the field, which can overlap with the previous steps, or the
                   whole field padded with zeros if it is shorter:
                   fold(a ^ W3, b ^ hash ^ W1 * size)
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from itertools import repeat
from typing import Any, Final

import pyarrow as pa

from pyspark_kafka.records._pure_encode import binaries
from pyspark_kafka.records.contract import Buffer

_MASK: Final = 2**64 - 1
W: Final = (
    0x6A09E667F3BCC908, 0xBB67AE8584CAA73B, 0x3C6EF372FE94F82B, 0xA54FF53A5F1D36F1,
    0x510E527FADE682D1, 0x9B05688C2B3E6C1F, 0x1F83D9ABFB41BD6B, 0x5BE0CD19137E2179,
)  # fmt: skip
"""Arbitrary constants: the fractional parts of the square roots of the first eight primes."""
_HAS_PARTITION: Final = 1 << 32
_HAS_TIMESTAMP: Final = 1 << 33
_STRIPE: Final = struct.Struct("<8Q")
_BLOCK: Final = struct.Struct("<2Q")
_COLUMNS: Final = ("topic", "partition", "timestamp", "key", "value", "headers")


def row_checksums(batch: pa.RecordBatch) -> int:
    """See `checksums.RowChecksums`."""
    columns: list[Iterable[Any]] = [_column(batch, name) for name in _COLUMNS]
    return sum(map(_row_hash, zip(*columns, strict=True))) & _MASK


def _column(batch: pa.RecordBatch, name: str) -> Iterable[Any]:
    if name not in batch.schema.names:
        return repeat(None, batch.num_rows)
    column = batch.column(name)
    if name in ("partition", "timestamp"):
        numbers: list[int | None] = column.cast(pa.int64()).to_pylist()
        return numbers
    if name == "headers":
        return [_headers(scalar) for scalar in column]
    return binaries(column.dictionary_decode() if pa.types.is_dictionary(column.type) else column)


def _headers(scalar: Any) -> list[tuple[Buffer | None, Buffer | None]]:
    if not scalar.is_valid:
        return []
    pairs = scalar.values
    return list(zip(binaries(pairs.field("key")), binaries(pairs.field("value")), strict=True))


def _row_hash(row: tuple[Any, ...]) -> int:
    topic, partition, timestamp, key, value, headers = row
    place = 0
    if partition is not None:
        place |= partition & 0xFFFFFFFF | _HAS_PARTITION
    if timestamp is not None:
        place |= _HAS_TIMESTAMP
    mixed = _field(0, topic) ^ W[4]
    mixed = _fold(mixed ^ place, (timestamp or 0) & _MASK ^ W[5])
    mixed = _field(_field(mixed, key), value)
    for header_key, header_value in headers or ():
        mixed = _field(_field(mixed, header_key), header_value)
    return _fold(mixed ^ W[6], len(headers or ()) ^ W[7])


def _fold(one: int, other: int) -> int:
    product = one * other
    return product & _MASK ^ product >> 64


def _field(mixed: int, data: Buffer | None) -> int:
    if data is None:
        return mixed + W[0] & _MASK
    size = len(data)
    position = size - size % _STRIPE.size
    if position:
        mixed = _stripes(mixed, data[:position])
    while size - position > _BLOCK.size:
        low, high = _BLOCK.unpack_from(data, position)
        mixed = _fold(low ^ W[2], high ^ mixed)
        position += _BLOCK.size
    low, high = _BLOCK.unpack(bytes(data[-_BLOCK.size :]).ljust(_BLOCK.size, b"\0"))
    return _fold(low ^ W[3], high ^ mixed ^ W[1] * size & _MASK)


def _stripes(mixed: int, data: Buffer) -> int:
    """Hash the four 16-byte lanes of all 64-byte blocks separately, and combine the four hashes."""
    a = b = c = d = mixed
    for words in _STRIPE.iter_unpack(data):
        a = _fold(words[0] ^ W[0], words[1] ^ a)
        b = _fold(words[2] ^ W[1], words[3] ^ b)
        c = _fold(words[4] ^ W[2], words[5] ^ c)
        d = _fold(words[6] ^ W[3], words[7] ^ d)
    return (a ^ b) + (c ^ d) & _MASK
