"""One question to the cluster, asked until it is answered or its time is over.

Purpose: what a cluster says while it moves leaders and coordinators is no answer, and a broker that
has died gives none: the question is asked again, of whoever is named by then. Invariant: every
question ends within its timeout, with an answer or an error of `pyspark_kafka.errors`. What it
must not know: what is asked.

Why in short tries. librdkafka sends a question to the broker that its metadata names, keeps to it
for as long as the request may take, and does not look for another one meanwhile. A killed broker
would so take all of the time. Between two tries the metadata is asked for anew.
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
)

T = TypeVar("T")

_POLL_S: Final = 0.1
_FIRST_TRY_S: Final = 2.0
_TRY_GROWTH: Final = 1.5
"""A slow cluster gets longer and longer tries; the default timeout has eight of them."""
_PAUSE_S_MIN: Final = 0.02
_TIMEOUT_OPTION: Final = "kafka.default.api.timeout.ms"
_LOCAL_CODES_END: Final = -100
"""RD_KAFKA_RESP_ERR__END: codes below are librdkafka's own, the others a broker's answer."""

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
"""What is said of a partition while its leader moves."""
_ELSEWHERE: Final = frozenset(
    {
        Code._WAIT_COORD,
        Code.COORDINATOR_LOAD_IN_PROGRESS,
        Code.COORDINATOR_NOT_AVAILABLE,
        Code.NOT_CONTROLLER,
        Code.NOT_COORDINATOR,
    }
)
"""What is said while another broker takes over a group, or the cluster."""


class UnansweredError(Exception):
    """One try that brought no answer; never leaves this package."""

    def __init__(self, error: Code, doing: str) -> None:
        super().__init__(error, doing)
        self.error = error
        self.doing = doing

    @property
    def may_pass(self) -> bool:
        """Whether the same question may be answered in a while.

        A broker that says "unknown" may not have heard yet of what is new.
        """
        return self.error.code() in _LEADERLESS | _ELSEWHERE or error_class(self.error) in (
            BrokerUnreachableError,
            UnknownTopicOrPartitionError,
        )


@dataclass(slots=True, kw_only=True)
class RetryLoop:
    """The questions of one handle, admin or consumer; `events` is its `error_cb`."""

    handle: Any
    events: ErrorEvents
    settings: LibrdkafkaSettings
    _is_unreachable: bool = field(default=False)

    def until_answered(
        self,
        ask: Callable[[float], T],
        *,
        timeout_s: float | None = None,
        check_existence: Callable[[float], None] | None = None,
    ) -> T:
        """Call `ask` with the seconds it may take until it does not raise `UnansweredError`.

        All tries take `timeout_s`, or `kafka.default.api.timeout.ms`, together. When
        `fetchOffset.numRetries` tries have found no such partition, or no leader of it (librdkafka
        says the same of both), `check_existence` is called with the seconds left, and raises where
        it knows better than to go on. An error that does not pass by itself is raised after as
        many tries. Raises `KafkaError`s.
        """
        timeout_s = self.settings.api_timeout_s if timeout_s is None else timeout_s
        deadline = time.monotonic() + timeout_s
        try_s = _FIRST_TRY_S
        tries = 0
        while True:
            self._forget_trouble()
            try:
                return ask(_bounded(try_s, deadline))
            except UnansweredError as unanswered:
                failed = unanswered
            tries += 1
            LOG.warning("try %d: %s: %s", tries, failed.doing, failed.error.str())
            if not failed.may_pass:
                self._raise_lasting(failed, tries)
            elif check_existence is not None and self._ask_existence(failed, tries):
                check_existence(_bounded(timeout_s, deadline))
            self._pause(deadline)
            if time.monotonic() >= deadline:
                raise self._out_of_time(failed, timeout_s)
            self._look_around(failed.doing, _bounded(try_s, deadline))
            try_s *= _TRY_GROWTH

    def answer(self, future: Future[T], doing: str, *, try_s: float) -> T:
        """Wait for librdkafka, noticing a refused login early; raises `UnansweredError`."""
        deadline = time.monotonic() + try_s + _POLL_S
        while True:
            try:
                return future.result(timeout=_POLL_S)
            except FutureTimeoutError:
                self.raise_if_refused(doing)
                if time.monotonic() >= deadline:
                    raise UnansweredError(Code(Code._TIMED_OUT), doing) from None
            except KafkaException as error:
                self.raise_if_refused(doing, code_of(error))
                raise UnansweredError(code_of(error), doing) from None

    def metadata(self, doing: str, *, try_s: float) -> Any:
        """All topics and brokers, which librdkafka then goes by; raises `UnansweredError`."""
        deadline = time.monotonic() + try_s
        while True:
            try:
                # Asked in slices, so that a refused login is noticed at once.
                found = self.handle.list_topics(timeout=_bounded(1.0, deadline))
            except KafkaException as error:
                self.raise_if_refused(doing, code_of(error))
                if time.monotonic() >= deadline:
                    self._is_unreachable = True
                    raise UnansweredError(code_of(error), doing) from None
            else:
                self._is_unreachable = False
                return found

    def raise_if_refused(self, doing: str, error: Code | None = None) -> None:
        """Where an `error` is a broker's own answer, that answer counts and no other one's."""
        self.handle.poll(0)
        if error is None or error.code() < _LOCAL_CODES_END:
            self.events.raise_if_refused(doing)

    def _forget_trouble(self) -> None:
        """Before every try: this handle lives as long as a query, and refusals pass."""
        self.handle.poll(0)
        self.events.forget()

    def _pause(self, deadline: float) -> None:
        pause_s = max(_PAUSE_S_MIN, self.settings.fetch_offset_retry_interval_ms / 1000)
        time.sleep(max(0.0, min(pause_s, deadline - time.monotonic())))

    def _look_around(self, doing: str, try_s: float) -> None:
        """Learn who leads what by now; failing that, the next try goes by what was known."""
        try:
            self.metadata(doing, try_s=try_s)
        except UnansweredError as unanswered:
            LOG.warning("%s: no metadata: %s", doing, unanswered.error.str())

    def _ask_existence(self, failed: UnansweredError, tries: int) -> bool:
        if self._is_unreachable or tries != self.settings.fetch_offset_num_retries:
            return False
        is_unknown = error_class(failed.error) is UnknownTopicOrPartitionError
        return is_unknown or failed.error.code() == Code._NOENT

    def _raise_lasting(self, failed: UnansweredError, tries: int) -> None:
        error = translate(
            failed.error, doing=failed.doing, bootstrap_servers=self.settings.bootstrap_servers
        )
        if isinstance(error, AccessError) or (tries >= self.settings.fetch_offset_num_retries):
            raise error

    def _out_of_time(self, failed: UnansweredError, waited_s: float) -> KafkaError:
        code, said = failed.error.code(), f"{failed.error.str()} ({failed.error.name()})"
        if self._is_unreachable or error_class(failed.error) is BrokerUnreachableError:
            return unreachable(
                failed.doing,
                bootstrap_servers=self.settings.bootstrap_servers,
                waited_s=waited_s,
                reason=self.events.unreachable() or said,
                option=_TIMEOUT_OPTION,
            )
        if code in _LEADERLESS:
            return LeaderNotAvailableError(
                f"{failed.doing} failed: no leader answered for it within {waited_s:g} s ({said}); "
                "start a broker that has an in-sync replica of it, or raise "
                f"'{_TIMEOUT_OPTION}' to wait longer"
            )
        kind = error_class(failed.error)
        return kind(
            f"{failed.doing} failed: {said} was all the answer within {waited_s:g} s; see the "
            f"brokers' logs, or raise '{_TIMEOUT_OPTION}' to wait longer"
        )


def _bounded(try_s: float, deadline: float) -> float:
    return max(_POLL_S, min(try_s, deadline - time.monotonic()))
