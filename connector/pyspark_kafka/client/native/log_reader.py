"""Reads all batches of a partition's log, including open and aborted transactions.

Purpose: `TransactionalClient.read_log`. It does not stop at the last stable offset, which another
writer's open transaction may hold back. Invariant: batches are yielded in the order of their
offsets; none is omitted except those below the log start offset when reading begins. What it must
not know: what the records mean.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass

from pyspark_kafka.client.native.fetch import PartitionReader
from pyspark_kafka.errors import OffsetOutOfRangeError
from pyspark_kafka.kafka.log import LogBatch
from pyspark_kafka.kafka.offsets import EARLIEST
from pyspark_kafka.records import DecodeRequest
from pyspark_kafka.records.log_batches import log_batches
from pyspark_kafka.wire.fetch import FetchedPartition

_KEY_AND_VALUE = ("key", "value")


@dataclass(slots=True, kw_only=True)
class LogReader(PartitionReader[LogBatch]):
    """Reads the batches of the log."""

    def _decode(
        self, position: int, following: int, fetched: FetchedPartition
    ) -> Generator[LogBatch, None, int]:
        partition = self.fetch_range.topic_partition
        request = DecodeRequest(
            topic=partition.topic,
            partition=partition.partition,
            start_offset=position,
            end_offset=self.fetch_range.end_offset,
            columns=_KEY_AND_VALUE,
            aborted=None,
        )
        next_offset = yield from log_batches(fetched.records, request)
        return following if next_offset == self.fetch_range.end_offset else next_offset


def read_from_log_start(
    start_offset: int,
    end_offset: int,
    *,
    read: Callable[[int], Iterator[LogBatch]],
    offset_of: Callable[[int], int],
) -> Iterator[LogBatch]:
    """Read from `start_offset`, or from the log start offset if that is higher.

    `read` reads from an offset; `offset_of` resolves a special offset with ListOffsets. Records
    deleted during reading are an error.
    """
    while start_offset < end_offset:
        batches = read(start_offset)
        try:
            first = next(batches, None)
        except OffsetOutOfRangeError:
            log_start_offset = offset_of(EARLIEST)
            if log_start_offset <= start_offset:
                raise
            start_offset = log_start_offset
            continue
        if first is not None:
            yield first
        yield from batches
        return
