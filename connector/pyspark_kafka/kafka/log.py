"""Record batches as a partition's log holds them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark_kafka.kafka.transactions import ProducerIdAndEpoch, TransactionResult


@dataclass(frozen=True, slots=True, kw_only=True)
class LogBatch:
    """One record batch, whether its transaction is committed, aborted or open.

    `ends_with` is the result that a control batch carries, and None for a data batch.
    `records` are keys and values, and empty for a control batch.
    """

    base_offset: int
    last_offset: int
    producer: ProducerIdAndEpoch
    is_transactional: bool
    ends_with: TransactionResult | None
    records: Sequence[tuple[bytes | None, bytes | None]]
