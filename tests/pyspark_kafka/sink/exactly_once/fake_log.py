"""A partition's log in memory: batches, markers, isolation, retention and compaction.

It is used by `fake_cluster`. Offsets never change.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

from kio.schema.errors import ErrorCode

from broker_ref.protocol.errors import ApiError
from pyspark_kafka.kafka.log import LogBatch
from pyspark_kafka.kafka.transactions import ProducerIdAndEpoch, TransactionResult

Record = tuple[bytes | None, bytes | None]


@dataclass
class FakeLog:
    """One partition; `start` is the log start offset, `end` the log end and high watermark."""

    batches: list[LogBatch] = field(default_factory=list)
    start: int = 0
    end: int = 0
    epochs: dict[int, int] = field(default_factory=dict)

    def append(
        self,
        producer: ProducerIdAndEpoch,
        records: Sequence[Record] = (),
        *,
        transactional: bool = False,
        verdict: TransactionResult | None = None,
    ) -> int:
        """Append a batch and return the offset of its last record.

        Raises INVALID_PRODUCER_EPOCH for an old epoch.
        """
        known = self.epochs.get(producer.producer_id, -1)
        if producer.producer_epoch < known:
            raise ApiError(ErrorCode.invalid_producer_epoch, f"{producer} where {known} is known")
        self.epochs[producer.producer_id] = producer.producer_epoch
        offsets = max(len(records), 1)
        self.batches.append(
            LogBatch(
                base_offset=self.end,
                last_offset=self.end + offsets - 1,
                producer=producer,
                is_transactional=transactional,
                ends_with=verdict,
                records=tuple(records),
            )
        )
        self.end += offsets
        return self.end - 1

    def visible(self) -> list[LogBatch]:
        """Return the batches that a `read_committed` consumer reads."""
        open_since: dict[int, list[LogBatch]] = {}
        aborted: set[int] = set()
        for batch in self.batches:
            if batch.ends_with is not None:
                ended = open_since.pop(batch.producer.producer_id, [])
                if batch.ends_with is TransactionResult.ABORT:
                    aborted.update(id(each) for each in ended)
            elif batch.is_transactional:
                open_since.setdefault(batch.producer.producer_id, []).append(batch)
        stable = min((b.base_offset for held in open_since.values() for b in held), default=None)
        return [
            batch
            for batch in self.batches
            if batch.ends_with is None
            and id(batch) not in aborted
            and (stable is None or batch.last_offset < stable)
            and batch.last_offset >= self.start
        ]

    @property
    def last_stable_offset(self) -> int:
        open_since: dict[int, int] = {}
        for batch in self.batches:
            if batch.ends_with is not None:
                open_since.pop(batch.producer.producer_id, None)
            elif batch.is_transactional:
                open_since.setdefault(batch.producer.producer_id, batch.base_offset)
        return min(open_since.values(), default=self.end)

    def delete_before(self, offset: int) -> None:
        """Delete batches, as retention or DeleteRecords does."""
        self.start = max(self.start, offset)
        self.batches = [batch for batch in self.batches if batch.last_offset >= self.start]

    def compact(self, *, keeps_markers: bool = True) -> None:
        """Keep the last visible record of each key, and all records of open transactions.

        Offsets do not change.
        """
        visible = {id(batch): batch for batch in self.visible()}
        latest = {
            key: (batch.base_offset, n)
            for batch in visible.values()
            for n, (key, _) in enumerate(batch.records)
        }
        stable, kept = self.last_stable_offset, []
        for batch in self.batches:
            if batch.base_offset >= stable or (keeps_markers and batch.ends_with is not None):
                kept.append(batch)
            elif id(batch) in visible:
                records = [
                    record
                    for n, record in enumerate(batch.records)
                    if latest[record[0]] == (batch.base_offset, n)
                ]
                if records:
                    kept.append(dataclasses.replace(batch, records=tuple(records)))
        self.batches = kept
