"""A bug that can be reintroduced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from integration.simulation.plan import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    """A bug with its source, its effect, and a function that reintroduces it.

    `needs` selects the plans that can trigger the bug. `first_seed` is the first seed that detected
    it when it was added (`find` searches for it), or None. Tests try at most `seeds_max` seeds from
    there.
    """

    name: str
    source: str
    what: str
    reintroduce: Callable[[pytest.MonkeyPatch], None]
    first_seed: int | None
    seeds_max: int = 100
    needs: Callable[[Settings], bool] = lambda _: True
