"""The rule of read_committed: aborted producers and control records (KIP-98).

Purpose: skip batches of aborted transactions, for both implementations. Invariant: a producer is
aborted from the first offset of its aborted transaction to its abort marker. What it must not know:
bytes of batches other than a marker's key. Source: CompletedFetch of Apache Kafka's consumer.
"""

from __future__ import annotations

from pyspark_kafka.kafka.transactions import AbortedTransaction
from pyspark_kafka.records.contract import DecodeError, DecodeFailure

_KEY_BYTES = 4
ABORT = 0
COMMIT = 1
"""Types of control records that end transactions."""


class AbortedProducers:
    """The producers whose transaction is aborted at the current batch of a fetch response."""

    def __init__(self, aborted: tuple[AbortedTransaction, ...]) -> None:
        self._later = sorted(aborted, key=lambda entry: entry.first_offset, reverse=True)
        self._producer_ids: set[int] = set()

    def admit(self, last_offset: int) -> None:
        """Add the producers of transactions that start up to `last_offset`, the end of a batch."""
        while self._later and self._later[-1].first_offset <= last_offset:
            self._producer_ids.add(self._later.pop().producer_id)

    def end(self, producer_id: int) -> None:
        """Remove a producer at its abort marker."""
        self._producer_ids.discard(producer_id)

    def __contains__(self, producer_id: int) -> bool:
        return producer_id in self._producer_ids


def control_type(key: bytes | None, *, base_offset: int) -> int:
    """Return the type of a control record with this key, `version int16 | type int16`.

    Raises `DecodeError` for an invalid key.
    """
    version = int.from_bytes(key[:2], "big", signed=True) if key else 0
    if key is None or len(key) < _KEY_BYTES or version < 0:
        raise DecodeError(DecodeFailure.MARKER, base_offset, len(key or b""), version)
    return int.from_bytes(key[2:4], "big", signed=True)


def is_abort_marker(key: bytes | None, *, base_offset: int) -> bool:
    """Return whether a control record with this key is an abort marker; unknown types are not."""
    return control_type(key, base_offset=base_offset) == ABORT
