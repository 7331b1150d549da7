"""Deviations that several options share."""

from __future__ import annotations

from typing import Final

from integration.parity.case import Expected, different, we_refuse


def empty_first_batch(*, rows: int, tasks: list[int]) -> Expected:
    """Expect that our connector first plans an empty micro-batch, and then one with all rows."""
    return different(
        "Ours stores the start offsets as an empty micro-batch if a later process could determine "
        "different ones. Spark's connector stores them in a file of the checkpoint that a Python "
        "data source cannot write.",
        tasks=([tasks], [[], tasks]),
        batches=([[0, rows]], [[0, 0], [1, rows]]),
        offsets=(1, 2),
        commits=(1, 2),
    )


IGNORED_OPTION: Final = we_refuse(
    "OptionError",
    "Spark's connector ignores the option. Ours rejects it.",
)

ALWAYS_IDEMPOTENT: Final = we_refuse(
    "OptionError",
    "Our producer is always idempotent with `acks=all`, so that no acknowledged row is lost and no "
    "retry duplicates a row.",
)

NO_JAVA_CLASSES: Final = we_refuse(
    "OptionError", "Spark's connector loads a Java class, which a Python process cannot do."
)
