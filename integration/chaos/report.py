"""The report of chaos runs as Markdown, with one table row per seed.

Invariant: every seed has a row, even if its run failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from integration.chaos.run import Outcome

_COLUMNS: Final = (
    "backend",
    "connector",
    "seed",
    "rows",
    "faults",
    "driver starts",
    "query failures",
    "lost",
    "duplicates",
    "blocked partitions",
)


def rows(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Return one dictionary per outcome. Counts are None if the run did not complete."""
    found = []
    for outcome in outcomes:
        setup, delivery = outcome.setup, outcome.delivery
        cells: tuple[object, ...] = (
            setup.backend,
            "Spark's" if setup.is_control else "pyspark_kafka",
            setup.seed,
            None if delivery is None else delivery.rows,
            outcome.faults,
            outcome.driver_starts,
            outcome.query_failures,
            None if delivery is None else delivery.lost,
            None if delivery is None else delivery.duplicates,
            None if delivery is None else len(delivery.blocked),
        )
        found.append(dict(zip(_COLUMNS, cells, strict=True)))
    return found


def render(outcomes: Sequence[Outcome]) -> str:
    """Return the Markdown report."""
    lines = [
        "# Chaos results",
        "",
        "docs/chaos.md explains the columns.",
        "",
        f"| {' | '.join(_COLUMNS)} |",
        f"|{' --- |' * 2}{' ---: |' * (len(_COLUMNS) - 2)}",
    ]
    for row in rows(outcomes):
        cells = ["unknown" if cell is None else str(cell) for cell in row.values()]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
