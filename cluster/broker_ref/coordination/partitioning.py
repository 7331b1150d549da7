"""Determines which partition of a coordinator's topic stores a group or transactional id.

The partition depends on Java's string hash, which all Kafka brokers use. Source:
`Utils.abs(name.hashCode) % partitionCount` in `GroupMetadataManager` and `TransactionStateManager`.
"""

from __future__ import annotations

from operator import mul
from struct import Struct
from typing import Final

_LEAST_HASH: Final = -(1 << 31)

_LANES: Final = 32
_ROW: Final = Struct(f">{_LANES}Q")
_ROW_FACTOR: Final = pow(31, _LANES, 1 << 32)
_LANE_FACTORS: Final = tuple(pow(31, _LANES - 1 - lane, 1 << 32) for lane in range(_LANES))
_LOW_32_BITS_OF_LANES: Final = int.from_bytes(_ROW.pack(*[0xFFFFFFFF] * _LANES))


def partition_of(name: str, partition_count: int) -> int:
    """Return the partition for a group id or a transactional id."""
    value = java_hash(name)
    # Kafka's Utils.abs returns 0 for Integer.MIN_VALUE, whose absolute value exceeds the int32
    # range.
    return 0 if value == _LEAST_HASH else abs(value) % partition_count


def java_hash(text: str) -> int:
    """Return Java's String.hashCode, a signed 32-bit integer computed from UTF-16 code units.

    A request can contain thousands of names of 32 KiB. The function therefore processes `_LANES`
    code units at once, in the 64-bit lanes of a large integer. Each lane contains the hash of every
    `_LANES`-th code unit. The text is padded with leading zeros, which do not change the hash.
    """
    units = text.encode("utf-16-be", "surrogatepass")
    units = bytes(-len(units) % (2 * _LANES)) + units
    rows = bytearray(4 * len(units))
    rows[6::8] = units[::2]
    rows[7::8] = units[1::2]
    lanes = 0
    for start in range(0, len(rows), _ROW.size):
        row = int.from_bytes(rows[start : start + _ROW.size])
        lanes = (lanes * _ROW_FACTOR + row) & _LOW_32_BITS_OF_LANES
    hashes: tuple[int, ...] = _ROW.unpack(lanes.to_bytes(_ROW.size))
    value: int = sum(map(mul, hashes, _LANE_FACTORS)) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value
