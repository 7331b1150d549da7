"""The directory of all logs as DescribeLogDirs tells of it: an argument from the edge."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

UNKNOWN_BYTES: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskSpace:
    """Bytes of the volume, and those that can still be used; -1 where that is not known."""

    total_bytes: int = UNKNOWN_BYTES
    usable_bytes: int = UNKNOWN_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDir:
    """Where the logs are; `space` measures the volume when it is called."""

    path: str = "/"
    space: Callable[[], DiskSpace] = DiskSpace


UNKNOWN_LOG_DIR: Final = LogDir()
"""Where the edge tells nothing."""
