"""Iterate over the record batches of a log, including control batches and aborted transactions.

Callers can determine which producer wrote a batch and which transactions were committed. The header
and the CRC of every batch are validated; records are validated when they are read. The pure Python
implementation (`_pure`) parses the batches, because callers use this module only for small topics.
If the compiled kernel is installed, it computes the CRCs.
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
from pyspark_kafka.records.contract import Buffer, DecodeError, DecodeRequest, to_kafka_error
from pyspark_kafka.records.read_committed import ABORT, COMMIT, control_type

if IMPLEMENTATION == "cython":
    from pyspark_kafka.records._kernel import crc_of

    _crc_of: Callable[[Buffer], int] | None = crc_of
else:
    _crc_of = None

KeyAndValue = tuple[bytes | None, bytes | None]

_RESULTS: Final = {ABORT: TransactionResult.ABORT, COMMIT: TransactionResult.COMMIT}


def log_batches(data: Buffer, request: DecodeRequest) -> Generator[LogBatch, None, int]:
    """Yield the batches that overlap the requested offsets. Return the offset at which to continue.

    An incomplete batch at the end of `data` is ignored. Raises the same errors as
    `contract.Decode`. Errors in records are raised when the records are read. The request's
    `columns` and `aborted` fields are ignored.
    """
    view = memoryview(data).cast("B")
    next_offset, offset_min, position = request.start_offset, 0, 0
    while len(view) - position >= UP_TO_MAGIC_BYTES:
        base_offset: int = BASE_OFFSET.unpack_from(view, position)[0]
        if base_offset >= request.end_offset:
            return request.end_offset
        try:
            batch = read_batch(view[position:], offset_min, crc_of=_crc_of)
            if batch is None:
                break
            ends_with = _transaction_result(batch, request)
        except DecodeError as error:
            raise to_kafka_error(error, request) from None
        if batch.last_offset >= request.start_offset:
            yield LogBatch(
                base_offset=batch.base_offset,
                last_offset=batch.last_offset,
                producer=ProducerIdAndEpoch(
                    producer_id=batch.producer_id, producer_epoch=batch.producer_epoch
                ),
                is_transactional=batch.is_transactional,
                ends_with=ends_with,
                records=() if batch.is_control else _Records(batch, request),
            )
        position += batch.size_bytes
        offset_min = batch.last_offset + 1
        next_offset = max(next_offset, offset_min)
    return min(next_offset, request.end_offset)


def _transaction_result(batch: ParsedBatch, request: DecodeRequest) -> TransactionResult | None:
    """Return the transaction result in a control batch, or None.

    A control batch contains one record, or none if compaction has removed it.
    """
    if not batch.is_control or batch.record_count == 0:
        return None
    key = next(read_records(batch, request)).key
    return _RESULTS.get(control_type(key, base_offset=batch.base_offset))


class _Records(Sequence[KeyAndValue]):
    """The keys and values of a batch, which are decoded when they are first accessed."""

    def __init__(self, batch: ParsedBatch, request: DecodeRequest) -> None:
        self._batch = batch
        self._request = request
        self._decoded: list[KeyAndValue] | None = None

    def _all(self) -> list[KeyAndValue]:
        if self._decoded is None:
            try:
                records = read_records(self._batch, self._request)
                self._decoded = [(record.key, record.value) for record in records]
            except DecodeError as error:
                raise to_kafka_error(error, self._request) from None
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
