"""Caches tokens until they must be refreshed, and converts failures to `AuthenticationError`.

Invariant: no error and no `repr` contains a token or the text of a provider's exception, which may
contain a secret.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final

from pyspark_kafka.errors import AuthenticationError, PysparkKafkaError
from pyspark_kafka.tokens import Token
from pyspark_kafka.wire.sasl import check_extensions, is_bearer_token

_REFRESH_AFTER: Final = 0.8
_TIMEOUT_S: Final = 12.0
_REFRESH_WAIT_S: Final = 1.0
"""How long a caller waits for a new token if the old one is still valid."""
_REFRESH_BACKOFF_S: Final = 10.0
_LIFE_S_MAX: Final = 10 * 366 * 86_400.0
"""The maximum lifetime of a token.

A later expiry is probably in milliseconds instead of seconds. Such a token would never be
refreshed.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedTokens:
    """The tokens of one source. Each process requests its own tokens.

    `request` is a function that returns a new token. The function must be hashable, because equal
    functions share their tokens. `option` names the source in errors. `name` is the principal until
    a token with a principal is available.
    """

    request: Callable[[], Token]
    option: str
    name: str

    @property
    def principal(self) -> str:
        known = _tokens.get(self.request)
        return (known and known.principal) or self.name

    def token(self) -> Token:
        """Return a valid token. Raises `AuthenticationError`.

        Waits up to `_TIMEOUT_S`, or `_REFRESH_WAIT_S` if the old token is still valid. If the wait
        times out, the next caller uses the result of the same request.
        """
        with _lock:
            known = _tokens.setdefault(self.request, _Known())
            valid = known.valid_token()
            if valid is not None and time.time() < known.refresh_at:
                return valid
            running = known.running = known.running or _RunningRequest(self.request)
        try:
            token = self._checked(running.result(_TIMEOUT_S if valid is None else _REFRESH_WAIT_S))
        except Exception as error:
            with _lock:
                known.fail(running)
            if valid is not None:
                return valid
            if isinstance(error, PysparkKafkaError):
                raise
            is_late = isinstance(error, TimeoutError) and not running.is_complete
            reason = f"no token within {_TIMEOUT_S:.3g} s" if is_late else type(error).__name__
            raise self._failed(reason) from None
        with _lock:
            known.succeed(running, token)
        return token

    def discard(self, token: Token) -> None:
        """Discard a token that a broker rejected. The next call to `token` requests a new one."""
        with _lock:
            known = _tokens.get(self.request)
            if known is not None and known.token == token:
                known.token = None

    def _checked(self, token: object) -> Token:
        for is_valid, problem in _CHECKS:
            if not is_valid(token):
                raise self._failed(f"the token is invalid: {problem}")
        assert isinstance(token, Token)
        return token

    def _failed(self, reason: str) -> AuthenticationError:
        return AuthenticationError(
            f"No token could be obtained from {self.name!r} ({reason}).",
            advice=f"Check '{self.option}' and the settings of the provider. To see its error, "
            "call the provider in Python on this machine.",
            option=self.option,
        )


class _RunningRequest:
    """A call to a provider, which runs in its own thread.

    The call needs its own thread, because the provider's library may block for longer than a query
    should wait. All callers that need the token wait for the same call.
    """

    def __init__(self, request: Callable[[], Token]) -> None:
        self._ends_at = time.monotonic() + _TIMEOUT_S
        self._future: Future[object] = Future()
        threading.Thread(
            target=self._run, args=(request,), name="token provider", daemon=True
        ).start()

    @property
    def is_complete(self) -> bool:
        return self._future.done()

    @property
    def is_over(self) -> bool:
        return self.is_complete or time.monotonic() >= self._ends_at

    def result(self, timeout_s: float) -> object:
        """Return the provider's result.

        Raises the provider's exception, or `TimeoutError`.
        """
        left_s = max(0.0, self._ends_at - time.monotonic())
        return self._future.result(min(timeout_s, left_s))

    def _run(self, request: Callable[[], Token]) -> None:
        try:
            result = request()
        except Exception as error:
            self._future.set_exception(error)
        else:
            self._future.set_result(result)


@dataclass(slots=True)
class _Known:
    """The last token from a token source, and the pending request for the next token."""

    token: Token | None = None
    principal: str = ""
    refresh_at: float = 0.0
    running: _RunningRequest | None = None

    def valid_token(self) -> Token | None:
        is_valid = self.token is not None and time.time() < self.token.expires_at
        return self.token if is_valid else None

    def succeed(self, running: _RunningRequest, token: Token) -> None:
        if self.running is running:
            now = time.time()
            self.running, self.token, self.principal = None, token, token.principal
            self.refresh_at = now + (token.expires_at - now) * _REFRESH_AFTER

    def fail(self, running: _RunningRequest) -> None:
        """Continue to use the old token after a failed request or a timeout.

        The next request, or the next wait for the running request, starts after a backoff.
        """
        if self.running is running and running.is_over:
            self.running = None
        if self.token is not None:
            now = time.time()
            left_s = self.token.expires_at - now
            self.refresh_at = now + min(_REFRESH_BACKOFF_S, left_s / 2)


_tokens: dict[Callable[[], Token], _Known] = {}
_lock = threading.Lock()
"""Guards `_tokens`. The lock is never held while a provider is called."""


_CHECKS: Final[Sequence[tuple[Callable[[Any], bool], str]]] = (
    (lambda token: isinstance(token, Token), "it is not a pyspark_kafka.tokens.Token"),
    (
        lambda token: isinstance(token.value, str) and is_bearer_token(token.value),
        "the value is not a string, or contains characters that a bearer token cannot contain",
    ),
    (lambda token: isinstance(token.principal, str), "the principal is not a string"),
    (
        lambda token: isinstance(token.expires_at, int | float) and math.isfinite(token.expires_at),
        "'expires_at' is not a number of seconds since the epoch",
    ),
    (lambda token: token.expires_at > time.time(), "it has expired"),
    (
        lambda token: token.expires_at < time.time() + _LIFE_S_MAX,
        "'expires_at' is more than ten years from now. It must be in seconds, not in milliseconds",
    ),
    (
        lambda token: (
            isinstance(token.extensions, Mapping)
            and all(isinstance(text, str) for pair in token.extensions.items() for text in pair)
            and check_extensions(token.extensions) is None
        ),
        "an extension has a name or a value that OAUTHBEARER cannot send",
    ),
)
"""The checks for a provider's token, each with the problem to report if the check fails."""
