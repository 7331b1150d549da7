"""Defines the version of this package, which the client sends to brokers.

The version is a constant, because a lookup with importlib.metadata takes milliseconds.
"""

from __future__ import annotations

from typing import Final

VERSION: Final = "0.1.0"
