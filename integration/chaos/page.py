"""docs/chaos.md, and the table of a run.

Purpose: say what became of seeds. Invariant: a line for each seed, connector and backend, whatever
became of it. What it must not know: how seeds are run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from integration.chaos.run import Outcome

_COLUMNS: Final = (
    "backend",
    "connector",
    "seed",
    "rows",
    "faults",
    "drivers",
    "query failures",
    "lost",
    "duplicates",
    "readers held up",
)
_BEGIN: Final = "<!-- results -->\n"
_ROW: Final = re.compile(r"^\| (?!backend|---).*\|$")


def row(outcome: Outcome) -> str:
    """A line of the table."""
    setup, verdict = outcome.setup, outcome.verdict
    cells: list[object] = [
        setup.backend,
        "Spark's" if setup.is_control else "ours",
        setup.seed,
    ]
    if verdict is None:
        cells += ["-", outcome.faults, outcome.driver_starts, outcome.query_failures]
        cells += ["no end", "no end", "no end"]
    else:
        cells += [verdict.rows, outcome.faults, outcome.driver_starts, outcome.query_failures]
        cells += [verdict.lost, verdict.duplicates, len(verdict.stuck)]
    return f"| {' | '.join(map(str, cells))} |"


def table(rows: Iterable[str]) -> str:
    """All rows, under their heads."""
    heads = f"| {' | '.join(_COLUMNS)} |\n|{' --- |' * 2}{' ---: |' * (len(_COLUMNS) - 2)}\n"
    return heads + "".join(f"{line}\n" for line in rows)


def add(path: Path, rows: Iterable[str]) -> None:
    """Put rows into the table of a file, each in place of the one of that seed, if there is one.

    What stands before the table stays.
    """
    text = path.read_text() if path.exists() else ""
    head, _, known = text.partition(_BEGIN)
    found = {_key(line): line for line in known.splitlines() if _ROW.match(line)}
    found |= {_key(line): line for line in rows}
    path.write_text(f"{head}{_BEGIN}{table(found[key] for key in sorted(found))}")


def _key(line: str) -> tuple[str, str, int]:
    backend, connector, seed = (cell.strip() for cell in line.strip("|").split("|")[:3])
    return backend, connector, int(seed)
