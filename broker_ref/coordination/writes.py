"""What a coordinator writes to its partition, and when that is done.

Purpose: append records as the leader, and say when every in-sync replica has them, or that it takes
too long. Invariant: what is written is in the leader's log at once; writes are done in the order of
the log; each is told one outcome. What it must not know: what the records mean.
Source: Kafka's `CoordinatorRuntime`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.log.batch import encode_batch
from broker_ref.log.errors import LogError
from broker_ref.log.records import Record
from broker_ref.protocol.errors import ApiError
from broker_ref.replication.partition import Appended, Partition
from broker_ref.schedule import Schedule, Timer

_APPEND_ERRORS: Final = {
    ErrorCode.unknown_topic_or_partition: ErrorCode.coordinator_not_available,
    ErrorCode.not_enough_replicas: ErrorCode.coordinator_not_available,
    ErrorCode.not_leader_or_follower: ErrorCode.not_coordinator,
    ErrorCode.kafka_storage_error: ErrorCode.not_coordinator,
    ErrorCode.message_too_large: ErrorCode.unknown_server_error,
    ErrorCode.record_list_too_large: ErrorCode.unknown_server_error,
}
"""What a client is told in place of what the log says."""

Done = Callable[[ErrorCode, int], None]
"""Told of a write's outcome: its error code, and the time."""


class Write:
    """A batch in the leader's log, until every in-sync replica has it."""

    def __init__(self, appended: Appended | None) -> None:
        self.appended = appended
        self.timer: Timer | None = None
        self.on_replicated: Callable[[], None] | None = None
        self._outcome: ErrorCode | None = ErrorCode.none if appended is None else None
        self._done: list[Done] = []

    def when_done(self, done: Done, now_ms: int) -> None:
        """Have `done` called with the outcome, now where there is one."""
        if self._outcome is not None:
            done(self._outcome, now_ms)
        else:
            self._done.append(done)

    def finish(self, outcome: ErrorCode, now_ms: int) -> None:
        """Tell the outcome; the first one counts."""
        if self._outcome is not None:
            return
        self._outcome = outcome
        if self.timer is not None:
            self.timer.cancel()
        for done in self._done:
            done(outcome, now_ms)
        self._done.clear()


NOTHING_WRITTEN: Final = Write(None)
"""The write of nothing: done."""


class Writes:
    """The writes to one partition that this broker leads."""

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
        self._pending: deque[Write] = deque()

    def append(
        self,
        records: Sequence[Record],
        now_ms: int,
        *,
        on_append: Callable[[int], None] | None = None,
        on_replicated: Callable[[], None] | None = None,
    ) -> Write:
        """Append records as one batch, all or none of them; ApiError says why they are not.

        `on_append` is called at once with the offset behind the batch, `on_replicated` when every
        in-sync replica has it, which may be later than an outcome that says it took too long.
        """
        try:
            result = self._partition.append(
                encode_batch(list(records)), all_replicas=True, now_ms=now_ms
            )
        except (ApiError, LogError) as error:
            code = _APPEND_ERRORS.get(error.error_code, error.error_code)
            raise ApiError(code, str(error)) from error
        self._mark_changed()
        required_offset = result.last_offset + 1
        if on_append is not None:
            on_append(required_offset)
        write = Write(Appended(partition=self._partition, required_offset=required_offset))
        write.on_replicated = on_replicated
        self._pending.append(write)
        write.timer = self._schedule.at(
            now_ms + self._timeout_ms,
            lambda time_ms: write.finish(ErrorCode.coordinator_not_available, time_ms),
        )
        self.replicated(now_ms)
        return write

    def replicated(self, now_ms: int) -> None:
        """Finish the writes that every in-sync replica has."""
        while self._pending:
            write = self._pending[0]
            if write.appended is None or not write.appended.is_replicated:
                return
            self._pending.popleft()
            if write.on_replicated is not None:
                write.on_replicated()
            write.finish(ErrorCode.none, now_ms)

    def abandon(self, now_ms: int) -> None:
        """Fail the writes that are not done: another broker is to say what came of them."""
        while self._pending:
            self._pending.popleft().finish(ErrorCode.not_coordinator, now_ms)
