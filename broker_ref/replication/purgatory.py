"""Requests that wait for something to happen, or for their time to run out.

Purpose: Kafka's DelayedOperationPurgatory without threads: an operation names the keys it watches;
`check` asks it again when one of them has changed, `expire` ends it at its deadline. Invariant: an
operation is completed exactly once, and is forgotten with its owner; operations are asked in the
order in which they came; one that raises is done, as `Failed`, and the others are asked. What it must not know: what is waited for.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar, runtime_checkable


class DelayedOperation(Protocol):
    """What can wait: both methods get the time and give the response message."""

    def try_complete(self, now_ms: int) -> object | None:
        """The response, or None while there is still something to wait for."""

    def expire(self, now_ms: int) -> object:
        """The response when the time is up."""


@runtime_checkable
class KeyedOperation(Protocol):
    """An operation on many keys that wants to know which of them changed, to look at no others."""

    def key_changed(self, key: Hashable) -> None:
        """Called for each of its keys that changed, before it is asked again."""


Owner = TypeVar("Owner")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Failed:
    """In place of a response: the operation raised, which is a bug and in the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion(Generic[Owner]):
    """An operation that is done: whose it was, and its response."""

    owner: Owner
    message: object


@dataclass(slots=True, kw_only=True)
class _Waiting(Generic[Owner]):
    owner: Owner
    operation: DelayedOperation
    keys: tuple[Hashable, ...]
    deadline_ms: int
    key_changed: Callable[[Hashable], None] | None


class Purgatory(Generic[Owner]):
    """The waiting operations."""

    def __init__(self) -> None:
        self._waiting: dict[int, _Waiting[Owner]] = {}
        self._by_key: dict[Hashable, dict[int, None]] = {}
        self._deadlines: list[tuple[int, int]] = []
        self._next_id = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def watch(
        self,
        *,
        owner: Owner,
        operation: DelayedOperation,
        keys: Iterable[Hashable],
        deadline_ms: int,
    ) -> None:
        """Keep an operation until it completes, expires or loses its owner."""
        waiting = _Waiting(
            owner=owner,
            operation=operation,
            keys=tuple(dict.fromkeys(keys)),
            deadline_ms=deadline_ms,
            key_changed=operation.key_changed if isinstance(operation, KeyedOperation) else None,
        )
        identity = self._next_id
        self._next_id += 1
        self._waiting[identity] = waiting
        for key in waiting.keys:
            self._by_key.setdefault(key, {})[identity] = None
        heapq.heappush(self._deadlines, (deadline_ms, identity))

    def check(self, keys: Iterable[Hashable], now_ms: int) -> list[Completion[Owner]]:
        """Ask those that watch any of `keys`; the ones that are done leave."""
        watching: dict[int, None] = {}
        for key in keys:
            for identity in self._by_key.get(key, {}):
                watching[identity] = None
                key_changed = self._waiting[identity].key_changed
                if key_changed is not None:
                    key_changed(key)
        completions = []
        for identity in sorted(watching):
            message = _asked(self._waiting[identity].operation.try_complete, now_ms)
            if message is not None:
                completions.append(Completion(owner=self._leave(identity).owner, message=message))
        return completions

    def expire(self, now_ms: int) -> list[Completion[Owner]]:
        """End those whose deadline has come."""
        completions = []
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            _, identity = heapq.heappop(self._deadlines)
            if identity in self._waiting:
                waiting = self._leave(identity)
                message = _asked(waiting.operation.expire, now_ms)
                completions.append(Completion(owner=waiting.owner, message=message))
        return completions

    def next_deadline_ms(self) -> int | None:
        """When the next operation expires; None where none waits."""
        while self._deadlines and self._deadlines[0][1] not in self._waiting:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def forget_where(self, is_gone: Callable[[Owner], bool]) -> None:
        """Drop what the owners that are gone wait for."""
        for identity, waiting in list(self._waiting.items()):
            if is_gone(waiting.owner):
                self._leave(identity)

    def _leave(self, identity: int) -> _Waiting[Owner]:
        waiting = self._waiting.pop(identity)
        for key in waiting.keys:
            watchers = self._by_key[key]
            del watchers[identity]
            if not watchers:
                del self._by_key[key]
        if len(self._deadlines) > 2 * len(self._waiting) + 64:
            self._deadlines = [entry for entry in self._deadlines if entry[1] in self._waiting]
            heapq.heapify(self._deadlines)
        return waiting


def _asked(ask: Callable[[int], object | None], now_ms: int) -> object | None:
    try:
        return ask(now_ms)
    except Exception:
        logger.exception("a request that waited failed; its client is disconnected")
        return Failed()
