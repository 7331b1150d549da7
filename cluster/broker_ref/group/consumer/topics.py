"""Topic ids, partition counts and metadata hashes for consumer groups.

Converts between topic names and ids, and calculates the metadata hash of the subscribed topics. If
the topics change, their hash changes too. Invariant: all brokers calculate the same hash for the
same topics. The hash differs from Kafka's hash, which is calculated with XXH3 and includes the
racks of the replicas. This difference has only one effect: if Kafka stored the hash, the
coordinator bumps the group epoch. Source: Kafka's `Utils.computeGroupHash`.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping
from typing import Final

from broker_ref.controller.metadata import ClusterMetadata
from broker_ref.protocol.identifiers import Uuid

_HASH_BYTES: Final = 8
_TOPIC: Final = struct.Struct(">16sI")


def topic_ids(names: Iterable[str], metadata: ClusterMetadata) -> frozenset[Uuid]:
    """Return the ids of the topics that exist."""
    topics = metadata.topics
    return frozenset(topics[name].topic_id for name in names if name in topics)


def partition_counts(ids: Iterable[Uuid], metadata: ClusterMetadata) -> Mapping[Uuid, int]:
    """Return the number of partitions of each topic."""
    return {topic_id: len(metadata.topics_by_id[topic_id].partitions) for topic_id in ids}


def metadata_hash(names: Iterable[str], metadata: ClusterMetadata) -> int:
    """Return a signed 64-bit hash of the names, ids and partition counts of the topics that exist.

    The hash is 0 if none of the topics exists.
    """
    hasher = hashlib.blake2b(digest_size=_HASH_BYTES)
    found = sorted(name for name in set(names) if name in metadata.topics)
    for name in found:
        topic = metadata.topics[name]
        hasher.update(_TOPIC.pack(topic.topic_id.bytes, len(topic.partitions)))
        hasher.update(name.encode() + b"\0")
    return int.from_bytes(hasher.digest(), "big", signed=True) if found else 0
