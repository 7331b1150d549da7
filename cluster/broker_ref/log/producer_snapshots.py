"""Snapshots of producer state on disk, in Kafka's ProducerSnapshot version 1.

    <offset, 20 digits>.snapshot
    version int16 = 1 | crc uint32 of the following bytes | count int32 | entry*
    entry: producer id int64 | epoch int16 | last sequence int32 | last offset int64
           | offset delta int32 | timestamp int64 | coordinator epoch int32
           | current transaction's first offset int64

Recovery of producer state starts at the latest snapshot. Invariant: a snapshot at offset n contains
the state after all batches below n. If a snapshot is corrupt, it is removed and the previous
snapshot is used, because the state can always be recovered from the log. As in Kafka, a snapshot
contains only the last batch of each producer. Source: `ProducerStateManager.readSnapshot`,
`ProducerStateManager.writeSnapshot`.
"""

from __future__ import annotations

import logging
import struct
from collections import deque
from collections.abc import Iterable, Sequence

from crc32c import crc32c

from broker_ref.log.producer_state import BATCHES_RETAINED, BatchMetadata, ProducerStateEntry
from broker_ref.log.segment import file_name
from broker_ref.log.storage import Storage

SNAPSHOT_SUFFIX = ".snapshot"
_HEAD = struct.Struct("!hI")
_COUNT = struct.Struct("!i")
_ENTRY = struct.Struct("!qhiqiqiq")
_VERSION = 1

logger = logging.getLogger(__name__)


def encode_snapshot(entries: Iterable[ProducerStateEntry]) -> bytes:
    """Encode the contents of a snapshot file."""
    rows = []
    for entry in entries:
        last = entry.batches[-1] if entry.batches else None
        rows.append(
            _ENTRY.pack(
                entry.producer_id,
                entry.epoch,
                last.last_sequence if last else -1,
                last.last_offset if last else -1,
                last.offset_delta if last else 0,
                entry.last_timestamp,
                entry.coordinator_epoch,
                entry.current_txn_first_offset,
            )
        )
    body = _COUNT.pack(len(rows)) + b"".join(rows)
    return _HEAD.pack(_VERSION, crc32c(body)) + body


def decode_snapshot(data: bytes) -> list[ProducerStateEntry] | None:
    """Return the entries in a snapshot file, or None if the file is corrupt."""
    if len(data) < _HEAD.size + _COUNT.size:
        return None
    version, crc = _HEAD.unpack_from(data)
    body = data[_HEAD.size :]
    count = _COUNT.unpack_from(body)[0]
    if version != _VERSION or crc != crc32c(body) or len(body) != 4 + count * _ENTRY.size:
        return None
    return [_entry(*fields) for fields in _ENTRY.iter_unpack(body[_COUNT.size :])]


def _entry(*fields: int) -> ProducerStateEntry:
    producer_id, epoch, sequence, offset, delta, timestamp, coordinator_epoch, txn_offset = fields
    batches: deque[BatchMetadata] = deque(maxlen=BATCHES_RETAINED)
    if offset >= 0:
        batches.append(
            BatchMetadata(
                last_sequence=sequence, last_offset=offset, offset_delta=delta, timestamp=timestamp
            )
        )
    return ProducerStateEntry(
        producer_id=producer_id,
        epoch=epoch,
        batches=batches,
        last_timestamp=timestamp,
        coordinator_epoch=coordinator_epoch,
        current_txn_first_offset=txn_offset,
    )


class ProducerSnapshots:
    """The snapshot files of one log."""

    def __init__(self, *, storage: Storage, directory: str) -> None:
        self._storage = storage
        self._directory = directory
        self._offsets = sorted(
            int(name.removesuffix(SNAPSHOT_SUFFIX))
            for name in storage.list(directory)
            if name.endswith(SNAPSHOT_SUFFIX) and name.removesuffix(SNAPSHOT_SUFFIX).isdigit()
        )

    @property
    def offsets(self) -> tuple[int, ...]:
        """Return the offsets of the snapshots in ascending order."""
        return tuple(self._offsets)

    def write(self, offset: int, entries: Iterable[ProducerStateEntry]) -> None:
        """Durably store a snapshot of the producer state at `offset`."""
        self._storage.write_atomically(self._path(offset), encode_snapshot(entries))
        self._offsets = sorted({*self._offsets, offset})

    def latest(self, end_offset: int) -> tuple[int, list[ProducerStateEntry]] | None:
        """Return the offset and the entries of the newest valid snapshot at or below `end_offset`.

        Return None if there is no valid snapshot. Corrupt snapshots are removed.
        """
        for offset in reversed([offset for offset in self._offsets if offset <= end_offset]):
            entries = decode_snapshot(self._storage.read(self._path(offset)))
            if entries is not None:
                return offset, entries
            logger.warning("Removing the corrupt producer snapshot %s", self._path(offset))
            self.remove(offset)
        return None

    def remove(self, offset: int) -> None:
        """Remove the snapshot at `offset`, if it exists."""
        if offset in self._offsets:
            self._offsets.remove(offset)
            self._storage.remove(self._path(offset))

    def retain_only(self, offsets: Iterable[int]) -> None:
        """Remove all snapshots except those at `offsets`."""
        kept = frozenset(offsets)
        for offset in self.offsets:
            if offset not in kept:
                self.remove(offset)

    def retain_between(self, log_start_offset: int, log_end_offset: int) -> None:
        """Remove the snapshots that are not within the log."""
        self.retain_only(o for o in self._offsets if log_start_offset < o <= log_end_offset)

    def remove_stray(self, base_offsets: Sequence[int]) -> None:
        """Remove all snapshots that are not at the base offset of a segment.

        The latest snapshot is retained if it is above the last base offset, because a clean
        shutdown writes such a snapshot. Source: `ProducerStateManager.removeStraySnapshots`.
        """
        stray = [offset for offset in self._offsets if offset not in base_offsets]
        kept = {*base_offsets, *(offset for offset in stray[-1:] if offset > base_offsets[-1])}
        self.retain_only(offset for offset in self._offsets if offset in kept)

    def _path(self, offset: int) -> str:
        return f"{self._directory}/{file_name(offset, SNAPSHOT_SUFFIX)}"
