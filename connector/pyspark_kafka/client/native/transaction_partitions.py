"""The partitions that AddPartitionsToTxn has added to a transaction (KIP-98).

Invariant: a partition is in the transaction once the coordinator has confirmed it, and stays in
it. What it must not know: batches, retries, the texts of errors.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from kio.schema.errors import ErrorCode

from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.wire.error_codes import REACTIONS, Reaction

Add = Callable[[Collection[TopicPartition]], Mapping[TopicPartition, ErrorCode]]
"""Send one AddPartitionsToTxn; return the partitions that were not added, and why."""


@dataclass(slots=True)
class TransactionPartitions:
    """The partitions of one transaction."""

    _added: set[TopicPartition] = field(default_factory=set)

    def missing(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Return those that must be added before records are written to them."""
        return [partition for partition in partitions if partition not in self._added]

    def try_add(
        self, partitions: Collection[TopicPartition], add: Add
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Try to add these; return the error codes of those that were not added.

        A coordinator adds all partitions of a request or none: if one cannot be added, the others
        get OPERATION_NOT_ATTEMPTED.
        """
        failed = add(partitions)
        self._added.update(p for p in partitions if p not in failed)
        return failed


def is_final(code: ErrorCode) -> bool:
    """Return whether retries do not resolve this error code of a coordinator."""
    return REACTIONS[code] is Reaction.FAIL and code is not ErrorCode.operation_not_attempted
