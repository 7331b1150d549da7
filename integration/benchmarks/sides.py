"""The interface of the implementations that a case compares: work that can be measured."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from integration.benchmarks.measure import Sample
from integration.benchmarks.resources import Resources


class Side(Protocol):
    """One of the implementations that a case compares."""

    def run(self, resources: Resources, records: int) -> Sample:
        """Do the work once and return the sample.

        Raises an exception if the run detects incomplete work. A side that cannot detect incomplete
        work in a run is a `VerifiableSide`.
        """


@runtime_checkable
class VerifiableSide(Protocol):
    """A side whose runs cannot detect incomplete work."""

    def verify(self, resources: Resources, records: int) -> None:
        """Raise `ValueError` if the side does not do all of the work.

        The runner calls this once, before the first run.
        """
