"""Reads JSON Web Key Sets from files and HTTP servers, and keeps them up to date.

HTTP requests run in a daemon thread, so a slow server blocks neither the event loop nor the exit of
the process. Invariant: only a valid key set replaces the current keys. Source:
`RefreshingHttpsJwks` and `JwksFileVerificationKeyResolver` in Apache Kafka.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Final, TypeVar
from urllib.parse import unquote, urlsplit

from broker_ref.io.tls import load_trust_store
from broker_ref.security.json_web_keys import InvalidKeySetError, JsonWebKey, parse_key_set
from broker_ref.security.settings import Store, TokenSettings
from broker_ref.security.signed_tokens import KeyCache

logger = logging.getLogger(__name__)

REQUEST_TIMEOUT_SECONDS: Final = 10.0
"""The maximum time for reading a key set."""

PAUSE_SECONDS: Final = 1.0
"""The minimum time between refreshes, even if many tokens have unknown key ids."""

RESPONSE_BYTES_MAX: Final = 1024 * 1024

_Result = TypeVar("_Result")


class JwksError(Exception):
    """The key set cannot be read."""


class JwksRefresher:
    """Keeps the keys of one endpoint up to date, within one event loop."""

    def __init__(self, settings: TokenSettings) -> None:
        self.keys: Final = KeyCache()
        self.keys.request_refresh = self._refresh_now
        self._settings = settings
        self._is_requested = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read the keys, and then refresh them periodically. Raises: JwksError."""
        self.keys.replace(await self._read())
        if urlsplit(self._settings.jwks_url).scheme != "file":
            self._task = asyncio.create_task(self._run())

    def stop(self) -> None:
        """Stop reading the keys."""
        if self._task is not None:
            self._task.cancel()

    def _refresh_now(self) -> None:
        self._is_requested.set()

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.refresh_ms / 1000):
                    await self._is_requested.wait()
            self._is_requested.clear()
            await self._refresh()
            await asyncio.sleep(PAUSE_SECONDS)

    async def _refresh(self) -> None:
        """Read the keys with retries. If all attempts fail, keep the old keys."""
        backoff_ms = self._settings.retry_backoff_ms
        waited_ms = 0
        while True:
            try:
                self.keys.replace(await self._read())
                return
            except JwksError as error:
                failure = error
            backoff_ms = min(backoff_ms, self._settings.retry_backoff_max_ms - waited_ms)
            if backoff_ms <= 0:
                logger.warning("%s. The broker continues to use the previous keys", failure)
                return
            await asyncio.sleep(backoff_ms / 1000)
            waited_ms += backoff_ms
            backoff_ms *= 2

    async def _read(self) -> tuple[JsonWebKey, ...]:
        url = self._settings.jwks_url
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_SECONDS):
                return await _in_thread(
                    lambda: parse_key_set(_content(url, self._settings.trust_store))
                )
        # The URL, the response and its keys can be invalid in many ways.
        except Exception as error:
            reason = str(error) or type(error).__name__
            if isinstance(error, TimeoutError):
                reason = f"the server did not respond within {REQUEST_TIMEOUT_SECONDS:g} s"
            raise JwksError(
                f"Cannot read the key set at {url} (sasl.oauthbearer.jwks.endpoint.url): {reason}"
            ) from error


class _SameScheme(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but not from HTTPS to HTTP."""

    def redirect_request(  # noqa: PLR0917 (the signature of the base class)
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any,
        newurl: str,
    ) -> urllib.request.Request | None:  # fmt: skip
        if urlsplit(newurl).scheme != urlsplit(req.full_url).scheme:
            raise urllib.error.HTTPError(newurl, code, "redirect to another scheme", headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _content(url: str, trust_store: Store | None) -> bytes:
    parts = urlsplit(url)
    if parts.scheme == "file":
        return Path(unquote(parts.path)).read_bytes()
    context = ssl.create_default_context()
    if trust_store is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        load_trust_store(context, trust_store)
    opener = urllib.request.build_opener(
        urllib.request.HTTPSHandler(context=context), _SameScheme()
    )
    try:
        with opener.open(url, timeout=REQUEST_TIMEOUT_SECONDS) as response:
            content: bytes = response.read(RESPONSE_BYTES_MAX + 1)
    except urllib.error.HTTPError as error:
        error.close()  # The error object is also the HTTP response.
        raise
    if len(content) > RESPONSE_BYTES_MAX:
        raise InvalidKeySetError(f"the response is larger than {RESPONSE_BYTES_MAX} bytes")
    return content


async def _in_thread(function: Callable[[], _Result]) -> _Result:
    """Run a function in a daemon thread."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[_Result] = loop.create_future()

    def finish(result: _Result | None, error: Exception | None) -> None:
        if future.done():  # The future was cancelled.
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, failure = None, None
        try:
            result = function()
        except Exception as error:
            failure = error
        with contextlib.suppress(RuntimeError):  # The loop is closed.
            loop.call_soon_threadsafe(finish, result, failure)

    threading.Thread(target=run, name="broker_ref.jwks", daemon=True).start()
    return await future
