"""A corpus of corrupt fetch responses: golden batches of Apache Kafka with one change each.

Every run has the same few thousand inputs for every kind of corruption, generated from one seed.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from pathlib import Path

from tests.pyspark_kafka.records.batches import HEADER_BYTES, with_crc

GOLDEN = Path(__file__).parents[2] / "golden"
SEED = 5
OF_EACH_KIND = 12

INT32 = (-(2**31), -2, -1, 0, 1, 2, 0x7F, 0x80, 2**31 - 2, 2**31 - 1)
INT64 = (-(2**63), -2, -1, 0, 1, 2**31, 2**63 // 1000, 2**63 - 2, 2**63 - 1)
HEADER_FIELDS = {
    "base offset": (0, ">q", INT64),
    "length": (8, ">i", (*INT32, 48, 49, 50, 1 << 20)),
    "magic": (16, ">b", (-128, -1, 0, 1, 3, 127)),
    "attributes": (21, ">h", (*range(8), 0x08, 0x10, 0x20, 0x30, 0x40, -1)),
    "last offset delta": (23, ">i", INT32),
    "base timestamp": (27, ">q", INT64),
    "max timestamp": (35, ">q", INT64),
    "producer id": (43, ">q", INT64),
    "record count": (57, ">i", INT32),
}
NUMBERS = {
    "ten bytes, the largest": b"\xff" * 9 + b"\x01",
    "ten bytes, too many bits": b"\xff" * 10,
    "eleven bytes": b"\x80" * 10 + b"\0",
    "ten bytes of nothing": b"\x80" * 9 + b"\0",
    "five bytes, the largest": b"\xff" * 4 + b"\x0f",
    "five bytes, too many bits": b"\xff" * 4 + b"\x1f",
    "the largest length": b"\xfe" + b"\xff" * 3 + b"\x0f",
    "-1": b"\x01",
    "-2": b"\x03",
    "64": b"\x80\x01",
    "0 in three bytes": b"\x80\x80\x00",
}


def batches_of(data: bytes) -> list[bytes]:
    found = []
    while data:
        size_bytes = 12 + int(struct.unpack_from(">i", data, 8)[0])
        found.append(data[:size_bytes])
        data = data[size_bytes:]
    return found


def refitted(damaged: bytes) -> bytes:
    """Correct the length and the CRC, as if a faulty producer had written the batch."""
    if len(damaged) < HEADER_BYTES:
        return damaged
    return with_crc(damaged[:8] + struct.pack(">i", len(damaged) - 12) + damaged[12:])


def golden() -> dict[str, bytes]:
    return {path.stem: path.read_bytes() for path in sorted(GOLDEN.glob("*.bin"))}


def damaged(name: str, data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield a description of each change, and the golden batches `name` with this change."""
    chance = random.Random(f"{SEED} {name}")
    whole = batches_of(data)
    yield from _whole_batches(data, whole, chance)
    for index in {0, chance.randrange(len(whole)), len(whole) - 1}:
        before, after = b"".join(whole[:index]), b"".join(whole[index + 1 :])
        for done, batch in _one_batch(whole[index], chance):
            yield f"batch {index}: {done}", before + batch + after


def _whole_batches(
    data: bytes, whole: list[bytes], chance: random.Random
) -> Iterator[tuple[str, bytes]]:
    for _ in range(OF_EACH_KIND):
        size = chance.randrange(len(data))
        yield f"cut to {size}", data[:size]
        at = chance.randrange(len(data))
        yield f"flip at {at}", _flipped(data, at, chance.randrange(8))
    yield "backward", b"".join(reversed(whole))
    yield "each twice", b"".join(batch * 2 for batch in whole)
    yield "all twice", data * 2


def _one_batch(batch: bytes, chance: random.Random) -> Iterator[tuple[str, bytes]]:
    for field, (at, form, values) in HEADER_FIELDS.items():
        for value in values:
            end = at + struct.calcsize(form)
            yield f"{field} {value}", with_crc(batch[:at] + struct.pack(form, value) + batch[end:])
    header, section = batch[:HEADER_BYTES], batch[HEADER_BYTES:]
    for size in {0, *(chance.randrange(len(section)) for _ in range(OF_EACH_KIND))}:
        yield f"section cut to {size}", refitted(header + section[:size])
    for _ in range(3 * OF_EACH_KIND):
        # Half of the changes are in the first record or in the header of the compressed data.
        at = chance.randrange(min(16, len(section)) if chance.random() < 0.5 else len(section))
        bit = chance.randrange(8)
        yield f"section flip {bit} at {at}", refitted(header + _flipped(section, at, bit))
        for number, made in NUMBERS.items():
            replaced = section[:at] + made + section[at + 1 :]
            yield f"section {number} at {at}", refitted(header + replaced)
    yield "a batch as records", refitted(header + batch)
    yield "with a rest", refitted(batch + b"\0")


def _flipped(data: bytes, at: int, bit: int) -> bytes:
    return data[:at] + bytes((data[at] ^ 1 << bit,)) + data[at + 1 :]
