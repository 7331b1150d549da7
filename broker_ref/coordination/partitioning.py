"""The partition of a coordinator's topic that stores a group id or transactional id.

Purpose: Java's hash, which all Kafka clients and brokers use. Must not know: existing ids.
Source: `Utils.abs(name.hashCode) % partitionCount` in `GroupMetadataManager` and
`TransactionStateManager`.
"""

from __future__ import annotations

from typing import Final

_LEAST_HASH: Final = -(1 << 31)


def partition_of(name: str, partition_count: int) -> int:
    """Return the partition of a group id or transactional id."""
    value = java_hash(name)
    # Java's absolute value of Integer.MIN_VALUE is negative; Kafka's Utils.abs returns 0.
    return 0 if value == _LEAST_HASH else abs(value) % partition_count


def java_hash(text: str) -> int:
    """Return Java's String.hashCode over UTF-16 code units, a signed 32-bit number."""
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for position in range(0, len(units), 2):
        value = (31 * value + int.from_bytes(units[position : position + 2])) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value
