"""Fault injection: a test injects faults into the requests, links and clocks of a cluster.

A rule defines what a node does with matching requests. In addition, a test can cut links between
nodes, pause nodes, stop their clocks, and record requests. The nodes of a cluster and the test,
which runs in another thread, share one `Faults` object.

Invariants: if no rule is set and no requests are recorded, `is_active` is False and nodes do not
check requests for matching rules. If several rules match a request, the oldest rule is applied. A
request is checked only once: a delayed or held request is served later without another check. All
methods are thread-safe.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from enum import Enum
from types import TracebackType
from typing import Final, Self

from kio.schema.errors import ErrorCode

from broker_ref.frozen import dataclass

SEEN_MAX: Final = 10_000
"""The maximum number of recorded requests. Older requests are discarded."""

_ENVELOPE: Final = 58


class Sender(Enum):
    """The kinds of senders that a rule can match."""

    ANY = "any"
    CLIENT = "client"
    NODE = "node"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestInfo:
    """The properties of a received request that a rule can match.

    `node_id` is the node that received the request. `sender_id` is the broker that sent it, or None
    if the sender is a client or unknown.
    """

    node_id: int
    api_key: int
    version: int
    client_id: str | None
    sender_id: int | None = None
    is_between_nodes: bool = False
    topics: frozenset[str] = frozenset()
    partitions: frozenset[tuple[str, int]] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenRequest:
    """A recorded request and the time at which it arrived, in milliseconds."""

    at_ms: int
    request: RequestInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """The condition of a rule: the fields that are not None must match the request.

    The controller evaluates a forwarded request twice: first the Envelope, then the embedded
    request. A rule therefore matches an Envelope only if `api_keys` contains the API key of
    Envelope.
    """

    api_keys: frozenset[int] | None = None
    node_id: int | None = None
    sender: Sender = Sender.ANY
    sender_id: int | None = None
    client_id: str | None = None
    topic: str | None = None
    partition: int | None = None

    def matches(self, request: RequestInfo) -> bool:
        """Return whether a request matches."""
        return (
            (
                request.api_key != _ENVELOPE
                if self.api_keys is None
                else request.api_key in self.api_keys
            )
            and self.node_id in {None, request.node_id}
            and self.sender_id in {None, request.sender_id}
            and self.client_id in {None, request.client_id}
            and (
                self.sender is Sender.ANY
                or request.is_between_nodes == (self.sender is Sender.NODE)
            )
            and self._is_about(request)
        )

    def _is_about(self, request: RequestInfo) -> bool:
        if self.partition is not None:
            return (self.topic, self.partition) in request.partitions
        return self.topic is None or self.topic in request.topics


@dataclass(frozen=True, slots=True)
class Proceed:
    """Serve the request normally."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay:
    """Serve the request at `until_ms`."""

    until_ms: int


@dataclass(frozen=True, slots=True)
class Drop:
    """Close the connection without serving the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    """Respond with this error code without serving the request."""

    error_code: ErrorCode


@dataclass(frozen=True, slots=True)
class DropResponse:
    """Serve the request and close the connection instead of sending the response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Hold the request until `rule.is_holding` is False, then serve it."""

    rule: Rule


FaultAction = Proceed | Delay | Drop | Refuse | DropResponse | Hold

PROCEED: Final = Proceed()


class Rule:
    """The action for requests that match a condition, and counters for these requests.

    Rules are created by the methods of `Faults`. A rule that is used as a context manager is
    removed at the end of the `with` block.
    """

    def __init__(
        self,
        *,
        match: Match,
        times: int | None,
        action: Callable[[Rule, int], FaultAction],
        changed: threading.Condition,
        remove: Callable[[Rule], None],
    ) -> None:
        self.match = match
        self._action = action
        self._times_left = times
        self._changed = changed
        self._remove = remove
        self._hits = 0
        self._requests: deque[RequestInfo] = deque(maxlen=SEEN_MAX)
        self._is_holding = True

    @property
    def hits(self) -> int:
        """Return the number of requests that matched."""
        return self._hits

    @property
    def requests(self) -> tuple[RequestInfo, ...]:
        """Return the last `SEEN_MAX` requests that matched, oldest first."""
        with self._changed:
            return tuple(self._requests)

    @property
    def is_holding(self) -> bool:
        """Return whether held requests must still wait."""
        return self._is_holding

    def wait_for_hits(self, count: int = 1, *, timeout_s: float = 30.0) -> None:
        """Wait until `count` requests have matched.

        Raises: TimeoutError with the number of requests that have matched.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self.hits >= count, timeout_s):
                raise TimeoutError(
                    f"The fault rule for {self.match} matched only {self.hits} of the {count} "
                    f"expected requests within {timeout_s} s."
                )

    def remove(self) -> None:
        """Remove the rule and release the requests that it holds."""
        self._remove(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.remove()

    def action_for(self, request: RequestInfo, now_ms: int) -> FaultAction | None:
        """Return the action for a request, or None if the request does not match.

        The caller must hold the lock of `Faults`.
        """
        if self._times_left == 0 or not self.match.matches(request):
            return None
        if self._times_left is not None:
            self._times_left -= 1
        self._hits += 1
        self._requests.append(request)
        return self._action(self, now_ms)

    def release_held(self) -> None:
        """Release held requests. The caller must hold the lock of `Faults`."""
        self._is_holding = False


class Faults:
    """The faults that are currently injected into a cluster.

    Methods that create a rule have a `times` parameter, which limits the number of requests that
    the rule matches. None means no limit.
    """

    def __init__(self) -> None:
        self.is_active = False
        """Whether nodes must call `on_request` for each request."""
        self._changed = threading.Condition()
        self._rules: tuple[Rule, ...] = ()
        self._seen: deque[SeenRequest] = deque(maxlen=SEEN_MAX)
        self._is_recording = False
        self._cut: frozenset[tuple[int, int]] = frozenset()
        self._held_times: dict[int, int | None] = {}
        self._paused: frozenset[int] = frozenset()
        self._listeners: tuple[Callable[[], None], ...] = ()

    # Called by tests.

    def delay(self, delay_ms: int, match: Match, *, times: int | None = None) -> Rule:
        """Serve matching requests `delay_ms` milliseconds after they arrive."""
        return self._add(match, times, lambda _, now_ms: Delay(until_ms=now_ms + delay_ms))

    def drop(self, match: Match, *, times: int | None = None) -> Rule:
        """Close the connections of matching requests without serving them."""
        return self._add(match, times, lambda _rule, _now_ms: Drop())

    def refuse(self, error_code: ErrorCode, match: Match, *, times: int | None = None) -> Rule:
        """Respond to matching requests with an error code without serving them."""
        return self._add(match, times, lambda _rule, _now_ms: Refuse(error_code=error_code))

    def drop_response(self, match: Match, *, times: int | None = None) -> Rule:
        """Serve matching requests and close the connection instead of sending the response."""
        return self._add(match, times, lambda _rule, _now_ms: DropResponse())

    def hold(self, match: Match, *, times: int | None = None) -> Rule:
        """Hold matching requests until the rule is removed, then serve them."""
        return self._add(match, times, lambda rule, _: Hold(rule=rule))

    def clear(self) -> None:
        """Remove all rules, heal all links, and resume all nodes and clocks.

        Recorded requests are retained.
        """
        for rule in self._rules:
            rule.remove()
        with self._changed:
            self._cut = frozenset()
            self._held_times.clear()
            self._paused = frozenset()
        self._notify()

    def cut(self, source_id: int, target_id: int, *, both_ways: bool = True) -> None:
        """Drop all requests and responses that one node sends to another.

        With `both_ways`, messages in the opposite direction are also dropped. The node id of the
        controller is 3000 (`broker_ref.controller.client.CONTROLLER_ID`).
        """
        with self._changed:
            self._cut |= _directions(source_id, target_id, both_ways)
        self._notify()

    def heal(self, source_id: int, target_id: int, *, both_ways: bool = True) -> None:
        """Heal a link that was cut."""
        with self._changed:
            self._cut -= _directions(source_id, target_id, both_ways)
        self._notify()

    def isolate(self, node_id: int, others: Collection[int]) -> None:
        """Cut the links between a node and all `others` in both directions.

        `heal_all` restores the links.
        """
        for other in others:
            if other != node_id:
                self.cut(node_id, other)

    def heal_all(self) -> None:
        """Heal all links."""
        with self._changed:
            self._cut = frozenset()
        self._notify()

    def hold_time(self, node_id: int) -> None:
        """Stop a node's clock.

        While the clock is stopped, the node's sessions, transactions and requests do not expire.
        """
        with self._changed:
            self._held_times.setdefault(node_id, None)

    def release_time(self, node_id: int) -> None:
        """Restore a node's clock to the current time."""
        with self._changed:
            self._held_times.pop(node_id, None)
        self._notify()

    def pause(self, node_id: int) -> None:
        """Pause a node: its connections stay open, but it does not receive or send anything."""
        with self._changed:
            self._paused |= {node_id}

    def resume(self, node_id: int) -> None:
        """Resume a node, which then handles everything that arrived during the pause."""
        with self._changed:
            self._paused -= {node_id}
        self._notify()

    @contextmanager
    def recording(self) -> Iterator[Faults]:
        """Discard earlier recordings, and record requests while the `with` block runs."""
        with self._changed:
            self._seen.clear()
            self._is_recording = True
            self._update_is_active()
        try:
            yield self
        finally:
            with self._changed:
                self._is_recording = False
                self._update_is_active()

    @property
    def seen(self) -> tuple[SeenRequest, ...]:
        """Return the last `SEEN_MAX` recorded requests in order of arrival."""
        with self._changed:
            return tuple(self._seen)

    def requests_seen(self, match: Match) -> tuple[RequestInfo, ...]:
        """Return the recorded requests that match."""
        return tuple(one.request for one in self.seen if match.matches(one.request))

    # Called by nodes.

    def on_request(self, request: RequestInfo, now_ms: int) -> FaultAction:
        """Return the action for a request.

        Nodes call this method once per request while `is_active` is True.
        """
        with self._changed:
            if self._is_recording:
                self._seen.append(SeenRequest(at_ms=now_ms, request=request))
            for rule in self._rules:
                action = rule.action_for(request, now_ms)
                if action is not None:
                    self._changed.notify_all()
                    return action
        return PROCEED

    def link_is_cut(self, source_id: int, target_id: int) -> bool:
        """Return whether messages from `source_id` to `target_id` are dropped."""
        return (source_id, target_id) in self._cut

    def now_ms(self, node_id: int, now_ms: int) -> int:
        """Return the current time of a node's clock.

        If `hold_time` has stopped the clock, the first call returns the current time, and later
        calls return the same time until the clock is released.
        """
        if not self._held_times:
            return now_ms
        with self._changed:
            if node_id not in self._held_times:
                return now_ms
            held_ms = self._held_times[node_id]
            if held_ms is None:
                held_ms = self._held_times[node_id] = now_ms
            return held_ms

    def time_is_held(self, node_id: int) -> bool:
        """Return whether a node's clock is stopped. While it is stopped, no deadline expires."""
        return node_id in self._held_times

    def is_paused(self, node_id: int) -> bool:
        """Return whether a node is paused."""
        return node_id in self._paused

    def listen(self, on_change: Callable[[], None]) -> Callable[[], None]:
        """Register a callback that is called when held requests may be ready to be served.

        The callback runs in the thread that changes the faults. Return a function that removes the
        callback.
        """
        with self._changed:
            self._listeners += (on_change,)

        def stop() -> None:
            with self._changed:
                self._listeners = tuple(one for one in self._listeners if one is not on_change)

        return stop

    def _add(
        self, match: Match, times: int | None, action: Callable[[Rule, int], FaultAction]
    ) -> Rule:
        if match.partition is not None and match.topic is None:
            raise ValueError(
                f"A fault rule for partition {match.partition} requires a topic. Set `topic`."
            )
        rule = Rule(
            match=match,
            times=times,
            action=action,
            changed=self._changed,
            remove=self._remove,
        )
        with self._changed:
            self._rules += (rule,)
            self._update_is_active()
        return rule

    def _remove(self, rule: Rule) -> None:
        with self._changed:
            self._rules = tuple(other for other in self._rules if other is not rule)
            rule.release_held()
            self._update_is_active()
        self._notify()

    def _update_is_active(self) -> None:
        self.is_active = bool(self._rules) or self._is_recording

    def _notify(self) -> None:
        """Notify the listeners.

        The caller must not hold the lock, because a listener may call methods of `Faults`.
        """
        for listener in self._listeners:
            listener()


def _directions(source_id: int, target_id: int, both_ways: bool) -> frozenset[tuple[int, int]]:
    one_way = {(source_id, target_id)}
    return frozenset(one_way | {(target_id, source_id)} if both_ways else one_way)
