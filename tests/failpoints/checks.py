"""Runs cases of the matrix of failpoints and reports those that failed."""

from __future__ import annotations

import time
from collections.abc import Iterable

from integration.failpoints import matrix
from integration.failpoints.matrix import AnyCase
from integration.failpoints.session import Session

SAMPLE_S = 15.0
"""The seconds during which the test of a sample starts cases. The seed determines their order."""

MATRIX_S = 1500
"""The timeout of a test that runs all cases of a kind."""


def check(session: Session, chosen: Iterable[AnyCase], *, for_s: float | None = None) -> int:
    """Run cases and return their number. Fail with the timelines of failed cases."""
    until_s = None if for_s is None else time.monotonic() + for_s
    results = list(matrix.run(session, chosen, until_s=until_s))
    failed = [f"{each.case}\n{each.error}" for each in results if each.error is not None]
    print(
        f"{len(results)} cases, {sum(each.seconds for each in results) / len(results):.2f} s each"
    )
    assert not failed, f"{len(failed)} of {len(results)}:\n" + "\n".join(failed)
    return len(results)
