"""The log of the commit topic, as far as this process has read it for one X.

Purpose: find the records of X that were decided, and at the next batch read only what is new: the
log has all decisions of hours, and Spark plans every micro-batch in the same process. Invariant: a
batch counts by the control marker of its own producer, and in the order of the log. What was read
before counts on for minutes, and only where the log still has the last batch of it, in the topic of
the same id; of a log that was cut, or cleaned up to there, all is read anew. What it must not know:
what the records say.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from pyspark_kafka.client.transactional_port import TransactionalClient
from pyspark_kafka.kafka.log import LogBatch
from pyspark_kafka.kafka.offsets import LATEST, IsolationLevel
from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.kafka.transactions import TransactionResult

KEPT_MS_MIN: Final = 600_000
"""For so long at least the topic keeps tombstones and markers (`delete.retention.ms`)."""
_FRESH_S: Final = KEPT_MS_MIN / 1_000 / 2

Record = tuple[bytes | None, bytes | None]


class CommitLog:
    """Batches with records whose keys begin with `key_prefix`, and no others of these."""

    def __init__(self, key_prefix: bytes) -> None:
        self._prefix = key_prefix
        self._batches: list[LogBatch] = []
        self._open: dict[int, list[int]] = {}
        self._last: LogBatch | None = None
        self._read_s = time.monotonic()

    @property
    def is_fresh(self) -> bool:
        """Whether no tombstone or marker behind what was read can have come and gone since."""
        return time.monotonic() - self._read_s < _FRESH_S

    @property
    def decided(self) -> tuple[LogBatch, ...]:
        """The batches that are committed, or of no transaction, in order."""
        still_open = {offset for offsets in self._open.values() for offset in offsets}
        return tuple(batch for batch in self._batches if batch.base_offset not in still_open)

    @property
    def has_open(self) -> bool:
        """Whether a transaction that has written such records is not decided yet."""
        return bool(self._open)

    def read(self, client: TransactionalClient, partition: TopicPartition, end_offset: int) -> bool:
        """Read on to `end_offset`; False where the log is another than was read before."""
        began_s = time.monotonic()
        start_offset = 0 if self._last is None else self._last.base_offset
        batches = client.read_log(partition, start_offset, end_offset)
        if self._last is not None:
            first = next(batches, None)
            if first is None or _whole(first) != self._last:
                return False
        self._take(batches)
        self._read_s = began_s
        return True

    def _take(self, batches: Iterable[LogBatch]) -> None:
        last = None
        for last in batches:
            producer_id = last.producer.producer_id
            if last.ends_with is not None:
                self._decide(self._open.pop(producer_id, []), last.ends_with)
                continue
            mine = [record for record in last.records if self._is_mine(record)]
            if mine:
                self._batches.append(replace(last, records=tuple(mine)))
                if last.is_transactional:
                    self._open.setdefault(producer_id, []).append(last.base_offset)
        if last is not None:
            self._last = _whole(last)
        self._forget_replaced()

    def _is_mine(self, record: Record) -> bool:
        key, _ = record
        return key is not None and key.startswith(self._prefix)

    def _decide(self, offsets: list[int], verdict: TransactionResult) -> None:
        if verdict is TransactionResult.ABORT and offsets:
            self._batches = [b for b in self._batches if b.base_offset not in offsets]

    def _forget_replaced(self) -> None:
        """As compaction does. While something is open, what it may replace is kept."""
        if self._open:
            return
        latest = {
            key: (batch.base_offset, number)
            for batch in self._batches
            for number, (key, _) in enumerate(batch.records)
        }
        kept = []
        for batch in self._batches:
            records = [
                (key, value)
                for number, (key, value) in enumerate(batch.records)
                if value is not None and latest[key] == (batch.base_offset, number)
            ]
            if records:
                kept.append(replace(batch, records=tuple(records)))
        self._batches = kept


_READ: Final[dict[tuple[str, bytes], CommitLog]] = {}
"""By this process, by the topic's id and the prefix."""


def read_commit_log(
    client: TransactionalClient,
    partition: TopicPartition,
    key_prefix: bytes,
    *,
    topic_id: str | None = None,
) -> CommitLog:
    """Read up to the high watermark as it is now, on from where this process was, if it can be.

    Without `topic_id` all is read.
    """
    ends = client.list_offsets({partition: LATEST}, IsolationLevel.READ_UNCOMMITTED)
    end_offset = ends[partition]
    assert end_offset is not None  # only a timestamp can have no offset
    if topic_id is not None:
        known = _READ.pop((topic_id, key_prefix), None)
        if known is not None and known.is_fresh and known.read(client, partition, end_offset):
            _READ[topic_id, key_prefix] = known
            return known
    fresh = CommitLog(key_prefix)
    fresh.read(client, partition, end_offset)
    if topic_id is not None:
        _READ[topic_id, key_prefix] = fresh
    return fresh


def _whole(batch: LogBatch) -> LogBatch:
    """The same, comparable, and without the bytes that it was fetched with."""
    return replace(batch, records=tuple(batch.records))
