"""Which partition of its topic a coordinator keeps a name in.

Purpose: Java's hash, with which every Kafka client and broker agrees. What it must not know: which
names there are. Source: `Utils.abs(name.hashCode) % partitionCount` in `GroupMetadataManager` and
`TransactionStateManager`.
"""

from __future__ import annotations


def partition_of(name: str, partition_count: int) -> int:
    """The partition of a group id or transactional id."""
    return (java_hash(name) & 0x7FFFFFFF) % partition_count


def java_hash(text: str) -> int:
    """Java's String.hashCode, over UTF-16 code units, as an unsigned 32-bit number."""
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for position in range(0, len(units), 2):
        value = (31 * value + int.from_bytes(units[position : position + 2])) & 0xFFFFFFFF
    return value
