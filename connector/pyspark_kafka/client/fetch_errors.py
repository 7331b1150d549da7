"""The errors of a range that cannot be read, the same for both engines.

Invariant: every error names the partition and the offset. What it must not know: how an engine
fetches.
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
    """The offsets that a partition has now."""

    log_start_offset: int
    last_stable_offset: int
    high_watermark: int

    def __str__(self) -> str:
        return (
            f"the log starts at {self.log_start_offset}, its last stable offset is "
            f"{self.last_stable_offset} and its high watermark {self.high_watermark}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchErrors:
    """The errors of reading one range."""

    fetch_range: FetchRange
    isolation_level: IsolationLevel
    bootstrap_servers: str
    poll_timeout_ms: int

    @property
    def timeout_s(self) -> float:
        """How long to wait without progress."""
        return self.poll_timeout_ms / 1000

    def operation(self, position: int) -> str:
        """Return the phrase for fetching at an offset."""
        return f"fetching {self.fetch_range.topic_partition} at offset {position}"

    def out_of_range(
        self, position: int, existing: ExistingOffsets, truncated_at: int | None = None
    ) -> OffsetOutOfRangeError:
        """For offsets that the log does not have.

        `truncated_at` is the offset from which the log differs from what was read up to `position`.
        """
        partition = self.fetch_range.topic_partition
        reason = "Records were deleted (retention, DeleteRecords), or the topic was recreated."
        if truncated_at is not None:
            reason = (
                f"The log was truncated to offset {truncated_at} after it had been read up to "
                f"{position}, for example by an unclean leader election."
            )
        return OffsetOutOfRangeError(
            f"{partition} does not have the requested offsets {position} to "
            f"{self.fetch_range.end_offset} (exclusive): {existing}. {reason}",
            topic=partition.topic,
            partition=partition.partition,
            offset=position,
        )

    def no_leader(self, position: int, last: Exception | None = None) -> FetchTimeoutError:
        """For a partition without a leader; `last` is the error of the last try."""
        return self._timeout(
            position,
            f"{sentence(self.operation(position))} failed: no data arrived for "
            f"{self.timeout_s:g} s, and the partition has no leader that answers{_after(last)}.",
            advice=f"{LeaderNotAvailableError.remedy} {WAIT_LONGER}",
        )

    def no_data(
        self, position: int, existing: ExistingOffsets, last: Exception | None = None
    ) -> KafkaError:
        """For a partition with a leader that returned no data in time."""
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
                f"{end_offset}, but {existing}, and that has not changed for {self.timeout_s:g} s. "
                "With 'kafka.isolation.level' read_committed a fetch ends at the last stable "
                "offset, where the oldest open transaction begins.",
                advice="Wait until that transaction ends, end it with kafka-transactions.sh, or "
                "read with read_uncommitted.",
            )
        return self._timeout(
            position,
            f"{sentence(self.operation(position))} failed: no data arrived from "
            f"{self.bootstrap_servers} for {self.timeout_s:g} s, although the range ends at "
            f"{end_offset} and {existing}{_after(last)}.",
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
    return "" if last is None else f" (the last try failed: {reason_of(last)})"
