"""The version of this package, for brokers: importlib.metadata would take milliseconds."""

from __future__ import annotations

from typing import Final

VERSION: Final = "0.1.0"
