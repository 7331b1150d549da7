"""Keeps an in-memory copy of the commit topic's records for one sink.

Spark plans every micro-batch in the same process, and the topic can contain several hours of
decisions. With the copy, the driver reads only new records for each micro-batch. Invariant: a
transactional record batch is used only if the next transaction marker for its producer id is a
commit marker. The copy is discarded and the whole partition is read again in three cases: the last
read was more than five minutes ago, the topic was recreated, or truncation or compaction changed
the last batch that was read.
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
"""The topic retains tombstones and markers for at least this long (`delete.retention.ms`)."""
_FRESH_S: Final = KEPT_MS_MIN / 1_000 / 2

Record = tuple[bytes | None, bytes | None]


class CommitLog:
    """The batches that contain records whose keys start with `key_prefix`.

    All other records in these batches are dropped.
    """

    def __init__(self, key_prefix: bytes) -> None:
        self._prefix = key_prefix
        self._batches: list[LogBatch] = []
        self._open: dict[int, list[int]] = {}
        self._last: LogBatch | None = None
        self._read_s = time.monotonic()

    @property
    def is_fresh(self) -> bool:
        """Return whether the log retains all tombstones and markers written since the last read."""
        return time.monotonic() - self._read_s < _FRESH_S

    @property
    def decided(self) -> tuple[LogBatch, ...]:
        """Return the committed batches and the non-transactional batches, in log order."""
        still_open = {offset for offsets in self._open.values() for offset in offsets}
        return tuple(batch for batch in self._batches if batch.base_offset not in still_open)

    @property
    def has_open(self) -> bool:
        """Return whether a transaction with records of this sink is still open."""
        return bool(self._open)

    def read(self, client: TransactionalClient, partition: TopicPartition, end_offset: int) -> bool:
        """Read new batches up to `end_offset`.

        Returns False if the last batch of the previous read is no longer in the log.
        """
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
        self._drop_replaced()

    def _is_mine(self, record: Record) -> bool:
        key, _ = record
        return key is not None and key.startswith(self._prefix)

    def _decide(self, offsets: list[int], result: TransactionResult) -> None:
        if result is TransactionResult.ABORT and offsets:
            self._batches = [b for b in self._batches if b.base_offset not in offsets]

    def _drop_replaced(self) -> None:
        """Drop superseded records, as log compaction does. If a transaction is open, do nothing."""
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


_READ: Final[dict[tuple[str, TopicPartition, bytes], CommitLog]] = {}
"""The copies of commit logs in this process, by topic id, partition and key prefix."""


def read_commit_log(
    client: TransactionalClient,
    partition: TopicPartition,
    key_prefix: bytes,
    *,
    topic_id: str | None = None,
) -> CommitLog:
    """Read the commit log up to the current high watermark.

    If `topic_id` is given and this process has a recent copy of the log, only newer records are
    read. Otherwise, the partition is read from the start.
    """
    ends = client.list_offsets({partition: LATEST}, IsolationLevel.READ_UNCOMMITTED)
    end_offset = ends[partition]
    assert end_offset is not None  # ListOffsets returns None only for a lookup by timestamp
    if topic_id is not None:
        known = _READ.pop((topic_id, partition, key_prefix), None)
        if known is not None and known.is_fresh and known.read(client, partition, end_offset):
            _READ[topic_id, partition, key_prefix] = known
            return known
    fresh = CommitLog(key_prefix)
    fresh.read(client, partition, end_offset)
    if topic_id is not None:
        _READ[topic_id, partition, key_prefix] = fresh
    return fresh


def _whole(batch: LogBatch) -> LogBatch:
    """Copy a batch to compare it later without retaining its fetch buffer."""
    return replace(batch, records=tuple(batch.records))
