"""Calculates the partition for a key, like Kafka's default partitioner (`BuiltInPartitioner`)."""

from __future__ import annotations

import struct

from pyspark_kafka.records.contract import Buffer


def partition_of_key(key: Buffer, partition_count: int) -> int:
    """Return the partition for a record with this key."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count


def murmur2(key: Buffer) -> int:
    """Return the murmur2 hash of a key as an unsigned 32-bit number (`Utils.murmur2` in Kafka)."""
    multiplier, mask = 0x5BD1E995, 0xFFFFFFFF
    mixed = 0x9747B28C ^ len(key)
    whole_bytes = len(key) - len(key) % 4
    for (word,) in struct.iter_unpack("<I", key[:whole_bytes]):
        word = word * multiplier & mask  # noqa: PLW2901
        word = (word ^ word >> 24) * multiplier & mask  # noqa: PLW2901
        mixed = mixed * multiplier & mask ^ word
    if rest := key[whole_bytes:]:
        mixed = (mixed ^ int.from_bytes(rest, "little")) * multiplier & mask
    mixed = (mixed ^ mixed >> 13) * multiplier & mask
    return mixed ^ mixed >> 15
