"""The log directory that DescribeLogDirs reports. The I/O layer provides it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from broker_ref.frozen import dataclass

UNKNOWN_BYTES: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskSpace:
    """The total size and the usable space of a volume in bytes. -1 means unknown."""

    total_bytes: int = UNKNOWN_BYTES
    usable_bytes: int = UNKNOWN_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDir:
    """The path of the log directory. `space` returns the current disk space of its volume."""

    path: str = "/"
    space: Callable[[], DiskSpace] = DiskSpace


UNKNOWN_LOG_DIR: Final = LogDir()
"""The log directory that is reported if the I/O layer does not provide one."""
