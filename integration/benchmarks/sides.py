"""The interface of the implementations that a benchmark case compares ("sides")."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from integration.benchmarks.measure import Sample
from integration.benchmarks.resources import Resources


class Side(Protocol):
    """One of the implementations that a case compares."""

    def run(self, resources: Resources, records: int) -> Sample:
        """Run the workload once and return the measured sample.

        Raises an exception if the run detects that some of the work was not done. An implementation
        that cannot detect this during a run must be a `VerifiableSide`.
        """


@runtime_checkable
class VerifiableSide(Protocol):
    """A side whose runs cannot detect incomplete work."""

    def verify(self, resources: Resources, records: int) -> None:
        """Raise `ValueError` if this implementation skips a part of the work.

        The runner calls this method once, before the first run.
        """
