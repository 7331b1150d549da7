"""Loads a shard from its partition of `__transaction_state`.

The log of the partition is replayed in bounded steps, and the shard is in the LOADING state during
the replay. Invariants: the last record of each transactional id is used. If the log
cannot be read, the shard changes to the FAILED state and the reason is logged. `end_offset` is the
log end offset at the start of the replay. The loaded state is valid once the high watermark has
reached `end_offset`. Source: Kafka's `TransactionStateManager.loadTransactionMetadata`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import islice
from typing import Final

from broker_ref.coordination.loader import CoordinatorLoader
from broker_ref.log.batch import BatchHeader, decode_records
from broker_ref.log.errors import LogError
from broker_ref.log.records import Record
from broker_ref.transaction.records import decode_key, decode_value, is_known
from broker_ref.transaction.request_validation import TransactionMetadata
from broker_ref.transaction.shard import Shard, ShardState

IDS_PER_STEP: Final = 2_000
"""The number of transactional ids that one step decodes after the log has been read."""

logger = logging.getLogger(__name__)


class Loading:
    """Replays a shard's log, up to the end offset that the log has when loading starts."""

    def __init__(self, shard: Shard) -> None:
        self.end_offset = shard.partition.log.log_end_offset
        self._shard = shard
        self._log = CoordinatorLoader(shard.partition)
        self._records: dict[str, Record] = {}
        self._undecoded: Iterator[tuple[str, Record]] | None = None
        self._decoding_offset: int | None = None

    def step(self) -> bool:
        """Replay the next part of the log. Return True after the last part."""
        shard = self._shard
        try:
            if not self._log.step(self._take):
                return False
            if self._undecoded is None:
                self._undecoded = iter(self._records.items())
            for name, record in islice(self._undecoded, IDS_PER_STEP):
                self._add(name, record)
            if len(shard.ids) < len(self._records):
                return False
        except LogError as error:
            offset = self._log.offset if self._decoding_offset is None else self._decoding_offset
            logger.error(
                "Failed to load transactional ids from %s-%d, because the log cannot be read at "
                "offset %d: %s",
                shard.partition.key.topic, shard.partition.key.partition, offset, error,
            )  # fmt: skip
            shard.ids.clear()
            shard.state = ShardState.FAILED
        return True

    def _take(self, header: BatchHeader, batch: bytes) -> None:
        if not header.is_control:
            for record in decode_records(batch):
                self._replay(record)

    def _replay(self, record: Record) -> None:
        name = decode_key(record.key) if record.key is not None else None
        if name is None:
            return
        if record.value is None:
            self._records.pop(name, None)
        elif is_known(record.value):
            self._records[name] = record
        else:
            logger.warning(
                "Ignoring a record with an unknown version for transactional id %.100r in "
                "partition %d of __transaction_state",
                name, self._shard.partition.key.partition,
            )  # fmt: skip

    def _add(self, name: str, record: Record) -> None:
        assert record.value is not None
        self._decoding_offset = record.offset
        value = decode_value(record.value)
        self._shard.ids[name] = TransactionMetadata(
            name=name, current=value, unmarked=set(value.partitions)
        )
