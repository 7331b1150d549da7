"""Rules that decide the fate of requests in a proxy.

Purpose: match requests by header, and apply a fate to a number of them. Invariant: a rule applies
at most `times` times, in the order of requests; the first matching rule decides. What it must not
know: sockets, and request bodies.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from integration.raw import api_key

FIXED_HEADER_BYTES = 10
"""API key, version, correlation id and client id length: the same in all versions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestHeader:
    """The request header (RequestHeader v1 and v2)."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


Match = Callable[[RequestHeader], bool]


def parse_header(fixed: bytes, client_id: bytes) -> RequestHeader:
    """Parse the header from its first `FIXED_HEADER_BYTES` and the client id that follows."""
    key, version, correlation_id, length = struct.unpack(">hhih", fixed)
    return RequestHeader(
        api_key=key,
        api_version=version,
        correlation_id=correlation_id,
        client_id=None if length < 0 else client_id.decode(errors="replace"),
    )


def of_api(*names: str) -> Match:
    """Return a matcher for these APIs, by kio's names: `of_api("produce", "fetch")`."""
    keys = {api_key(name) for name in names}
    return lambda request: request.api_key in keys


class Fate(Enum):
    """The fate of a request."""

    GO_ON = "goes on"
    DROP = "its connection ends, and the broker never sees it"
    LOSE_ANSWER = "the broker serves it, and its connection ends in place of the answer"
    HOLD = "it waits, and all that follow on its connection, until the rule ends"


class Rule:
    """A fate for the next `times` matching requests (None: for all), after `delay_s`."""

    def __init__(self, match: Match, fate: Fate, *, times: int | None, delay_s: float = 0) -> None:
        self._match = match
        self.fate = fate
        self.delay_s = delay_s
        self._times = times
        self._hits = 0
        self._ended = False
        self._changed = threading.Condition()

    @property
    def hits(self) -> int:
        """The number of requests to which it was applied."""
        with self._changed:
            return self._hits

    @property
    def has_ended(self) -> bool:
        """Whether `end` was called."""
        with self._changed:
            return self._ended

    def strike(self, request: RequestHeader) -> bool:
        """Whether it applies to this request; count it if so."""
        with self._changed:
            if self._ended or (self._times is not None and self._hits >= self._times):
                return False
            if not self._match(request):
                return False
            self._hits += 1
            self._changed.notify_all()
            return True

    def await_hits(self, count: int = 1, *, timeout_s: float = 30.0) -> None:
        """Wait until it was applied so often. Raise `TimeoutError`."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._hits >= count, timeout_s):
                raise TimeoutError(
                    f"{self._hits} of {count} requests came within {timeout_s} s to the rule that "
                    f"a request {self.fate.value}"
                )

    def end(self) -> None:
        """End the rule and release the requests that it holds."""
        with self._changed:
            self._ended = True
