"""Which partitions are in a transaction whose coordinator has to be told of each (KIP-98).

Purpose: the answer to "may this partition be written to", and one try of adding those that may not
yet. Invariant: a partition is in once the coordinator has confirmed it, and stays in. What it must
not know: batches, when to try again, and how a refusal is told.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from kio.schema.errors import ErrorCode

from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.wire.error_codes import REACTIONS, Reaction

Add = Callable[[Collection[TopicPartition]], Mapping[TopicPartition, ErrorCode]]
"""One AddPartitionsToTxn; the answer is what was refused, and why."""


@dataclass(slots=True)
class Membership:
    """The partitions of one transaction."""

    _inside: set[TopicPartition] = field(default_factory=set)

    def missing(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Those that must be added before they are written to."""
        return [partition for partition in partitions if partition not in self._inside]

    def ask(
        self, partitions: Collection[TopicPartition], add: Add
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Try to add these; the answer is why some are not in.

        A coordinator adds all of a question or none: those that could be added are answered with
        OPERATION_NOT_ATTEMPTED where others could not.
        """
        refused = add(partitions)
        self._inside.update(p for p in partitions if p not in refused)
        return refused


def is_final(code: ErrorCode) -> bool:
    """Whether a coordinator with this answer will not say otherwise later."""
    return REACTIONS[code] is Reaction.FAIL and code is not ErrorCode.operation_not_attempted
