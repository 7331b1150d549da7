"""The table of all cases, and the sample that `make test-all` runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from integration.parity.case import Case
from integration.parity.cases.offsets import OFFSETS
from integration.parity.cases.selection import SELECTION
from integration.parity.cases.settings import SETTINGS
from integration.parity.cases.streams import STREAMS
from integration.parity.cases.writes import COLUMNS

CASES: Final[tuple[Case, ...]] = (*SELECTION, *OFFSETS, *STREAMS, *COLUMNS, *SETTINGS)


def _sample(cases: Iterable[Case]) -> Iterator[Case]:
    """Yield a representative sample of the test cases.

    The sample contains the first deviation for each option and reason. For test cases that are not
    deviations, it contains the first case of each kind and relation.
    """
    seen: set[tuple[object, object]] = set()
    for case in cases:
        expected = case.expected
        deviation, other = (case.about, expected.reason), (case.kind, expected.relation)
        key = deviation if expected.is_deviation else other
        if key not in seen:
            seen.add(key)
            yield case


SAMPLE: Final = tuple(_sample(CASES))
