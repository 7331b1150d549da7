"""The origin and the result of an append."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class AppendOrigin(Enum):
    """The origin of an append at a leader, which determines the checks (`AppendOrigin`)."""

    CLIENT = "client"
    COORDINATOR = "coordinator"
    """The broker itself: a group's offsets in a transaction have a producer id but no sequence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendResult:
    """The offsets of an appended batch; `log_append_time_ms` is -1 under CreateTime.

    For a duplicate these are the offsets of the original batch, and the time is the batch's largest
    timestamp for both timestamp types, as in Apache Kafka.
    """

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    is_duplicate: bool
