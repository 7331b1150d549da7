"""A Markdown report on chaos runs, with one table row per seed.

Invariant: every seed has a row, even if its run failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from integration.chaos.run import Outcome

_COLUMNS: Final = (
    "backend",
    "connector",
    "kind",
    "transaction.version",
    "seed",
    "rows",
    "faults",
    "driver starts",
    "replaced drivers",
    "query failures",
    "lost",
    "duplicates",
    "blocked partitions",
    "wrong offsets",
)
_TEXT_COLUMNS: Final = 3
_EXERCISED: Final = "exercised"


def rows(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Return one dictionary per outcome. Counts are None if the run did not complete."""
    found = []
    for outcome in outcomes:
        setup, delivery = outcome.setup, outcome.delivery
        cells: tuple[object, ...] = (
            setup.backend,
            "Spark's" if setup.is_control else "pyspark_kafka",
            setup.kind.name,
            setup.transaction_version,
            setup.seed,
            None if delivery is None else delivery.rows,
            outcome.faults,
            outcome.driver_starts,
            outcome.replaced_drivers,
            outcome.query_failures,
            None if delivery is None else delivery.lost,
            None if delivery is None else delivery.duplicates,
            None if delivery is None else len(delivery.blocked),
            None if delivery is None else len(delivery.wrong_offsets),
        )
        exercised = {**outcome.events, **outcome.errors}
        found.append(dict(zip(_COLUMNS, cells, strict=True)) | {_EXERCISED: exercised})
    return found


def exercised(outcome: Outcome) -> str:
    """Return the numbers of events and errors of a run as text."""
    counts = {**outcome.events, **outcome.errors}
    return ", ".join(f"{name} {counts[name]}" for name in sorted(counts))


def render(outcomes: Sequence[Outcome]) -> str:
    """Return the Markdown report."""
    lines = [
        "# Chaos results",
        "",
        "docs/chaos.md explains the columns.",
        "",
        f"| {' | '.join(_COLUMNS)} | {_EXERCISED} |",
        f"|{' --- |' * _TEXT_COLUMNS}{' ---: |' * (len(_COLUMNS) - _TEXT_COLUMNS)} --- |",
    ]
    for outcome, row in zip(outcomes, rows(outcomes), strict=True):
        cells = ["unknown" if row[name] is None else str(row[name]) for name in _COLUMNS]
        lines.append(f"| {' | '.join(cells)} | {exercised(outcome)} |")
    return "\n".join(lines) + "\n"
