"""What a switch for a bug is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from integration.simulation.plan import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    """A bug: where it comes from, what it is, and how it is put back.

    `needs` says which plans do what the bug is about: others are not run. `first_seed` is where a
    search for it begins: no seed before it found it when this was written (`find` tells the first
    that does); None where none has yet. Nobody looks at more than `seeds_max` from there on.
    """

    name: str
    source: str
    what: str
    put_back: Callable[[pytest.MonkeyPatch], None]
    first_seed: int | None
    seeds_max: int = 100
    needs: Callable[[Settings], bool] = lambda _: True
