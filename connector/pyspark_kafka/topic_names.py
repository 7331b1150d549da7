"""Which names a topic may have. Source: Kafka's `Topic.validate`."""

from __future__ import annotations

import re
from typing import Final

_LEGAL: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")

LEGAL_NAMES: Final = "1 to 249 letters, digits, '.', '_' and '-'"
"""What `is_topic_name` asks for, for an error that says so."""


def is_topic_name(name: str) -> bool:
    """Whether a broker could have a topic of this name."""
    return _LEGAL.fullmatch(name) is not None and name not in {".", ".."}
