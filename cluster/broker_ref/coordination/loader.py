"""Loads a coordinator's partition in bounded steps.

The loader passes all batches in the log to a callback. It reads a limited number of bytes in each
step. The broker can serve other requests between the steps. Invariant: the callback receives each
batch below the initial log end offset exactly once, in order. Source: Kafka's
`CoordinatorLoaderImpl`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from broker_ref.log.batch import BatchHeader, parse_batches
from broker_ref.replication.partition import Partition

STEP_BYTES: Final = 1 << 18
"""The approximate number of bytes that one step reads."""


class CoordinatorLoader:
    """Reads a coordinator's partition up to the end offset that it has when loading starts."""

    def __init__(self, partition: Partition) -> None:
        self.offset = partition.log.log_start_offset
        self._partition = partition
        self._end_offset = partition.log.log_end_offset

    def step(self, take: Callable[[BatchHeader, bytes], None]) -> bool:
        """Pass the next batches to `take`, and return whether all batches have been passed.

        Raises: LogError.
        """
        read_bytes = 0
        while self.offset < self._end_offset and read_bytes < STEP_BYTES:
            read_bytes += self._read(take)
        return self.offset >= self._end_offset

    def _read(self, take: Callable[[BatchHeader, bytes], None]) -> int:
        data = self._partition.log.read(
            self.offset,
            end_offset=self._end_offset,
            max_bytes=STEP_BYTES,
            at_least_one_batch=True,
        )
        position = 0
        for header in parse_batches(data):
            take(header, data[position : position + header.size_bytes])
            position += header.size_bytes
            self.offset = header.next_offset
        if not data:
            self.offset = self._end_offset  # Compaction has removed all later batches.
        return len(data)
