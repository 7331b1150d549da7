"""What is appended for whom, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class AppendOrigin(Enum):
    """Who makes a leader append; what is checked depends on it (AppendOrigin)."""

    CLIENT = "client"
    COORDINATOR = "coordinator"
    """The broker itself; a group's offsets in a transaction have a producer, but no sequences."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendResult:
    """Where a batch went. `log_append_time_ms` is -1 under CreateTime.

    For a duplicate these are the offsets of the first time, and the time is that batch's largest
    timestamp whatever the timestamp type, as Apache Kafka answers it.
    """

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    is_duplicate: bool
