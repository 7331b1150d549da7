"""The version of this package, as it tells brokers: looking it up would take milliseconds."""

from __future__ import annotations

from typing import Final

VERSION: Final = "0.1.0"
