"""A bug that tests can reintroduce into broker_ref."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from integration.simulation.plan import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    """A bug with its source, its effect, and a function that reintroduces it.

    `applies_to` returns whether a plan's settings can trigger the bug. `first_seed` is the first
    seed that detected the bug when it was added, or None; `find` searches for it. Tests try at most
    `seeds_max` seeds, starting with `first_seed`.
    """

    name: str
    source: str
    description: str
    reintroduce: Callable[[pytest.MonkeyPatch], None]
    first_seed: int | None
    seeds_max: int = 100
    applies_to: Callable[[Settings], bool] = lambda _: True
