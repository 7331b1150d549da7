"""The version of this package, which the client sends to brokers.

It is a constant because looking it up with importlib.metadata takes milliseconds.
"""

from __future__ import annotations

from typing import Final

VERSION: Final = "0.1.0"
