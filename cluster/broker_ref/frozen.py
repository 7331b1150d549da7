"""Dataclasses that are fast to instantiate and that type checkers treat as frozen.

The `__init__` of a frozen dataclass calls `object.__setattr__` for each field. These calls account
for most of the time that it takes to create an instance. Brokers create dozens of instances for
each request. Type checkers see the standard `dataclass` decorator, so they reject assignments to
the fields of frozen classes. Invariant: instances are not changed.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(**options: Any) -> Any:
        """Return a `dataclass` decorator for which `frozen` only makes instances hashable."""
        if options.pop("frozen", False):
            options.setdefault("unsafe_hash", options.get("eq", True))
        return dataclasses.dataclass(**options)


__all__ = ["dataclass"]
