"""Runs cases of the failpoint matrix and checks their results."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from integration.failpoints import matrix
from integration.failpoints.matrix import AnyCase
from integration.failpoints.session import Session

MATRIX_S: Final = 1500
"""The timeout of a test that runs many cases."""


def check(session: Session, chosen: Iterable[AnyCase]) -> None:
    """Run cases, and fail with the timelines of failed cases."""
    results = list(matrix.run(session, chosen))
    failed = [f"{each.case}\n{each.error}" for each in results if each.error is not None]
    assert not failed, f"{len(failed)} of {len(results)}:\n" + "\n".join(failed)
