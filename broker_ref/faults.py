"""Faults on demand: what a test may do to the requests, links and time of a cluster.

Purpose: rules that say of a request what is to become of it, links that are cut, nodes that stand
still or whose time does, and a record of the requests seen. One `Faults` is shared by all nodes of
a cluster, which ask it, and by a test, which sets it, from a thread of its own.

Invariants: while nothing is set, `is_active` is False and a node asks nothing more. Of the rules
that apply to a request the one set first decides, alone, and only once: a request that was delayed
or held is served as if there were no rules. Every method may be called from any thread.

What it must not know: how nodes work, and clocks (time is an argument). The lock is all that it
has of the world outside, since a test does not run in the cluster's thread.
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
"""Requests that the record keeps: the latest."""

_ENVELOPE: Final = 58


class Sender(Enum):
    """Whose requests a rule is for."""

    ANY = "any"
    CLIENT = "client"
    NODE = "node"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestInfo:
    """What a rule can go by: a request at the node where it has arrived.

    `sender_id` is the broker that it comes from, None where that is a client or does not say.
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
    """A line of the record: what came when."""

    at_ms: int
    request: RequestInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """Which requests a rule is for: those that agree with everything that is not None.

    What a broker forwards in an Envelope is a request at the controller too, so the Envelope is
    met only by rules that name its key.
    """

    api_keys: frozenset[int] | None = None
    node_id: int | None = None
    sender: Sender = Sender.ANY
    sender_id: int | None = None
    client_id: str | None = None
    topic: str | None = None
    partition: int | None = None

    def matches(self, request: RequestInfo) -> bool:
        """Whether a request is one of these."""
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
    """Serve it as ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay:
    """Serve it at `until_ms`."""

    until_ms: int


@dataclass(frozen=True, slots=True)
class Drop:
    """Close its connection and do not serve it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    """Answer it with this code and do not serve it."""

    error_code: ErrorCode


@dataclass(frozen=True, slots=True)
class LoseAnswer:
    """Serve it, and close its connection where the answer would be sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Keep it until `rule.is_holding` is False, then serve it."""

    rule: Rule


FaultAction = Proceed | Delay | Drop | Refuse | LoseAnswer | Hold

PROCEED: Final = Proceed()


class Rule:
    """What is done to some requests, and how often that has been; made by a method of `Faults`.

    As a context manager it is removed at the end of the block.
    """

    def __init__(
        self,
        *,
        match: Match,
        times: int | None,
        verdict: Callable[[Rule, int], FaultAction],
        changed: threading.Condition,
        remove: Callable[[Rule], None],
    ) -> None:
        self.match = match
        self._verdict = verdict
        self._times_left = times
        self._changed = changed
        self._remove = remove
        self._hits = 0
        self._requests: deque[RequestInfo] = deque(maxlen=SEEN_MAX)
        self._is_holding = True

    @property
    def hits(self) -> int:
        """How many requests it has decided on."""
        return self._hits

    @property
    def requests(self) -> tuple[RequestInfo, ...]:
        """The requests that it has decided on: the last `SEEN_MAX`."""
        with self._changed:
            return tuple(self._requests)

    @property
    def is_holding(self) -> bool:
        """Whether the requests that it holds are still to wait."""
        return self._is_holding

    def wait_for_hits(self, count: int = 1, *, timeout_s: float = 30.0) -> None:
        """Return once it has decided on `count` requests; TimeoutError says how many there were."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.hits >= count, timeout_s):
                raise TimeoutError(
                    f"the rule for {self.match} has met {self.hits} requests of {count} within "
                    f"{timeout_s} s"
                )

    def remove(self) -> None:
        """Let later requests be, and release those that are held."""
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
        """For `Faults`, which has the lock: the verdict, or None where this rule has none."""
        if self._times_left == 0 or not self.match.matches(request):
            return None
        if self._times_left is not None:
            self._times_left -= 1
        self._hits += 1
        self._requests.append(request)
        return self._verdict(self, now_ms)

    def let_go(self) -> None:
        """For `Faults`, which has the lock."""
        self._is_holding = False


class Faults:
    """What is wrong with a cluster at present, on purpose."""

    def __init__(self) -> None:
        self.is_active = False
        """Whether a node has to ask about requests at all."""
        self._changed = threading.Condition()
        self._rules: tuple[Rule, ...] = ()
        self._seen: deque[SeenRequest] = deque(maxlen=SEEN_MAX)
        self._is_recording = False
        self._cut: frozenset[tuple[int, int]] = frozenset()
        self._held_times: dict[int, int | None] = {}
        self._paused: frozenset[int] = frozenset()
        self._listeners: tuple[Callable[[], None], ...] = ()

    # What a test sets.

    def delay(self, delay_ms: int, match: Match, *, times: int | None = None) -> Rule:
        """Serve these requests `delay_ms` after they have come; `times` None: always."""
        return self._add(match, times, lambda _, now_ms: Delay(until_ms=now_ms + delay_ms))

    def drop(self, match: Match, *, times: int | None = None) -> Rule:
        """Close the connection of these requests and do not serve them."""
        return self._add(match, times, lambda _rule, _now_ms: Drop())

    def refuse(self, error_code: ErrorCode, match: Match, *, times: int | None = None) -> Rule:
        """Answer these requests with an error and do not serve them."""
        return self._add(match, times, lambda _rule, _now_ms: Refuse(error_code=error_code))

    def lose_answer(self, match: Match, *, times: int | None = None) -> Rule:
        """Serve these requests, and close the connection in place of answering."""
        return self._add(match, times, lambda _rule, _now_ms: LoseAnswer())

    def hold(self, match: Match, *, times: int | None = None) -> Rule:
        """Keep these requests until the rule is removed, then serve them."""
        return self._add(match, times, lambda rule, _: Hold(rule=rule))

    def clear(self) -> None:
        """Remove all rules, mend all links, let time and nodes go on; the record stays."""
        for rule in self._rules:
            rule.remove()
        with self._changed:
            self._cut = frozenset()
            self._held_times.clear()
            self._paused = frozenset()
        self._tell()

    def cut(self, source_id: int, target_id: int, *, both_ways: bool = True) -> None:
        """Let nothing that a node sends reach another; requests and answers alike.

        The controller is node 3000 (`broker_ref.controller.client.CONTROLLER_ID`).
        """
        with self._changed:
            self._cut |= _directions(source_id, target_id, both_ways)
        self._tell()

    def heal(self, source_id: int, target_id: int, *, both_ways: bool = True) -> None:
        """Undo `cut`."""
        with self._changed:
            self._cut -= _directions(source_id, target_id, both_ways)
        self._tell()

    def isolate(self, node_id: int, others: Collection[int]) -> None:
        """Cut a node off from all of these, both ways; `heal_all` mends that."""
        for other in others:
            if other != node_id:
                self.cut(node_id, other)

    def heal_all(self) -> None:
        """Mend every link."""
        with self._changed:
            self._cut = frozenset()
        self._tell()

    def hold_time(self, node_id: int) -> None:
        """Let a node's time stand still: no session, transaction or request of it expires."""
        with self._changed:
            self._held_times.setdefault(node_id, None)

    def release_time(self, node_id: int) -> None:
        """Let it be as late at a node as it is elsewhere, at once."""
        with self._changed:
            self._held_times.pop(node_id, None)
        self._tell()

    def pause(self, node_id: int) -> None:
        """Have a node stand still: it keeps its connections, and hears, says and does nothing."""
        with self._changed:
            self._paused |= {node_id}

    def resume(self, node_id: int) -> None:
        """Let it go on where it stood: first with all that has come to it meanwhile."""
        with self._changed:
            self._paused -= {node_id}
        self._tell()

    @contextmanager
    def recording(self) -> Iterator[Faults]:
        """Keep a record of the requests while in the block; one of before is thrown away."""
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
        """The record, in the order of arrival: the last `SEEN_MAX` requests."""
        with self._changed:
            return tuple(self._seen)

    def requests_seen(self, match: Match) -> tuple[RequestInfo, ...]:
        """Those of the record that agree with `match`."""
        return tuple(one.request for one in self.seen if match.matches(one.request))

    # What nodes ask.

    def on_request(self, request: RequestInfo, now_ms: int) -> FaultAction:
        """What is to become of a request; to be asked once for each, where `is_active`."""
        with self._changed:
            if self._is_recording:
                self._seen.append(SeenRequest(at_ms=now_ms, request=request))
            for rule in self._rules:
                verdict = rule.decide(request, now_ms)
                if verdict is not None:
                    self._changed.notify_all()
                    return verdict
        return PROCEED

    def link_is_cut(self, source_id: int, target_id: int) -> bool:
        """Whether what `source_id` sends to `target_id` is lost."""
        return (source_id, target_id) in self._cut

    def now_ms(self, node_id: int, now_ms: int) -> int:
        """What time it is at a node: where time is held, that of the first call since."""
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
        """Whether a node is to have no deadlines for now."""
        return node_id in self._held_times

    def is_paused(self, node_id: int) -> bool:
        """Whether a node is to do nothing for now."""
        return node_id in self._paused

    def listen(self, on_change: Callable[[], None]) -> Callable[[], None]:
        """Call this when requests may have been released, from the thread that did; undo by the
        function returned."""
        with self._changed:
            self._listeners += (on_change,)

        def stop() -> None:
            with self._changed:
                self._listeners = tuple(one for one in self._listeners if one is not on_change)

        return stop

    def _add(
        self, match: Match, times: int | None, verdict: Callable[[Rule, int], FaultAction]
    ) -> Rule:
        if match.partition is not None and match.topic is None:
            raise ValueError(f"a rule for partition {match.partition} needs its topic")
        rule = Rule(
            match=match,
            times=times,
            verdict=verdict,
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
            rule.let_go()
            self._note_activity()
        self._tell()

    def _note_activity(self) -> None:
        self.is_active = bool(self._rules) or self._is_recording

    def _tell(self) -> None:
        """Not under the lock: a listener may ask us something."""
        for listener in self._listeners:
            listener()


def _directions(source_id: int, target_id: int, both_ways: bool) -> frozenset[tuple[int, int]]:
    one_way = {(source_id, target_id)}
    return frozenset(one_way | {(target_id, source_id)} if both_ways else one_way)
