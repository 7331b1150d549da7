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
    """Yield the first case of each option, and the first case of each deviation of an option."""
    seen: set[tuple[str, str]] = set()
    for case in cases:
        key = (case.about, case.expected.reason)
        if key not in seen:
            seen.add(key)
            yield case


SAMPLE: Final = tuple(_sample(CASES))
