"""Regular expressions from clients, in RE2 syntax.

Compiles regular expressions and finds the topics that they match. RE2 has no lookarounds and no
backreferences, and matching takes time proportional to the length of the topic name, so no
expression can block the broker. Python's `re` has a different syntax and can take exponential time.
RE2 is an optional dependency, because most clusters do not use regular expressions. To install RE2,
use `broker-ref[regex]`. Invariant: an expression matches whole topic names. Source: Kafka's
`TopicRegexResolver`, which uses RE2/J, the implementation of RE2 in Java.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection
from functools import cache
from typing import Any, Final

from kio.schema.errors import ErrorCode

from broker_ref.controller.metadata import ClusterMetadata
from broker_ref.group.consumer.group import ResolvedRegularExpression
from broker_ref.protocol.errors import ApiError

MATCHES_PER_STEP: Final = 10_000
"""A step matches at most this many pairs of an expression and a topic (about 30 ms).

A step resolves at least one expression.
"""

IsVisible = Callable[[str], bool]
"""A function that returns whether the client may describe a topic."""


class Resolution:
    """Finds the topics that match regular expressions, in steps.

    Only topics that are visible to the client can match. As in Kafka, the ACLs are checked only for
    matching topics, once per topic. `resolved` contains the results of the completed steps.
    """

    def __init__(
        self,
        regexes: Collection[str],
        metadata: ClusterMetadata,
        is_visible: IsVisible,
        *,
        now_ms: int,
    ) -> None:
        self.resolved: dict[str, ResolvedRegularExpression] = {}
        self._pending = list(regexes)
        self._topics = list(metadata.topics)
        self._is_visible = cache(is_visible)
        self._version = metadata.end_offset
        self._now_ms = now_ms

    def step(self) -> bool:
        """Resolve the next expressions. Return whether all expressions are resolved."""
        count = max(1, MATCHES_PER_STEP // max(1, len(self._topics)))
        regexes, self._pending = self._pending[:count], self._pending[count:]
        for regex in regexes:
            self.resolved[regex] = ResolvedRegularExpression(
                topics=frozenset(filter(self._is_visible, _matching(regex, self._topics))),
                version=self._version,
                timestamp_ms=self._now_ms,
            )
        return not self._pending


def _matching(regex: str, topics: Collection[str]) -> list[str]:
    try:
        pattern = compile_regex(regex)
    except ApiError:  # Possible only if a broker with RE2 wrote the record.
        return []
    return [topic for topic in topics if pattern.fullmatch(topic)]


def compile_regex(regex: str) -> Any:
    """Compile a regular expression. Raises: ApiError (INVALID_REGULAR_EXPRESSION)."""
    try:
        re2 = importlib.import_module("re2")
    except ImportError:
        raise ApiError(
            ErrorCode.invalid_regular_expression,
            "This broker does not support regular expressions, because RE2 is not installed. "
            "Install it with: pip install 'broker-ref[regex]'",
        ) from None
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(regex, options)
    except re2.error as error:
        raise ApiError(
            ErrorCode.invalid_regular_expression,
            f"`{regex}` is not a valid regular expression: {error}.",
        ) from None
