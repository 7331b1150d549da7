"""Rules for requests that pass through a proxy.

A rule matches requests by their headers and applies an action to all or a limited number of them.
Invariant: only the first matching rule applies to a request. A rule applies at most `times` times,
in the order of the requests.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from integration.raw import api_key

FIXED_HEADER_BYTES = 10
"""The total size of the API key, the version, the correlation id and the client id length.

The size is the same in all versions.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestHeader:
    """The header of a request (RequestHeader v1 and v2)."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


Match = Callable[[RequestHeader], bool]


def parse_header(fixed: bytes, client_id: bytes) -> RequestHeader:
    """Parse a header from its first `FIXED_HEADER_BYTES` bytes and the client id that follows."""
    key, version, correlation_id, length = struct.unpack(">hhih", fixed)
    return RequestHeader(
        api_key=key,
        api_version=version,
        correlation_id=correlation_id,
        client_id=None if length < 0 else client_id.decode(errors="replace"),
    )


def of_api(*names: str) -> Match:
    """Return a matcher for requests of APIs with these kio names: `of_api("produce", "fetch")`."""
    keys = {api_key(name) for name in names}
    return lambda request: request.api_key in keys


class RuleAction(Enum):
    """The action of a rule on a request that it matches."""

    FORWARD = "forward the request"
    DROP = "close the connection instead of forwarding the request"
    DROP_RESPONSE = "forward the request and close the connection instead of returning the response"
    HOLD = "hold the request and all later requests of the connection until the rule ends"


class Rule:
    """A rule that applies an action to the next `times` matching requests, after `delay_s` seconds.

    If `times` is None, the action is applied to all matching requests.
    """

    def __init__(
        self, match: Match, action: RuleAction, *, times: int | None, delay_s: float = 0
    ) -> None:
        self._match = match
        self.action = action
        self.delay_s = delay_s
        self._times = times
        self._hits = 0
        self._ended = False
        self._changed = threading.Condition()

    @property
    def hits(self) -> int:
        """The number of requests to which the rule was applied."""
        with self._changed:
            return self._hits

    @property
    def has_ended(self) -> bool:
        """Whether `end` was called."""
        with self._changed:
            return self._ended

    def match_and_count(self, request: RequestHeader) -> bool:
        """Return whether the rule applies to this request. If it applies, count the request."""
        with self._changed:
            if self._ended or (self._times is not None and self._hits >= self._times):
                return False
            if not self._match(request):
                return False
            self._hits += 1
            self._changed.notify_all()
            return True

    def await_hits(self, count: int = 1, *, timeout_s: float = 30.0) -> None:
        """Wait until the rule has been applied to `count` requests.

        Raises `TimeoutError` after `timeout_s` seconds.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._hits >= count, timeout_s):
                raise TimeoutError(
                    f"the rule '{self.action.value}' was applied to {self._hits} requests "
                    f"within {timeout_s} s instead of {count}"
                )

    def end(self) -> None:
        """End the rule and release the requests that it holds."""
        with self._changed:
            self._ended = True
