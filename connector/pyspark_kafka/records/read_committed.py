"""Implements the `read_committed` rules for aborted transactions and control records (KIP-98).

The `pure` and `cython` implementations of `decode` use this module to skip batches of aborted
transactions. An aborted transaction of a producer extends from its first offset to its abort
marker. Source: `CompletedFetch` of Apache Kafka's consumer.
"""

from __future__ import annotations

from pyspark_kafka.kafka.transactions import AbortedTransaction
from pyspark_kafka.records.contract import DecodeError, DecodeFailure

_KEY_BYTES = 4
ABORT = 0
COMMIT = 1
"""The types of control records that end transactions."""


class AbortedProducers:
    """The producers whose aborted transactions cover the current batch of a Fetch response."""

    def __init__(self, aborted: tuple[AbortedTransaction, ...]) -> None:
        self._later = sorted(aborted, key=lambda entry: entry.first_offset, reverse=True)
        self._producer_ids: set[int] = set()

    def admit(self, last_offset: int) -> None:
        """Add the producers of aborted transactions that start at or before `last_offset`."""
        while self._later and self._later[-1].first_offset <= last_offset:
            self._producer_ids.add(self._later.pop().producer_id)

    def end(self, producer_id: int) -> None:
        """Remove a producer at its abort marker."""
        self._producer_ids.discard(producer_id)

    def __contains__(self, producer_id: int) -> bool:
        return producer_id in self._producer_ids


def control_type(key: bytes | None, *, base_offset: int) -> int:
    """Return the type in the key of a control record. Raises `DecodeError` for an invalid key.

    The format of the key is `version int16 | type int16`.
    """
    version = int.from_bytes(key[:2], "big", signed=True) if key else 0
    if key is None or len(key) < _KEY_BYTES or version < 0:
        raise DecodeError(DecodeFailure.MARKER, base_offset, len(key or b""), version)
    return int.from_bytes(key[2:4], "big", signed=True)


def is_abort_marker(key: bytes | None, *, base_offset: int) -> bool:
    """Return whether a control record with this key is an abort marker."""
    return control_type(key, base_offset=base_offset) == ABORT
