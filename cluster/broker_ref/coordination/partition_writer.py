"""Writes a coordinator's records to its partition.

The writer appends records to the leader's log, and reports when each write has been replicated or
has timed out. Invariants: records are appended immediately. Writes complete in log order. Each
write has exactly one outcome. Source: Kafka's `CoordinatorRuntime`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.log.append import AppendResult
from broker_ref.log.batch import encode_batch
from broker_ref.log.errors import LogError
from broker_ref.log.records import Record
from broker_ref.protocol.errors import ApiError
from broker_ref.replication.partition import Partition, PendingReplication
from broker_ref.schedule import Schedule, Timer

APPEND_ERRORS: Final = MappingProxyType(
    {
        ErrorCode.unknown_topic_or_partition: ErrorCode.coordinator_not_available,
        ErrorCode.not_enough_replicas: ErrorCode.coordinator_not_available,
        ErrorCode.not_leader_or_follower: ErrorCode.not_coordinator,
        ErrorCode.kafka_storage_error: ErrorCode.not_coordinator,
        ErrorCode.message_too_large: ErrorCode.unknown_server_error,
        ErrorCode.record_list_too_large: ErrorCode.unknown_server_error,
    }
)
"""The error code that clients receive for each error code from the log."""

OnAppend = Callable[[int], None]
"""A callback that receives the offset after the appended batch."""

Done = Callable[[ErrorCode, int], None]
"""A callback that receives the error code of a completed write and the current time."""


class PendingWrite:
    """A batch in the leader's log that is waiting to be replicated."""

    def __init__(self, appended: PendingReplication | None) -> None:
        self.appended = appended
        self.timer: Timer | None = None
        self.on_replicated: Callable[[], None] | None = None
        self._outcome: ErrorCode | None = ErrorCode.none if appended is None else None
        self._done: list[Done] = []

    def when_done(self, done: Done, now_ms: int) -> None:
        """Call `done` with the outcome as soon as the outcome is known."""
        if self._outcome is not None:
            done(self._outcome, now_ms)
        else:
            self._done.append(done)

    def finish(self, outcome: ErrorCode, now_ms: int) -> None:
        """Set the outcome if it is not yet set."""
        if self._outcome is not None:
            return
        self._outcome = outcome
        if self.timer is not None:
            self.timer.cancel()
        for done in self._done:
            done(outcome, now_ms)
        self._done.clear()


NOTHING_WRITTEN: Final = PendingWrite(None)
"""A write without records, which is already complete."""


class CoordinatorPartitionWriter:
    """Writes records to one partition. This broker must be the partition's leader."""

    def __init__(
        self,
        partition: Partition,
        *,
        schedule: Schedule,
        timeout_ms: int,
        mark_changed: Callable[[], None],
    ) -> None:
        self._partition = partition
        self._schedule = schedule
        self._timeout_ms = timeout_ms
        self._mark_changed = mark_changed
        self._pending: deque[PendingWrite] = deque()

    @property
    def last(self) -> PendingWrite:
        """The last pending write, or a completed write if no write is pending."""
        return self._pending[-1] if self._pending else NOTHING_WRITTEN

    def append(
        self,
        records: Sequence[Record],
        now_ms: int,
        *,
        on_append: OnAppend | None = None,
        on_replicated: Callable[[], None] | None = None,
        timeout_ms: int | None = None,
    ) -> PendingWrite:
        """Append records as one batch. See `append_with`."""
        batch = encode_batch(list(records))
        return self.append_with(
            lambda: self._partition.append(batch, all_replicas=True, now_ms=now_ms),
            now_ms,
            on_append=on_append,
            on_replicated=on_replicated,
            timeout_ms=timeout_ms,
        )

    def append_with(
        self,
        append: Callable[[], AppendResult],
        now_ms: int,
        *,
        on_append: OnAppend | None = None,
        on_replicated: Callable[[], None] | None = None,
        timeout_ms: int | None = None,
        errors: Mapping[ErrorCode, ErrorCode] = APPEND_ERRORS,
    ) -> PendingWrite:
        """Append a batch by calling `append`. Raises: ApiError.

        `on_append` is called immediately with the offset after the batch. `on_replicated` is called
        when the batch has been replicated, even if the write has already timed out. `timeout_ms`
        overrides the default timeout. `errors` maps error codes from the log to the error codes
        that clients receive.
        """
        try:
            result = append()
        except (ApiError, LogError) as error:
            code = errors.get(error.error_code, error.error_code)
            raise ApiError(code, str(error)) from error
        self._mark_changed()
        required_offset = result.last_offset + 1
        if on_append is not None:
            on_append(required_offset)
        return self.await_replication(
            required_offset, now_ms, on_replicated=on_replicated, timeout_ms=timeout_ms
        )

    def await_replication(
        self,
        required_offset: int,
        now_ms: int,
        *,
        on_replicated: Callable[[], None] | None = None,
        timeout_ms: int | None = None,
    ) -> PendingWrite:
        """Return a write that completes when all records below `required_offset` are replicated."""
        write = PendingWrite(
            PendingReplication(partition=self._partition, required_offset=required_offset)
        )
        write.on_replicated = on_replicated
        self._pending.append(write)
        write.timer = self._schedule.at(
            now_ms + (self._timeout_ms if timeout_ms is None else timeout_ms),
            lambda time_ms: write.finish(ErrorCode.coordinator_not_available, time_ms),
        )
        self.replicated(now_ms)
        return write

    def replicated(self, now_ms: int) -> None:
        """Complete all writes that have been replicated."""
        while self._pending:
            write = self._pending[0]
            if write.appended is None or not write.appended.is_replicated:
                return
            self._pending.popleft()
            if write.on_replicated is not None:
                write.on_replicated()
            write.finish(ErrorCode.none, now_ms)

    def abandon(self, now_ms: int) -> None:
        """Fail all pending writes with NOT_COORDINATOR.

        The new coordinator determines whether the writes were replicated.
        """
        while self._pending:
            self._pending.popleft().finish(ErrorCode.not_coordinator, now_ms)
