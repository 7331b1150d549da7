"""Ids for producers, each handed out once in the life of the cluster.

Purpose: draw ids from blocks that the controller has noted durably. Invariant: after a crash the
rest of a block is never used. Source: Kafka's `RPCProducerIdManager`.
"""

from __future__ import annotations

from collections.abc import Callable


class ProducerIds:
    """The present block; `allocate` gives the next one."""

    def __init__(self, allocate: Callable[[], range]) -> None:
        self._allocate = allocate
        self._block = range(0)

    def next(self) -> int:
        """An id that nobody has had."""
        if not self._block:
            self._block = self._allocate()
        producer_id = self._block[0]
        self._block = self._block[1:]
        return producer_id
