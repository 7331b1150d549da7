"""The log directory for DescribeLogDirs, provided by the I/O layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

UNKNOWN_BYTES: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskSpace:
    """Total and usable bytes of the volume; -1 if unknown."""

    total_bytes: int = UNKNOWN_BYTES
    usable_bytes: int = UNKNOWN_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDir:
    """The path of the logs; `space` measures the volume when called."""

    path: str = "/"
    space: Callable[[], DiskSpace] = DiskSpace


UNKNOWN_LOG_DIR: Final = LogDir()
"""The default if the I/O layer provides none."""
