"""Limits the pauses of Python's garbage collector in the process of a broker.

A full collection visits all objects of the process. In a broker with thousands of partitions, a
full collection blocks the event loop for hundreds of milliseconds. Most of these objects live as
long as their partition, and reference counting frees them. Therefore, objects that survive a full
collection are frozen, and later collections do not visit them. A full collection cannot free
reference cycles of frozen objects. To free such cycles, all objects are unfrozen before a full
collection if the number of frozen objects has doubled since they were last unfrozen.
"""

from __future__ import annotations

import gc
from typing import Final

FROZEN_MARGIN: Final = 3_000_000
"""Objects are unfrozen when their count exceeds twice the last survivor count plus this margin."""

_OLDEST: Final = 2


class LongLivedObjects:
    """Between `start` and `stop`, freezes the objects that survive a full collection."""

    def __init__(self, *, frozen_margin: int = FROZEN_MARGIN) -> None:
        self._frozen = 0
        self._frozen_max = self._frozen_margin = frozen_margin

    def start(self) -> None:
        """Freeze all current objects, and the objects that survive later full collections."""
        self._freeze(len(gc.get_objects()))
        gc.callbacks.append(self._collected)

    def stop(self) -> None:
        """Stop freezing objects, and unfreeze all objects."""
        gc.callbacks.remove(self._collected)
        gc.unfreeze()

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        if info["generation"] != _OLDEST:
            return
        unfreezes = self._frozen > self._frozen_max
        if phase == "start":
            if unfreezes:
                gc.unfreeze()
            return
        survivors = len(gc.get_objects(_OLDEST))
        if unfreezes:
            self._frozen, self._frozen_max = 0, 2 * survivors + self._frozen_margin
        self._freeze(survivors)

    def _freeze(self, count: int) -> None:
        self._frozen += count
        gc.freeze()
