"""The origin and the result of an append to a log."""

from __future__ import annotations

from enum import Enum

from broker_ref.frozen import dataclass


class AppendOrigin(Enum):
    """The origin of an append on the leader, which determines how the batch is checked."""

    CLIENT = "client"
    COORDINATOR = "coordinator"
    """A coordinator on this broker. Transactional offset commits have no sequence numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendResult:
    """The offsets and the append time of a batch.

    With `message.timestamp.type=CreateTime`, `log_append_time_ms` is -1. For a duplicate, the
    result contains the offsets of the original batch. As in Apache Kafka, the `log_append_time_ms`
    of a duplicate is the max timestamp of the original batch, even with CreateTime.
    """

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    is_duplicate: bool
