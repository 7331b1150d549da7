"""What a side of a case is: something that can be run again and again, measured each time."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from integration.benchmarks.measure import Sample
from integration.benchmarks.resources import Resources


class Side(Protocol):
    """One of the things that a case compares."""

    def run(self, resources: Resources, records: int) -> Sample:
        """Do the work once and say what it took.

        Raises where it did not do all of it, unless only `Proven.prove` can tell.
        """


@runtime_checkable
class Proven(Protocol):
    """A side whose runs do not show that all was done."""

    def prove(self, resources: Resources, records: int) -> None:
        """Once, before the first run: raise where this side would not do the whole work."""
