"""The interface of a side of a case: work that can be repeated and measured."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from integration.benchmarks.measure import Sample
from integration.benchmarks.resources import Resources


class Side(Protocol):
    """One of the compared implementations."""

    def run(self, resources: Resources, records: int) -> Sample:
        """Do the work once and return the sample.

        Raise if the work is incomplete, unless only `Proven.prove` can detect that.
        """


@runtime_checkable
class Proven(Protocol):
    """A side whose runs do not show whether they are complete."""

    def prove(self, resources: Resources, records: int) -> None:
        """Raise if this side would not do the complete work; called once before the first run."""
