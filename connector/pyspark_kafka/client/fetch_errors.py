"""Errors for offset ranges that cannot be read. Both engines use these errors.

Invariant: every error names the partition and the offset.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyspark_kafka.errors import (
    FetchTimeoutError,
    KafkaError,
    LeaderNotAvailableError,
    OffsetOutOfRangeError,
    reason_of,
    sentence,
)
from pyspark_kafka.kafka.offsets import FetchRange, IsolationLevel

TIMEOUT_OPTION: Final = "kafkaConsumer.pollTimeoutMs"
WAIT_LONGER: Final = f"To wait longer, raise '{TIMEOUT_OPTION}'."


@dataclass(frozen=True, slots=True, kw_only=True)
class ExistingOffsets:
    """The log start offset, last stable offset and high watermark of a partition."""

    log_start_offset: int
    last_stable_offset: int
    high_watermark: int

    def __str__(self) -> str:
        return (
            f"the log starts at {self.log_start_offset}, its last stable offset is "
            f"{self.last_stable_offset} and its high watermark is {self.high_watermark}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchErrors:
    """Creates the errors for reading one offset range."""

    fetch_range: FetchRange
    isolation_level: IsolationLevel
    bootstrap_servers: str
    poll_timeout_ms: int

    @property
    def timeout_s(self) -> float:
        """The maximum time without progress, in seconds."""
        return self.poll_timeout_ms / 1000

    def operation(self, position: int) -> str:
        """Return the phrase "fetching PARTITION at offset POSITION" for messages."""
        return f"fetching {self.fetch_range.topic_partition} at offset {position}"

    def out_of_range(
        self, position: int, existing: ExistingOffsets, truncated_at: int | None = None
    ) -> OffsetOutOfRangeError:
        """Return the error for offsets that do not exist in the log.

        The query has already read the records before `position`. If the log was truncated after
        this read, `truncated_at` is the offset to which it was truncated.
        """
        partition = self.fetch_range.topic_partition
        reason = (
            "The records were deleted by retention or DeleteRecords, or the topic was recreated."
        )
        if truncated_at is not None:
            reason = (
                f"The log was truncated to offset {truncated_at} after the query had read it up to "
                f"offset {position}. A possible cause is an unclean leader election."
            )
        return OffsetOutOfRangeError(
            f"{partition} does not contain all of the requested offsets {position} to "
            f"{self.fetch_range.end_offset} (exclusive): {existing}. {reason}",
            topic=partition.topic,
            partition=partition.partition,
            offset=position,
        )

    def no_leader(self, position: int, last: Exception | None = None) -> FetchTimeoutError:
        """Return the error for a partition without a leader.

        `last` is the error from the last attempt.
        """
        return self._timeout(
            position,
            f"{sentence(self.operation(position))} failed: no data arrived for "
            f"{self.timeout_s:g} s, and no broker responded as the partition leader"
            f"{_after(last)}.",
            advice=f"{LeaderNotAvailableError.remedy} {WAIT_LONGER}",
        )

    def no_data(
        self, position: int, existing: ExistingOffsets, last: Exception | None = None
    ) -> KafkaError:
        """Return the error for a partition whose leader returned no data in time."""
        end_offset = self.fetch_range.end_offset
        if existing.high_watermark < end_offset:
            return self.out_of_range(position, existing)
        if (
            self.isolation_level is IsolationLevel.READ_COMMITTED
            and existing.last_stable_offset < end_offset
        ):
            return self._timeout(
                position,
                f"{sentence(self.operation(position))} failed: the range ends at offset "
                f"{end_offset}, but {existing}. These offsets have not changed for "
                f"{self.timeout_s:g} s. With 'kafka.isolation.level' set to read_committed, a "
                "fetch ends at the last stable offset, which is the start of the oldest open "
                "transaction.",
                advice="Wait until that transaction ends, end it with kafka-transactions.sh, or "
                "set 'kafka.isolation.level' to 'read_uncommitted'.",
            )
        return self._timeout(
            position,
            f"{sentence(self.operation(position))} failed: no data arrived from "
            f"{self.bootstrap_servers} for {self.timeout_s:g} s, although all requested records "
            f"exist. The range ends at offset {end_offset}, and {existing}{_after(last)}.",
        )

    def _timeout(self, position: int, what: str, advice: str | None = None) -> FetchTimeoutError:
        partition = self.fetch_range.topic_partition
        return FetchTimeoutError(
            what,
            advice=advice,
            topic=partition.topic,
            partition=partition.partition,
            offset=position,
        )


def _after(last: Exception | None) -> str:
    return "" if last is None else f" (the last attempt failed: {reason_of(last)})"
