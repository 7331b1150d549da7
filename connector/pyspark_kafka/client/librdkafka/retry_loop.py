"""Retries requests until a broker responds or the timeout is reached.

Requests are retried while leaders or coordinators move and brokers restart. Invariant: every
request ends within its timeout, with a result or an error of `pyspark_kafka.errors`.

Each attempt has a short timeout. librdkafka sends a request to the broker that its metadata names,
and does not try another broker until the request times out. With a long timeout, one request to a
killed broker would use up the time for all attempts. Metadata is refreshed between two attempts.
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
"""The timeout grows by this factor with each attempt. By default, eight attempts are possible."""
_BACKOFF_S_MIN: Final = 0.02
_TIMEOUT_OPTION: Final = "kafka.default.api.timeout.ms"
_LOCAL_CODES_END: Final = -100
"""RD_KAFKA_RESP_ERR__END. Lower codes are librdkafka errors; higher codes are broker errors."""

_LEADERLESS: Final = frozenset(
    {
        Code._NOENT,  # librdkafka's code for a partition without a leader
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
"""Error codes for a partition while its leader moves."""
_COORDINATOR_MOVED: Final = frozenset(
    {
        Code._WAIT_COORD,
        Code.COORDINATOR_LOAD_IN_PROGRESS,
        Code.COORDINATOR_NOT_AVAILABLE,
        Code.NOT_CONTROLLER,
        Code.NOT_COORDINATOR,
    }
)
"""Error codes for requests while a group coordinator or the controller moves."""


class NoResponseError(Exception):
    """Raised when an attempt fails. Callers outside this package never receive it.

    `topic`, `partition` and `group_id` are those of the request.
    """

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
        """Return whether a later attempt may succeed.

        An error for an unknown topic or partition is retriable, because the metadata of a new topic
        takes some time to reach all brokers.
        """
        return self.error.code() in _LEADERLESS | _COORDINATOR_MOVED or error_class(self.error) in (
            BrokerUnreachableError,
            UnknownTopicOrPartitionError,
        )


@dataclass(slots=True, kw_only=True)
class RetryLoop:
    """Sends requests with one librdkafka handle. `events` is the `error_cb` of the handle."""

    handle: Any
    events: ErrorEvents
    settings: LibrdkafkaSettings
    _is_unreachable: bool = field(default=False)

    def retry(
        self,
        call: Callable[[float], T],
        *,
        timeout_s: float | None = None,
        check_existence: Callable[[float], None] | None = None,
    ) -> T:
        """Repeat `call(attempt_timeout_s)` while `call` raises `NoResponseError`.

        All attempts together take at most `timeout_s`, by default `kafka.default.api.timeout.ms`.
        librdkafka does not distinguish an unknown partition from an unknown leader. If the
        partition or its leader is still unknown after `fetchOffset.numRetries` attempts,
        `check_existence` is called with the remaining time in seconds, and may raise an error.
        An error that is not retriable is raised after the same number of attempts, except for
        `AccessError`, which is raised immediately. Raises `KafkaError`.
        """
        timeout_s = self.settings.api_timeout_s if timeout_s is None else timeout_s
        deadline = time.monotonic() + timeout_s
        try_s = _FIRST_TRY_S
        attempts = 0
        while True:
            self._clear_failures()
            try:
                return call(_bounded(try_s, deadline))
            except NoResponseError as no_response:
                failed = no_response
            attempts += 1
            LOG.warning(
                "%s failed (attempt %d): %s",
                sentence(failed.operation),
                attempts,
                failed.error.str(),
            )
            if not failed.is_retriable:
                self._raise_persistent(failed, attempts)
            elif check_existence is not None and self._should_check_existence(failed, attempts):
                check_existence(_bounded(timeout_s, deadline))
            self._back_off(deadline)
            if time.monotonic() >= deadline:
                raise self._timed_out(failed, timeout_s)
            self._refresh_metadata(failed.operation, _bounded(try_s, deadline))
            try_s *= _TRY_GROWTH

    def result(
        self,
        future: Future[T],
        operation: str,
        *,
        try_s: float,
        topic: str | None = None,
        partition: int | None = None,
    ) -> T:
        """Return the result of a future. Raises `NoResponseError` if it fails or times out.

        Raises `AccessError` as soon as a broker rejects the login.
        """
        deadline = time.monotonic() + try_s + _POLL_S
        while True:
            try:
                return future.result(timeout=_POLL_S)
            except FutureTimeoutError:
                self.raise_if_unauthorized(operation)
                if time.monotonic() >= deadline:
                    raise NoResponseError(
                        Code(Code._TIMED_OUT), operation, topic=topic, partition=partition
                    ) from None
            except KafkaException as error:
                self.raise_if_unauthorized(operation, code_of(error))
                raise NoResponseError(
                    code_of(error), operation, topic=topic, partition=partition
                ) from None

    def metadata(self, operation: str, *, try_s: float) -> Any:
        """Refresh librdkafka's metadata for all topics and brokers. Raises `NoResponseError`."""
        deadline = time.monotonic() + try_s
        while True:
            try:
                # The timeout is short so that a rejected login is detected early.
                found = self.handle.list_topics(timeout=_bounded(1.0, deadline))
            except KafkaException as error:
                self.raise_if_unauthorized(operation, code_of(error))
                if time.monotonic() >= deadline:
                    self._is_unreachable = True
                    raise NoResponseError(code_of(error), operation) from None
            else:
                self._is_unreachable = False
                return found

    def raise_if_unauthorized(self, operation: str, error: Code | None = None) -> None:
        """Raise `AccessError` if a login was rejected, unless `error` is a broker's response."""
        self.handle.poll(0)
        if error is None or error.code() < _LOCAL_CODES_END:
            self.events.raise_if_unauthorized(operation)

    def _clear_failures(self) -> None:
        """Clear errors from earlier requests, because the handle is reused."""
        self.handle.poll(0)
        self.events.clear()

    def _back_off(self, deadline: float) -> None:
        backoff_s = max(_BACKOFF_S_MIN, self.settings.fetch_offset_retry_interval_ms / 1000)
        time.sleep(max(0.0, min(backoff_s, deadline - time.monotonic())))

    def _refresh_metadata(self, operation: str, try_s: float) -> None:
        """Refresh metadata. If the refresh fails, the next attempt uses the cached metadata."""
        try:
            self.metadata(operation, try_s=try_s)
        except NoResponseError as no_response:
            LOG.warning(
                "%s: the metadata refresh failed: %s", sentence(operation), no_response.error.str()
            )

    def _should_check_existence(self, failed: NoResponseError, attempts: int) -> bool:
        if self._is_unreachable or attempts != self.settings.fetch_offset_num_retries:
            return False
        is_unknown = error_class(failed.error) is UnknownTopicOrPartitionError
        return is_unknown or failed.error.code() == Code._NOENT

    def _raise_persistent(self, failed: NoResponseError, attempts: int) -> None:
        error = translate(
            failed.error,
            operation=failed.operation,
            bootstrap_servers=self.settings.bootstrap_servers,
            topic=failed.topic,
            partition=failed.partition,
            group_id=failed.group_id,
        )
        if isinstance(error, AccessError) or (attempts >= self.settings.fetch_offset_num_retries):
            raise error

    def _timed_out(self, failed: NoResponseError, timeout_s: float) -> KafkaError:
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
        cause = f"no leader responded within {timeout_s:g} s ({reason})"
        if not is_leaderless:
            cause = f"no attempt succeeded within {timeout_s:g} s ({reason})"
        return kind(
            f"{sentence(failed.operation)} failed: {cause}.",
            advice=f"{kind.remedy} To wait longer, raise '{_TIMEOUT_OPTION}'.",
            topic=failed.topic,
            partition=failed.partition,
            group_id=failed.group_id,
        )


def _bounded(try_s: float, deadline: float) -> float:
    return max(_POLL_S, min(try_s, deadline - time.monotonic()))
