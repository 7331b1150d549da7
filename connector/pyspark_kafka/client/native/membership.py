"""Which partitions are in a transaction whose coordinator has to be told of each (KIP-98).

Purpose: the answer to "may this partition be written to", and one try of adding those that may not
yet. Invariant: a partition is in once the coordinator has confirmed it, and stays in. What it must
not know: batches, when to try again, and how a refusal is told.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from kio.schema.errors import ErrorCode

from pyspark_kafka.client.base import TopicPartition
from pyspark_kafka.wire.faults import REACTIONS, Reaction

Add = Callable[[Collection[TopicPartition]], Mapping[TopicPartition, ErrorCode]]
"""One AddPartitionsToTxn, and what was answered for each partition."""


@dataclass(slots=True)
class Membership:
    """The partitions of one transaction."""

    _inside: set[TopicPartition] = field(default_factory=set)

    def missing(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Those that must be added before they are written to."""
        return [partition for partition in partitions if partition not in self._inside]

    def ask(
        self, partitions: Collection[TopicPartition], add: Add
    ) -> dict[TopicPartition, ErrorCode]:
        """Try to add these; the answer is why some are not in, those with a final reason first.

        A coordinator adds all of a question or none: those that could be added are answered with
        OPERATION_NOT_ATTEMPTED where others could not.
        """
        answers = add(partitions)
        self._inside.update(p for p, code in answers.items() if code is ErrorCode.none)
        refused = [(p, code) for p, code in answers.items() if code is not ErrorCode.none]
        return dict(sorted(refused, key=lambda answer: not is_final(answer[1])))


def is_final(code: ErrorCode) -> bool:
    """Whether a partition with this answer cannot be added later either."""
    passes = (ErrorCode.none, ErrorCode.operation_not_attempted)
    return code not in passes and REACTIONS[code] is Reaction.FAIL
