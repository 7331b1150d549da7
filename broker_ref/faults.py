"""Fault injection: rules that a test sets for the requests, links and clocks of a cluster.

Purpose: rules that decide what happens to a request, cut links, paused nodes, nodes with a stopped
clock, and a record of requests. The nodes of a cluster and the test, which runs in another thread,
share one `Faults`.

Invariants: while no rule is set, `is_active` is False and nodes do not evaluate requests. If
several rules match a request, the oldest rule decides, once: a delayed or held request is then
served without another evaluation. All methods are thread-safe.

Must not know: how nodes work, or clocks (time is an argument). The lock is its only I/O dependency,
because a test does not run in the cluster's thread.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Final, Self

from kio.schema.errors import ErrorCode

SEEN_MAX: Final = 10_000
"""Maximum number of recorded requests; older ones are discarded."""

_ENVELOPE: Final = 58


class Sender(Enum):
    """The senders that a rule matches."""

    ANY = "any"
    CLIENT = "client"
    NODE = "node"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestInfo:
    """The properties of a request that a rule can match, at the node that received it.

    `sender_id` is the broker that sent it, or None if a client sent it or the sender is unknown.
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
    """A recorded request and the time of its arrival."""

    at_ms: int
    request: RequestInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """The requests that a rule matches: all fields that are not None must be equal.

    The controller also receives a request that a broker forwards in an Envelope, so a rule matches
    the Envelope itself only if it names its API key.
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
    """Answer with this error code without serving the request."""

    error_code: ErrorCode


@dataclass(frozen=True, slots=True)
class LoseAnswer:
    """Serve the request and close the connection instead of sending the response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Hold the request until `rule.is_holding` is False, then serve it."""

    rule: Rule


FaultAction = Proceed | Delay | Drop | Refuse | LoseAnswer | Hold

PROCEED: Final = Proceed()


class Rule:
    """An action for matching requests and its counters; created by a method of `Faults`.

    As a context manager, it removes itself at the end of the block.
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
        """Return how many requests matched."""
        return self._hits

    @property
    def requests(self) -> tuple[RequestInfo, ...]:
        """Return the requests that matched, at most the last `SEEN_MAX`."""
        with self._changed:
            return tuple(self._requests)

    @property
    def is_holding(self) -> bool:
        """Return whether held requests still have to wait."""
        return self._is_holding

    def wait_for_hits(self, count: int = 1, *, timeout_s: float = 30.0) -> None:
        """Wait until `count` requests have matched. Raises: TimeoutError with the number so far."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.hits >= count, timeout_s):
                raise TimeoutError(
                    f"The rule for {self.match} matched {self.hits} of {count} requests within "
                    f"{timeout_s} s."
                )

    def remove(self) -> None:
        """Stop matching requests, and release held ones."""
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

    def decide(self, request: RequestInfo, now_ms: int) -> FaultAction | None:
        """Return the action, or None if the request does not match; `Faults` has the lock."""
        if self._times_left == 0 or not self.match.matches(request):
            return None
        if self._times_left is not None:
            self._times_left -= 1
        self._hits += 1
        self._requests.append(request)
        return self._action(self, now_ms)

    def release_held(self) -> None:
        """Release held requests. `Faults` holds the lock."""
        self._is_holding = False


class Faults:
    """The faults that are currently injected into a cluster."""

    def __init__(self) -> None:
        self.is_active = False
        """Whether a node has to call `on_request` at all."""
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
        """Serve matching requests `delay_ms` after they arrive. `times` None: without a limit."""
        return self._add(match, times, lambda _, now_ms: Delay(until_ms=now_ms + delay_ms))

    def drop(self, match: Match, *, times: int | None = None) -> Rule:
        """Close the connections of matching requests without serving them."""
        return self._add(match, times, lambda _rule, _now_ms: Drop())

    def refuse(self, error_code: ErrorCode, match: Match, *, times: int | None = None) -> Rule:
        """Answer matching requests with an error without serving them."""
        return self._add(match, times, lambda _rule, _now_ms: Refuse(error_code=error_code))

    def lose_answer(self, match: Match, *, times: int | None = None) -> Rule:
        """Serve matching requests and close the connection instead of sending the response."""
        return self._add(match, times, lambda _rule, _now_ms: LoseAnswer())

    def hold(self, match: Match, *, times: int | None = None) -> Rule:
        """Hold matching requests until the rule is removed, then serve them."""
        return self._add(match, times, lambda rule, _: Hold(rule=rule))

    def clear(self) -> None:
        """Remove all rules, heal all links, resume all nodes and clocks; keep the record."""
        for rule in self._rules:
            rule.remove()
        with self._changed:
            self._cut = frozenset()
            self._held_times.clear()
            self._paused = frozenset()
        self._notify()

    def cut(self, source_id: int, target_id: int, *, both_ways: bool = True) -> None:
        """Drop everything that a node sends to another, requests and responses.

        The controller is node 3000 (`broker_ref.controller.client.CONTROLLER_ID`).
        """
        with self._changed:
            self._cut |= _directions(source_id, target_id, both_ways)
        self._notify()

    def heal(self, source_id: int, target_id: int, *, both_ways: bool = True) -> None:
        """Undo `cut`."""
        with self._changed:
            self._cut -= _directions(source_id, target_id, both_ways)
        self._notify()

    def isolate(self, node_id: int, others: Collection[int]) -> None:
        """Cut the links of a node to and from all of `others`; `heal_all` reverts it."""
        for other in others:
            if other != node_id:
                self.cut(node_id, other)

    def heal_all(self) -> None:
        """Heal all links."""
        with self._changed:
            self._cut = frozenset()
        self._notify()

    def hold_time(self, node_id: int) -> None:
        """Stop a node's clock: its sessions, transactions and requests do not expire."""
        with self._changed:
            self._held_times.setdefault(node_id, None)

    def release_time(self, node_id: int) -> None:
        """Set a node's clock to the current time again."""
        with self._changed:
            self._held_times.pop(node_id, None)
        self._notify()

    def pause(self, node_id: int) -> None:
        """Pause a node: its connections stay open, and it neither reads, answers nor sends."""
        with self._changed:
            self._paused |= {node_id}

    def resume(self, node_id: int) -> None:
        """Resume a node; it first handles everything that arrived during the pause."""
        with self._changed:
            self._paused -= {node_id}
        self._notify()

    @contextmanager
    def recording(self) -> Iterator[Faults]:
        """Record requests within the block; discards an earlier record."""
        with self._changed:
            self._seen.clear()
            self._is_recording = True
            self._note_activity()
        try:
            yield self
        finally:
            with self._changed:
                self._is_recording = False
                self._note_activity()

    @property
    def seen(self) -> tuple[SeenRequest, ...]:
        """Return the recorded requests in order of arrival, at most the last `SEEN_MAX`."""
        with self._changed:
            return tuple(self._seen)

    def requests_seen(self, match: Match) -> tuple[RequestInfo, ...]:
        """Return the recorded requests that match."""
        return tuple(one.request for one in self.seen if match.matches(one.request))

    # Called by nodes.

    def on_request(self, request: RequestInfo, now_ms: int) -> FaultAction:
        """Return the action for a request. Call it once per request, while `is_active`."""
        with self._changed:
            if self._is_recording:
                self._seen.append(SeenRequest(at_ms=now_ms, request=request))
            for rule in self._rules:
                action = rule.decide(request, now_ms)
                if action is not None:
                    self._changed.notify_all()
                    return action
        return PROCEED

    def link_is_cut(self, source_id: int, target_id: int) -> bool:
        """Return whether messages from `source_id` to `target_id` are dropped."""
        return (source_id, target_id) in self._cut

    def now_ms(self, node_id: int, now_ms: int) -> int:
        """Return the time at a node; a stopped clock keeps the time of the first call."""
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
        """Return whether a node's clock is stopped, so that it has no deadlines."""
        return node_id in self._held_times

    def is_paused(self, node_id: int) -> bool:
        """Return whether a node is paused."""
        return node_id in self._paused

    def listen(self, on_change: Callable[[], None]) -> Callable[[], None]:
        """Call `on_change` when requests may have been released, in the thread that released them.

        Returns a function that removes the listener.
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
            raise ValueError(f"A rule for partition {match.partition} needs a topic.")
        rule = Rule(
            match=match,
            times=times,
            action=action,
            changed=self._changed,
            remove=self._remove,
        )
        with self._changed:
            self._rules += (rule,)
            self._note_activity()
        return rule

    def _remove(self, rule: Rule) -> None:
        with self._changed:
            self._rules = tuple(other for other in self._rules if other is not rule)
            rule.release_held()
            self._note_activity()
        self._notify()

    def _note_activity(self) -> None:
        self.is_active = bool(self._rules) or self._is_recording

    def _notify(self) -> None:
        """Notify the listeners. Called without the lock, because a listener may call `Faults`."""
        for listener in self._listeners:
            listener()


def _directions(source_id: int, target_id: int, both_ways: bool) -> frozenset[tuple[int, int]]:
    one_way = {(source_id, target_id)}
    return frozenset(one_way | {(target_id, source_id)} if both_ways else one_way)
