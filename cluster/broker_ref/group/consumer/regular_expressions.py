"""Regular expressions of clients, with the syntax of RE2.

Purpose: compile regular expressions and find the topics that they match. RE2 has no lookarounds and
no backreferences, and matching takes time proportional to the length of the topic name, so no
expression can block the broker. Python's `re` has another syntax and can take exponential time.
RE2 is an optional dependency, because most clusters do not use regular expressions. To install RE2,
use `broker-ref[regex]`. Invariant: an expression matches whole topic names. Source: Kafka's
`TopicRegexResolver`, which uses RE2/J, the implementation of RE2 in Java.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Iterable
from typing import Any

from kio.schema.errors import ErrorCode

from broker_ref.group.consumer.group import ResolvedRegularExpression
from broker_ref.protocol.errors import ApiError

IsVisible = Callable[[str], bool]
"""A function that returns whether the client may describe a topic."""


def resolve(
    regexes: Collection[str],
    topics: Iterable[str],
    is_visible: IsVisible,
    *,
    version: int,
    now_ms: int,
) -> dict[str, ResolvedRegularExpression]:
    """Return the visible topics that match each expression.

    `version` is the offset of the metadata that contains the topics.
    """
    visible = [topic for topic in topics if is_visible(topic)]
    resolved = {}
    for regex in regexes:
        try:
            pattern = compile_regex(regex)
        except ApiError:  # A broker with RE2 accepted the expression.
            matching: frozenset[str] = frozenset()
        else:
            matching = frozenset(topic for topic in visible if pattern.fullmatch(topic))
        resolved[regex] = ResolvedRegularExpression(
            topics=matching, version=version, timestamp_ms=now_ms
        )
    return resolved


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
