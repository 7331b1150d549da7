"""Reads all batches of a partition, including those of open and aborted transactions.

The reader implements `TransactionalClient.read_log`. It also reads beyond the last stable offset,
because open transactions of other producers can prevent that offset from advancing. Invariant:
batches are yielded in the order of their offsets. The reader omits only the batches that precede
the log start offset when the read starts.
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
    """Yield the batches from `start_offset`, or from the log start offset if that is higher.

    `read` returns the batches from an offset. `offset_of` looks up a special offset such as
    EARLIEST with ListOffsets. Raises `OffsetOutOfRangeError` if records are deleted during the
    read.
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
