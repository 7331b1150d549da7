"""Record batches as the log has them, whoever wrote them and whatever became of it.

Purpose: walk fetched bytes batch by batch, control batches too, for who has to know what brokers
know: which producer wrote what, and which of its transactions were committed. Invariant: the header
and the CRC of every batch are checked, its records only when they are looked at. What it must not
know: connections, what the records mean. Always the pure implementation, as it is for small topics and for
headers; but the kernel reckons CRCs where there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Final, overload

from pyspark_kafka.kafka.log import LogBatch
from pyspark_kafka.kafka.transactions import ProducerIdAndEpoch, TransactionResult
from pyspark_kafka.records import IMPLEMENTATION
from pyspark_kafka.records._pure import (
    BASE_OFFSET,
    UP_TO_MAGIC_BYTES,
    ParsedBatch,
    read_batch,
    read_records,
)
from pyspark_kafka.records.contract import Buffer, DecodeError, DecodeRequest, as_error
from pyspark_kafka.records.read_committed import ABORT, COMMIT, control_type

if IMPLEMENTATION == "cython":
    from pyspark_kafka.records._kernel import crc_of

    _crc_of: Callable[[Buffer], int] | None = crc_of
else:
    _crc_of = None

KeyAndValue = tuple[bytes | None, bytes | None]

_RESULTS: Final = {ABORT: TransactionResult.ABORT, COMMIT: TransactionResult.COMMIT}


def log_batches(data: Buffer, wanted: DecodeRequest) -> Generator[LogBatch, None, int]:
    """The batches that overlap the wanted offsets, in order; returns one past the last one.

    A part of a batch at the end of `data` is ignored. Raises what `contract.Decode` raises, for
    what is inside of a batch when its records are looked at; columns and `aborted` say nothing.
    """
    view = memoryview(data).cast("B")
    next_offset, offset_min, position = wanted.start_offset, 0, 0
    while len(view) - position >= UP_TO_MAGIC_BYTES:
        base_offset: int = BASE_OFFSET.unpack_from(view, position)[0]
        if base_offset >= wanted.end_offset:
            return wanted.end_offset
        try:
            batch = read_batch(view[position:], offset_min, crc_of=_crc_of)
            if batch is None:
                break
            ends_with = _transaction_result(batch, wanted)
        except DecodeError as fault:
            raise as_error(fault, wanted) from None
        if batch.last_offset >= wanted.start_offset:
            yield LogBatch(
                base_offset=batch.base_offset,
                last_offset=batch.last_offset,
                producer=ProducerIdAndEpoch(
                    producer_id=batch.producer_id, producer_epoch=batch.producer_epoch
                ),
                is_transactional=batch.is_transactional,
                ends_with=ends_with,
                records=() if batch.is_control else _Records(batch, wanted),
            )
        position += batch.size_bytes
        offset_min = batch.last_offset + 1
        next_offset = max(next_offset, offset_min)
    return min(next_offset, wanted.end_offset)


def _transaction_result(batch: ParsedBatch, wanted: DecodeRequest) -> TransactionResult | None:
    """A control batch is one record; compaction may have left none."""
    if not batch.is_control or batch.record_count == 0:
        return None
    key = next(read_records(batch, wanted)).key
    return _RESULTS.get(control_type(key, base_offset=batch.base_offset))


class _Records(Sequence[KeyAndValue]):
    """Keys and values of a batch, decoded when they are first looked at."""

    def __init__(self, batch: ParsedBatch, wanted: DecodeRequest) -> None:
        self._batch = batch
        self._wanted = wanted
        self._decoded: list[KeyAndValue] | None = None

    def _all(self) -> list[KeyAndValue]:
        if self._decoded is None:
            try:
                records = read_records(self._batch, self._wanted)
                self._decoded = [(record.key, record.value) for record in records]
            except DecodeError as fault:
                raise as_error(fault, self._wanted) from None
        return self._decoded

    def __len__(self) -> int:
        return len(self._all())

    def __iter__(self) -> Iterator[KeyAndValue]:
        return iter(self._all())

    @overload
    def __getitem__(self, index: int) -> KeyAndValue: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[KeyAndValue]: ...

    def __getitem__(self, index: int | slice) -> KeyAndValue | Sequence[KeyAndValue]:
        return self._all()[index]
