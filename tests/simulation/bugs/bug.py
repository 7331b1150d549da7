"""What a switch for a bug is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from integration.simulation.plan import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    """A bug: where it comes from, what it is, and how it is put back.

    `needs` says which plans do what the bug is about: others are not run. `found_by` is a seed
    that found it when this was written, and None where none has: it is tried first, then those
    from 0 up to `seeds_max`.
    """

    name: str
    source: str
    what: str
    put_back: Callable[[pytest.MonkeyPatch], None]
    found_by: int | None
    seeds_max: int = 300
    needs: Callable[[Settings], bool] = lambda _: True
