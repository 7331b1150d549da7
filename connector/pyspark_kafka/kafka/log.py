"""Record batches in the log of a partition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark_kafka.kafka.transactions import ProducerIdAndEpoch, TransactionResult


@dataclass(frozen=True, slots=True, kw_only=True)
class LogBatch:
    """A record batch. If it is transactional, its transaction is committed, aborted or open.

    `ends_with` is the transaction result in a control batch, and None for a data batch. `records`
    contains the key and value of each record, and is empty for a control batch.
    """

    base_offset: int
    last_offset: int
    producer: ProducerIdAndEpoch
    is_transactional: bool
    ends_with: TransactionResult | None
    records: Sequence[tuple[bytes | None, bytes | None]]
