"""Which producers' batches are of aborted transactions, while batches are walked in order.

Purpose: the rule of read_committed (KIP-98), for both implementations. Invariant: a producer is in the set
from the first offset of its aborted transaction up to its abort marker. What it must not know:
bytes of batches beyond a marker's key. Source: CompletedFetch of Apache Kafka's consumer.
"""

from __future__ import annotations

from pyspark_kafka.kafka.transactions import AbortedTransaction
from pyspark_kafka.records.contract import DecodeError, DecodeFailure

_KEY_BYTES = 4
ABORT = 0
COMMIT = 1
"""Types of control records that end transactions."""


class AbortedProducers:
    """The aborted transactions of a fetch response, as of one batch after the other."""

    def __init__(self, aborted: tuple[AbortedTransaction, ...]) -> None:
        self._later = sorted(aborted, key=lambda entry: entry.first_offset, reverse=True)
        self._producer_ids: set[int] = set()

    def admit(self, last_offset: int) -> None:
        """A batch up to `last_offset` comes: transactions that began by then are in force."""
        while self._later and self._later[-1].first_offset <= last_offset:
            self._producer_ids.add(self._later.pop().producer_id)

    def end(self, producer_id: int) -> None:
        """The producer's abort marker was met."""
        self._producer_ids.discard(producer_id)

    def __contains__(self, producer_id: int) -> bool:
        return producer_id in self._producer_ids


def control_type(key: bytes | None, *, base_offset: int) -> int:
    """The type of a control record with this key, `version int16 | type int16`.

    Raises `DecodeError` for a key that is none.
    """
    version = int.from_bytes(key[:2], "big", signed=True) if key else 0
    if key is None or len(key) < _KEY_BYTES or version < 0:
        raise DecodeError(DecodeFailure.MARKER, base_offset, len(key or b""), version)
    return int.from_bytes(key[2:4], "big", signed=True)


def is_abort_marker(key: bytes | None, *, base_offset: int) -> bool:
    """Whether a control record with this key is an abort marker; types not known are no markers."""
    return control_type(key, base_offset=base_offset) == ABORT
