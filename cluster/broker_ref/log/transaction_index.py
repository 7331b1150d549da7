"""The aborted transactions whose markers are in a segment, in Kafka's format.

    .txnindex   version int16 = 0 | producer id int64 | first offset int64 | last offset int64
                | last stable offset int64              one entry per abort marker, in order

A lookup returns the aborted transactions that overlap a range of offsets, so that read_committed
consumers can discard the records of these transactions. Invariants: the last offset of an entry is
the offset of the abort marker, and last offsets are in ascending order. An entry contains the last
stable offset of the log after the marker was written. A search can therefore stop at an entry whose
last stable offset is at or above the end of the range. The file is created when the first entry is
added. Source: `TransactionIndex`, `AbortedTxn`.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterator

from broker_ref.frozen import dataclass
from broker_ref.log.storage import File, Storage

_ENTRY = struct.Struct("!hqqqq")
_VERSION = 0
_READ_ENTRIES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortedTransaction:
    """An aborted transaction in one partition. Its last offset is the offset of its marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TransactionIndex:
    """The transaction index of a segment, in the file at `path`."""

    def __init__(self, *, storage: Storage, path: str) -> None:
        self._storage = storage
        self._path = path
        self._file: File | None = storage.open(path) if storage.exists(path) else None

    @property
    def exists_on_disk(self) -> bool:
        """Return whether the file exists."""
        return self._file is not None

    def create(self) -> None:
        """Create an empty file if the file does not exist."""
        if self._file is None:
            self._file = self._storage.open(self._path)

    def append(self, transaction: AbortedTransaction) -> None:
        """Add a transaction. Its marker must be after the markers of all other entries."""
        self.create()
        assert self._file is not None
        self._file.append(
            _ENTRY.pack(
                _VERSION,
                transaction.producer_id,
                transaction.first_offset,
                transaction.last_offset,
                transaction.last_stable_offset,
            )
        )

    def overlapping(
        self, start_offset: int, end_offset: int
    ) -> tuple[list[AbortedTransaction], bool]:
        """Return the aborted transactions that overlap a range, and whether the search is complete.

        If the search is not complete, later segments may contain more transactions.
        """
        first = bisect_left(range(self._count), start_offset, key=lambda i: self._at(i).last_offset)
        found = []
        for transaction in self._from(first):
            if transaction.first_offset < end_offset:
                found.append(transaction)
            if transaction.last_stable_offset >= end_offset:
                return found, True
        return found, False

    def truncate_to(self, offset: int) -> None:
        """Remove the transactions whose markers are at or after `offset`."""
        if self._file is not None:
            count = bisect_left(range(self._count), offset, key=lambda i: self._at(i).last_offset)
            self._file.truncate(count * _ENTRY.size)

    def damage(self, base_offset: int) -> str | None:
        """Return the reason why the index does not match the segment at `base_offset`, or None."""
        if self._file is None:
            return None
        if self._file.size() % _ENTRY.size != 0:
            return f"its size of {self._file.size()} bytes is not a multiple of the entry size"
        previous = base_offset - 1
        for transaction in self._from(0):
            if not previous < transaction.last_offset or transaction.first_offset < 0:
                return f"an entry for offset {transaction.last_offset} follows offset {previous}"
            previous = transaction.last_offset
        return None

    def flush(self) -> None:
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    @property
    def _count(self) -> int:
        return 0 if self._file is None else self._file.size() // _ENTRY.size

    def _at(self, index: int) -> AbortedTransaction:
        assert self._file is not None
        return _decode(self._file.read(index * _ENTRY.size, _ENTRY.size))

    def _from(self, index: int) -> Iterator[AbortedTransaction]:
        while index < self._count:
            assert self._file is not None
            data = self._file.read(index * _ENTRY.size, _READ_ENTRIES * _ENTRY.size)
            whole = len(data) - len(data) % _ENTRY.size
            for position in range(0, whole, _ENTRY.size):
                yield _decode(data[position : position + _ENTRY.size])
            index += whole // _ENTRY.size


def _decode(entry: bytes) -> AbortedTransaction:
    _, producer_id, first_offset, last_offset, last_stable_offset = _ENTRY.unpack(entry)
    return AbortedTransaction(
        producer_id=producer_id,
        first_offset=first_offset,
        last_offset=last_offset,
        last_stable_offset=last_stable_offset,
    )
