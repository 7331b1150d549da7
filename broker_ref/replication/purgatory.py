"""Delayed operations, which wait for a condition or their timeout.

Purpose: Kafka's DelayedOperationPurgatory without threads. An operation watches keys;
`check` tries to complete it when one of them has changed, and `expire` at its deadline. Invariant:
an operation completes exactly once and is dropped with its owner; operations are tried in the order
of their arrival; one that raises completes as `Failed`, without effect on others. Must not know:
the conditions.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar, runtime_checkable


class DelayedOperation(Protocol):
    """A delayed operation; both methods return the response message."""

    def try_complete(self, now_ms: int) -> object | None:
        """Return the response, or None while the condition does not hold."""

    def expire(self, now_ms: int) -> object:
        """Return the response after the timeout."""


@runtime_checkable
class KeyedOperation(Protocol):
    """An operation on many keys that checks only the changed ones."""

    def key_changed(self, key: Hashable) -> None:
        """Note a changed key, before `try_complete`."""


Owner = TypeVar("Owner")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Failed:
    """Replaces the response of an operation that raised. The exception, a bug, is logged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion(Generic[Owner]):
    """A completed operation: its owner and its response."""

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
    """The delayed operations."""

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
        """Keep an operation until it completes, expires or its owner is gone."""
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
        """Try to complete the operations that watch any of `keys`; return the completed ones."""
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
        """Expire the operations whose deadline has passed."""
        completions = []
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            _, identity = heapq.heappop(self._deadlines)
            if identity in self._waiting:
                waiting = self._leave(identity)
                message = _asked(waiting.operation.expire, now_ms)
                completions.append(Completion(owner=waiting.owner, message=message))
        return completions

    def next_deadline_ms(self) -> int | None:
        """Return the earliest deadline, or None without operations."""
        while self._deadlines and self._deadlines[0][1] not in self._waiting:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def forget_where(self, is_gone: Callable[[Owner], bool]) -> None:
        """Drop the operations of owners that are gone."""
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
        logger.exception("A delayed request failed; its client is disconnected")
        return Failed()
