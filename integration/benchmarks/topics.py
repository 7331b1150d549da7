"""The topics that benchmarks read, and the record batches that a broker stores for them.

The records of each topic are written once per run, and all clients that a benchmark case compares
read the same records. Invariant: a topic contains exactly the requested number of records, evenly
distributed over its partitions. If records are missing, an error is raised.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, Producer, TopicPartition

from integration.benchmarks.payload import values
from integration.clusters import Cluster

BATCH_RECORDS: Final = 1_000
"""The maximum number of records in a record batch."""

_QUEUED_RECORDS_MAX: Final = 100_000
_TIMEOUT_S: Final = 300.0
_BATCH_OVERHEAD_BYTES: Final = 12
_LENGTH_AT: Final = 8
_COUNT_AT: Final = 57


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """The content of a topic. The records have no keys."""

    value_bytes: int
    partitions: int
    codec: str = "none"


def fill(cluster: Cluster, topic: str, contents: Contents, records: int) -> None:
    """Create a topic and write the records. Raise `ValueError` if records are missing."""
    cluster.create_topic(topic, partitions=contents.partitions)
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "log_level": 2,
            "compression.type": contents.codec,
            "batch.num.messages": BATCH_RECORDS,
            "batch.size": 4 * 1024 * 1024,
            "linger.ms": 100,
            "queue.buffering.max.kbytes": 1024 * 1024,
        }
    )
    pool = cycle(values(contents.value_bytes))
    deadline_s = time.monotonic() + _TIMEOUT_S
    for number, size in enumerate(_blocks(records)):
        while len(producer) > _QUEUED_RECORDS_MAX and time.monotonic() < deadline_s:
            producer.poll(0.02)
        block: list[dict[str, Any]] = [{"value": value} for value in islice(pool, size)]
        while block and time.monotonic() < deadline_s:
            producer.produce_batch(topic, block, partition=number % contents.partitions)
            # Rejected records (full queue, unknown partition) are marked with an error and are
            # not queued, so they are produced again.
            block = [{"value": row["value"]} for row in block if "_error" in row]
            producer.poll(0.02 if block else 0)
    producer.flush(_TIMEOUT_S)
    found = record_count(cluster.bootstrap_servers, topic, contents.partitions)
    if found != records:
        raise ValueError(f"topic {topic} has {found} records instead of {records}")


def record_count(bootstrap_servers: str, topic: str, partitions: int) -> int:
    """Return the number of offsets from the log start offsets to the high watermarks of a topic."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "log_level": 2,
            "group.id": "benchmark",
            # Kafka writes the markers of a transaction after it has acknowledged the commit. Until
            # then, the last stable offset is lower than the high watermark.
            "isolation.level": "read_uncommitted",
        }
    )
    try:
        bounds = [
            consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=30)
            for partition in range(partitions)
        ]
    finally:
        consumer.close()
    return sum(high - low for low, high in filter(None, bounds))


def stored_chunks(directory: Path, topic: str, *, chunk_bytes: int) -> list[bytes]:
    """Return complete record batches from the first log segment of partition 0, as chunks.

    As in Fetch responses, a chunk has at most `chunk_bytes` bytes unless it consists of a single
    larger batch.
    """
    segment = (directory / f"{topic}-0" / f"{0:020}.log").read_bytes()
    chunks, start, end = [], 0, 0
    for position, end in _batches(segment):
        if end - start > chunk_bytes and position > start:
            chunks.append(segment[start:position])
            start = position
    chunks.append(segment[start:end])
    return chunks


def record_counts(chunks: Iterable[bytes]) -> int:
    """Return the sum of the record counts in the headers of the record batches."""
    return sum(
        int.from_bytes(chunk[position + _COUNT_AT : position + _COUNT_AT + 4], "big")
        for chunk in chunks
        for position, _ in _batches(memoryview(chunk))
    )


def _batches(data: bytes | memoryview) -> Iterator[tuple[int, int]]:
    """Yield the start and end positions of each complete record batch."""
    position = 0
    while position + _BATCH_OVERHEAD_BYTES <= len(data):
        length = data[position + _LENGTH_AT : position + _BATCH_OVERHEAD_BYTES]
        end = position + _BATCH_OVERHEAD_BYTES + int.from_bytes(length, "big")
        if end > len(data):
            return
        yield position, end
        position = end


def _blocks(records: int) -> Iterator[int]:
    while records > 0:
        yield min(records, BATCH_RECORDS)
        records -= BATCH_RECORDS
