"""What is said of a range that cannot be read, whichever engine reads it.

Purpose: the one place with the words for a fetch that finds nothing: what is wanted, what exists,
and what to do. Invariant: every error names the partition and its offsets. What it must not know:
how an engine fetches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyspark_kafka.errors import FetchTimeoutError, KafkaError, OffsetOutOfRangeError
from pyspark_kafka.kafka.offsets import FetchRange, IsolationLevel

TIMEOUT_OPTION: Final = "kafkaConsumer.pollTimeoutMs"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExistingOffsets:
    """What exists now of a partition; the last two are where the two isolation levels end."""

    log_start_offset: int
    last_stable_offset: int
    high_watermark: int

    def __str__(self) -> str:
        return (
            f"the log begins at {self.log_start_offset}, its last stable offset is "
            f"{self.last_stable_offset} and its end {self.high_watermark}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchErrors:
    """The errors of reading one range."""

    fetch_range: FetchRange
    isolation_level: IsolationLevel
    bootstrap_servers: str
    poll_timeout_ms: int

    @property
    def waited_s(self) -> float:
        """How long to wait without news."""
        return self.poll_timeout_ms / 1000

    def doing(self, position: int) -> str:
        """What is being done at an offset."""
        return f"fetching {self.fetch_range.topic_partition} at offset {position}"

    def out_of_range(
        self, position: int, existing: ExistingOffsets, cut_at: int | None = None
    ) -> OffsetOutOfRangeError:
        """The broker does not have these offsets any more, or yet.

        `cut_at` is where another log begins than the one that was read up to `position`.
        """
        wanted = self.fetch_range
        reason = (
            "records were deleted (retention, DeleteRecords), or the topic was recreated or cut "
            "short"
        )
        if cut_at is not None:
            reason = (
                f"the log was cut short at offset {cut_at} and written anew after it had been "
                f"read up to {position}, as by an unclean leader election"
            )
        return OffsetOutOfRangeError(
            f"{wanted.topic_partition}: offsets {position} to {wanted.end_offset} "
            f"(exclusive) are wanted, but {existing}; {reason}"
        )

    def no_leader(self, position: int, last: Exception | None = None) -> FetchTimeoutError:
        """Nobody who could be asked led the partition until the time was over.

        `last` is how the last try ended, where that is known.
        """
        return FetchTimeoutError(
            f"{self.doing(position)}: nothing came for {self.waited_s:g} s, and no leader answers "
            f"for the partition{_of_last(last)}; start a broker that has an in-sync replica of "
            f"it, or raise '{TIMEOUT_OPTION}' to wait longer"
        )

    def nothing_came(
        self, position: int, existing: ExistingOffsets, last: Exception | None = None
    ) -> KafkaError:
        """The leader is there, and what is wanted has not come until the time was over."""
        wanted = self.fetch_range
        if existing.high_watermark < wanted.end_offset:
            return self.out_of_range(position, existing)
        if (
            self.isolation_level is IsolationLevel.READ_COMMITTED
            and existing.last_stable_offset < wanted.end_offset
        ):
            return FetchTimeoutError(
                f"{wanted.topic_partition}: the range ends at offset {wanted.end_offset}, but "
                f"{existing}, and that has not changed for {self.waited_s:g} s: with "
                "'kafka.isolation.level' read_committed reading ends at the last stable offset, "
                "where the oldest open transaction begins. Wait until it is decided, end it with "
                "kafka-transactions.sh, or read with read_uncommitted"
            )
        return FetchTimeoutError(
            f"{self.doing(position)}: nothing came from {self.bootstrap_servers} for "
            f"{self.waited_s:g} s, though the range ends at {wanted.end_offset} and {existing}"
            f"{_of_last(last)}; if the brokers are slow, raise '{TIMEOUT_OPTION}'"
        )


def _of_last(last: Exception | None) -> str:
    return "" if last is None else f" (the last try failed: {last})"
