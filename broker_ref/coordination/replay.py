"""Reading a coordinator's partition from its start, a bounded part at a time.

Purpose: hand every batch of the log over, in steps, so that a broker that takes a large partition
over goes on serving the others. Invariant: batches come in order, once, up to where the log ended
when the replay was made. What it must not know: what the records mean.
Source: Kafka's `CoordinatorLoaderImpl`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from broker_ref.log.batch import BatchHeader, parse_batches
from broker_ref.replication.partition import Partition

STEP_BYTES: Final = 1 << 20
"""How much of the log one step reads."""


class Replay:
    """The replay of a partition's log, from its start to its end as it was at first."""

    def __init__(self, partition: Partition) -> None:
        self.offset = partition.log.log_start_offset
        self._partition = partition
        self._end_offset = partition.log.log_end_offset

    def step(self, take: Callable[[BatchHeader, bytes], None]) -> bool:
        """Hand the next batches over, whole; whether there are no more. LogError from the log."""
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
            self.offset = self._end_offset  # What was left has been compacted away.
        return len(data)
