"""Determines which partition of a coordinator's topic stores a group or transactional id.

The partition depends on Java's string hash, which all Kafka brokers use. Source:
`Utils.abs(name.hashCode) % partitionCount` in `GroupMetadataManager` and `TransactionStateManager`.
"""

from __future__ import annotations

from typing import Final

_LEAST_HASH: Final = -(1 << 31)


def partition_of(name: str, partition_count: int) -> int:
    """Return the partition for a group id or a transactional id."""
    value = java_hash(name)
    # Kafka's Utils.abs returns 0 for Integer.MIN_VALUE, whose absolute value exceeds the int32
    # range.
    return 0 if value == _LEAST_HASH else abs(value) % partition_count


def java_hash(text: str) -> int:
    """Return Java's String.hashCode, a signed 32-bit integer computed from UTF-16 code units."""
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for position in range(0, len(units), 2):
        value = (31 * value + int.from_bytes(units[position : position + 2])) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value
