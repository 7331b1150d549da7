"""Retries requests until they are answered or time out.

Purpose: retry while leaders or coordinators move and brokers restart. Invariant: every request ends
within its timeout, with an answer or an error of `pyspark_kafka.errors`. What it must not know: the
requests.

Why short tries: librdkafka sends a request to the broker in its metadata and does not look for
another one until the request times out, so a killed broker would take the whole timeout. Metadata
is refreshed between two tries.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaError as Code
from confluent_kafka import KafkaException

from pyspark_kafka.client.librdkafka.errors import (
    LOG,
    ErrorEvents,
    code_of,
    describe,
    error_class,
    translate,
    unreachable,
)
from pyspark_kafka.client.librdkafka.settings import LibrdkafkaSettings
from pyspark_kafka.errors import (
    AccessError,
    BrokerUnreachableError,
    KafkaError,
    LeaderNotAvailableError,
    UnknownTopicOrPartitionError,
    sentence,
)

T = TypeVar("T")

_POLL_S: Final = 0.1
_FIRST_TRY_S: Final = 2.0
_TRY_GROWTH: Final = 1.5
"""Each try is longer, for slow clusters; the default timeout allows eight."""
_PAUSE_S_MIN: Final = 0.02
_TIMEOUT_OPTION: Final = "kafka.default.api.timeout.ms"
_LOCAL_CODES_END: Final = -100
"""RD_KAFKA_RESP_ERR__END: lower codes are librdkafka's own, the others a broker's."""

_LEADERLESS: Final = frozenset(
    {
        Code._NOENT,  # librdkafka's "no leader"
        Code.FENCED_LEADER_EPOCH,
        Code.KAFKA_STORAGE_ERROR,
        Code.LEADER_NOT_AVAILABLE,
        Code.LISTENER_NOT_FOUND,
        Code.NOT_LEADER_FOR_PARTITION,
        Code.OFFSET_NOT_AVAILABLE,
        Code.REPLICA_NOT_AVAILABLE,
        Code.UNKNOWN_LEADER_EPOCH,
    }
)
"""Error codes of a partition while its leader moves."""
_COORDINATOR_MOVED: Final = frozenset(
    {
        Code._WAIT_COORD,
        Code.COORDINATOR_LOAD_IN_PROGRESS,
        Code.COORDINATOR_NOT_AVAILABLE,
        Code.NOT_CONTROLLER,
        Code.NOT_COORDINATOR,
    }
)
"""Error codes while the coordinator of a group, or the controller, moves."""


class UnansweredError(Exception):
    """A try failed; never leaves this package. The fields name the object of the request."""

    def __init__(
        self,
        error: Code,
        operation: str,
        *,
        topic: str | None = None,
        partition: int | None = None,
        group_id: str | None = None,
    ) -> None:
        super().__init__(error, operation)
        self.error = error
        self.operation = operation
        self.topic = topic
        self.partition = partition
        self.group_id = group_id

    @property
    def is_retriable(self) -> bool:
        """Whether a later try may succeed.

        "Unknown" is retriable, since new topics take a moment to reach all brokers.
        """
        return self.error.code() in _LEADERLESS | _COORDINATOR_MOVED or error_class(self.error) in (
            BrokerUnreachableError,
            UnknownTopicOrPartitionError,
        )


@dataclass(slots=True, kw_only=True)
class RetryLoop:
    """The requests of one handle, admin or consumer; `events` is its `error_cb`."""

    handle: Any
    events: ErrorEvents
    settings: LibrdkafkaSettings
    _is_unreachable: bool = field(default=False)

    def retry(
        self,
        ask: Callable[[float], T],
        *,
        timeout_s: float | None = None,
        check_existence: Callable[[float], None] | None = None,
    ) -> T:
        """Call `ask(timeout of one try)` until it does not raise `UnansweredError`.

        All tries together take `timeout_s`, by default `kafka.default.api.timeout.ms`. After
        `fetchOffset.numRetries` tries without the partition or its leader (librdkafka does not
        distinguish these), `check_existence` is called with the seconds left; it may raise. An
        error that is not retriable is raised after as many tries. Raises `KafkaError`s.
        """
        timeout_s = self.settings.api_timeout_s if timeout_s is None else timeout_s
        deadline = time.monotonic() + timeout_s
        try_s = _FIRST_TRY_S
        tries = 0
        while True:
            self._forget_failures()
            try:
                return ask(_bounded(try_s, deadline))
            except UnansweredError as unanswered:
                failed = unanswered
            tries += 1
            LOG.warning(
                "%s failed, try %d: %s", sentence(failed.operation), tries, failed.error.str()
            )
            if not failed.is_retriable:
                self._raise_persistent(failed, tries)
            elif check_existence is not None and self._should_check_existence(failed, tries):
                check_existence(_bounded(timeout_s, deadline))
            self._pause(deadline)
            if time.monotonic() >= deadline:
                raise self._timed_out(failed, timeout_s)
            self._refresh_metadata(failed.operation, _bounded(try_s, deadline))
            try_s *= _TRY_GROWTH

    def answer(
        self,
        future: Future[T],
        operation: str,
        *,
        try_s: float,
        topic: str | None = None,
        partition: int | None = None,
    ) -> T:
        """Wait for a future, and detect a refused login early; raises `UnansweredError`."""
        deadline = time.monotonic() + try_s + _POLL_S
        while True:
            try:
                return future.result(timeout=_POLL_S)
            except FutureTimeoutError:
                self.raise_if_unauthorized(operation)
                if time.monotonic() >= deadline:
                    raise UnansweredError(
                        Code(Code._TIMED_OUT), operation, topic=topic, partition=partition
                    ) from None
            except KafkaException as error:
                self.raise_if_unauthorized(operation, code_of(error))
                raise UnansweredError(
                    code_of(error), operation, topic=topic, partition=partition
                ) from None

    def metadata(self, operation: str, *, try_s: float) -> Any:
        """Refresh librdkafka's metadata of all topics and brokers; raises `UnansweredError`."""
        deadline = time.monotonic() + try_s
        while True:
            try:
                # Short requests, so that a refused login is detected early.
                found = self.handle.list_topics(timeout=_bounded(1.0, deadline))
            except KafkaException as error:
                self.raise_if_unauthorized(operation, code_of(error))
                if time.monotonic() >= deadline:
                    self._is_unreachable = True
                    raise UnansweredError(code_of(error), operation) from None
            else:
                self._is_unreachable = False
                return found

    def raise_if_unauthorized(self, operation: str, error: Code | None = None) -> None:
        """Raise `AccessError` after a refused login, unless `error` is a broker's answer."""
        self.handle.poll(0)
        if error is None or error.code() < _LOCAL_CODES_END:
            self.events.raise_if_unauthorized(operation)

    def _forget_failures(self) -> None:
        """Forget earlier errors: the handle lives as long as a query."""
        self.handle.poll(0)
        self.events.forget()

    def _pause(self, deadline: float) -> None:
        pause_s = max(_PAUSE_S_MIN, self.settings.fetch_offset_retry_interval_ms / 1000)
        time.sleep(max(0.0, min(pause_s, deadline - time.monotonic())))

    def _refresh_metadata(self, operation: str, try_s: float) -> None:
        """Refresh metadata; if that fails, the next try uses the old metadata."""
        try:
            self.metadata(operation, try_s=try_s)
        except UnansweredError as unanswered:
            LOG.warning(
                "%s: refreshing metadata failed: %s", sentence(operation), unanswered.error.str()
            )

    def _should_check_existence(self, failed: UnansweredError, tries: int) -> bool:
        if self._is_unreachable or tries != self.settings.fetch_offset_num_retries:
            return False
        is_unknown = error_class(failed.error) is UnknownTopicOrPartitionError
        return is_unknown or failed.error.code() == Code._NOENT

    def _raise_persistent(self, failed: UnansweredError, tries: int) -> None:
        error = translate(
            failed.error,
            operation=failed.operation,
            bootstrap_servers=self.settings.bootstrap_servers,
            topic=failed.topic,
            partition=failed.partition,
            group_id=failed.group_id,
        )
        if isinstance(error, AccessError) or (tries >= self.settings.fetch_offset_num_retries):
            raise error

    def _timed_out(self, failed: UnansweredError, timeout_s: float) -> KafkaError:
        reason = describe(failed.error)
        if self._is_unreachable or error_class(failed.error) is BrokerUnreachableError:
            return unreachable(
                failed.operation,
                bootstrap_servers=self.settings.bootstrap_servers,
                timeout_s=timeout_s,
                reason=self.events.unreachable() or reason,
                option=_TIMEOUT_OPTION,
                topic=failed.topic,
                partition=failed.partition,
                group_id=failed.group_id,
            )
        is_leaderless = failed.error.code() in _LEADERLESS
        kind = LeaderNotAvailableError if is_leaderless else error_class(failed.error)
        cause = f"no leader answered within {timeout_s:g} s ({reason})"
        if not is_leaderless:
            cause = f"every answer within {timeout_s:g} s was {reason}"
        return kind(
            f"{sentence(failed.operation)} failed: {cause}.",
            advice=f"{kind.remedy} To wait longer, raise '{_TIMEOUT_OPTION}'.",
            topic=failed.topic,
            partition=failed.partition,
            group_id=failed.group_id,
        )


def _bounded(try_s: float, deadline: float) -> float:
    return max(_POLL_S, min(try_s, deadline - time.monotonic()))
