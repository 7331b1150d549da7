"""All bugs that tests can reintroduce, and their table in docs/simulation.md.

`python -m tests.simulation.bugs.table` prints the table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from tests.simulation.bugs import (
    compaction,
    consumer_groups,
    groups,
    idempotence,
    replication,
    storage,
    transactions,
)
from tests.simulation.bugs.bug import Bug

BUGS: Final[Mapping[str, Sequence[Bug]]] = MappingProxyType(
    {
        "Replication": replication.BUGS,
        "Idempotence": idempotence.BUGS,
        "Transactions": transactions.BUGS,
        "Groups": groups.BUGS,
        "Consumer protocol": consumer_groups.BUGS,
        "Storage": storage.BUGS,
        "Compaction": compaction.BUGS,
    }
)


def all_bugs() -> list[Bug]:
    """Return all bugs in the order of the table."""
    return [bug for bugs in BUGS.values() for bug in bugs]


def detected_bugs() -> list[Bug]:
    """Return the bugs that the simulation detects."""
    return [bug for bug in all_bugs() if bug.first_seed is not None]


def table() -> str:
    """Return the table of bugs in Markdown."""
    lines = ["| bug | what it does | from | seed |", "| --- | --- | --- | ---: |"]
    for part, bugs in BUGS.items():
        lines.append(f"| **{part}** | | | |")
        lines += [
            f"| {bug.name} | {bug.description} | {bug.source} | {_found(bug)} |" for bug in bugs
        ]
    return "\n".join(lines)


def _found(bug: Bug) -> str:
    return "not yet" if bug.first_seed is None else str(bug.first_seed)


if __name__ == "__main__":
    print(table())
