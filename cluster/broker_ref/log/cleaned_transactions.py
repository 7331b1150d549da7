"""The transactions that compaction finds in a log (Kafka's `CleanedTransactionMetadata`).

| batch                                               | can be removed                            |
| --------------------------------------------------- | ----------------------------------------- |
| batch of an aborted transaction                     | yes                                       |
| batch of a committed transaction                    | depends on the keys of its records        |
| marker whose transaction has remaining batches      | no; an aborted transaction is added to    |
|                                                     | the transaction index of the new segment  |
| marker whose transaction has no remaining batches   | yes, after the batch's delete horizon     |
| marker whose record was removed by compaction       | yes                                       |
| control batch of another type                       | no                                        |

Invariants: callers pass each batch once, in log order. A marker is retained if a batch of its
transaction remains. Without the marker, consumers would attribute this batch to the next
transaction of the producer.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from broker_ref.log.batch import BatchHeader, Buffer
from broker_ref.log.control import Marker, decode_marker
from broker_ref.log.transaction_index import AbortedTransaction, TransactionIndex

_Aborted = tuple[int, int, int, int]  # First and last offset, producer id, last stable offset.


class CleanedTransactionMetadata:
    """The transactions that are open at the current position in the log."""

    def __init__(self) -> None:
        self._to_come: list[_Aborted] = []
        self._aborted: dict[int, _Aborted] = {}
        self._observed: set[int] = set()
        """The producers whose current aborted transaction has at least one remaining batch."""
        self._committed: set[int] = set()

    def add(self, transactions: Iterable[AbortedTransaction]) -> None:
        """Add the aborted transactions of the next batches. Duplicates are ignored."""
        for one in transactions:
            aborted = (one.first_offset, one.last_offset, one.producer_id, one.last_stable_offset)
            heapq.heappush(self._to_come, aborted)

    def is_aborted(self, header: BatchHeader) -> bool:
        """Return whether a batch of records is part of an aborted transaction."""
        self._begin_to(header.last_offset)
        if not header.is_transactional:
            return False
        if header.producer_id in self._aborted:
            self._observed.add(header.producer_id)
            return True
        self._committed.add(header.producer_id)
        return False

    def is_discardable(
        self, header: BatchHeader, batch: Buffer, *, index: TransactionIndex | None = None
    ) -> bool:
        """Return whether a control batch can be removed.

        If an abort marker must be retained, its transaction is added to `index`.
        """
        self._begin_to(header.last_offset)
        if header.record_count == 0:
            return True
        end = decode_marker(batch)
        if end is None:
            return False
        producer_id = header.producer_id
        if end.marker is Marker.COMMIT:
            is_discardable = producer_id not in self._committed
            self._committed.discard(producer_id)
            return is_discardable
        aborted = self._aborted.pop(producer_id, None)
        if aborted is None or producer_id not in self._observed:
            return True
        self._observed.discard(producer_id)
        if index is not None:
            first_offset, last_offset, _, last_stable_offset = aborted
            index.append(
                AbortedTransaction(
                    producer_id=producer_id,
                    first_offset=first_offset,
                    last_offset=last_offset,
                    last_stable_offset=last_stable_offset,
                )
            )
        return False

    def _begin_to(self, offset: int) -> None:
        while self._to_come and self._to_come[0][0] <= offset:
            aborted = heapq.heappop(self._to_come)
            self._aborted.setdefault(aborted[2], aborted)
