"""The partitions that AddPartitionsToTxn has added to a transaction (KIP-98).

Invariants: a partition counts as added once the coordinator has confirmed the addition. No
partition is ever removed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from kio.schema.errors import ErrorCode

from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.wire.error_codes import REACTIONS, Reaction

Add = Callable[[Collection[TopicPartition]], Mapping[TopicPartition, ErrorCode]]
"""Sends AddPartitionsToTxn, and returns the error codes for partitions that were not added."""


@dataclass(slots=True)
class TransactionPartitions:
    """The partitions of one transaction."""

    _added: set[TopicPartition] = field(default_factory=set)

    def missing(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Return the given partitions that have not been added to the transaction."""
        return [partition for partition in partitions if partition not in self._added]

    def try_add(
        self, partitions: Collection[TopicPartition], add: Add
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Try to add partitions. Return the error codes for partitions that were not added.

        A coordinator adds either all partitions in a request or none. If it rejects a partition, it
        returns OPERATION_NOT_ATTEMPTED for the other partitions.
        """
        failed = add(partitions)
        self._added.update(p for p in partitions if p not in failed)
        return failed


def is_final(code: ErrorCode) -> bool:
    """Return whether this error code from a coordinator is not retriable."""
    return REACTIONS[code] is Reaction.FAIL and code is not ErrorCode.operation_not_attempted
