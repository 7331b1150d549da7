"""Delayed operations, which wait for a condition or a timeout.

This is Kafka's `DelayedOperationPurgatory` without threads. An operation watches keys. `check`
tries to complete an operation when one of its keys has changed, and `expire` completes it at its
deadline. `remove_group` discards a group of operations, such as those of a connection. Invariants:
an operation that is not discarded completes exactly once. `check` tries operations in the order in
which they were added. An operation that raises an exception completes as `Failed` and does not
affect other operations.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, Protocol, TypeVar

from broker_ref.frozen import dataclass


class DelayedOperation(Protocol):
    """A delayed operation. `try_complete` and `expire` return the response message."""

    def try_complete(self, now_ms: int) -> object | None:
        """Return the response, or None if the condition is not met."""

    def expire(self, now_ms: int) -> object:
        """Return the response after the timeout."""


class KeyedOperation(Protocol):
    """A delayed operation with many keys. It checks only the keys that have changed."""

    def key_changed(self, key: Hashable) -> None:
        """Record that a key has changed. This method is called before `try_complete`."""


Owner = TypeVar("Owner")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Failed:
    """The result of an operation that raised an exception. The exception is logged as a bug."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion(Generic[Owner]):
    """A completed operation: its owner and its response."""

    owner: Owner
    message: object


@dataclass(slots=True, kw_only=True)
class _Waiting(Generic[Owner]):
    owner: Owner
    group: Hashable
    operation: DelayedOperation
    keys: tuple[Hashable, ...]
    deadline_ms: int
    key_changed: Callable[[Hashable], None] | None


class Purgatory(Generic[Owner]):
    """The delayed operations of a node."""

    def __init__(self) -> None:
        self._waiting: dict[int, _Waiting[Owner]] = {}
        self._by_key: dict[Hashable, dict[int, None]] = {}
        self._by_group: dict[Hashable, dict[int, None]] = {}
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
        group: Hashable = None,
    ) -> None:
        """Store an operation until it completes, expires or is discarded by `remove_group`."""
        waiting = _Waiting(
            owner=owner,
            group=group,
            operation=operation,
            keys=tuple(dict.fromkeys(keys)),
            deadline_ms=deadline_ms,
            key_changed=getattr(operation, "key_changed", None),
        )
        identity = self._next_id
        self._next_id += 1
        self._waiting[identity] = waiting
        self._by_group.setdefault(group, {})[identity] = None
        for key in waiting.keys:
            self._by_key.setdefault(key, {})[identity] = None
        heapq.heappush(self._deadlines, (deadline_ms, identity))

    def check(self, keys: Iterable[Hashable], now_ms: int) -> list[Completion[Owner]]:
        """Try to complete all operations that watch any of `keys`; return completed operations."""
        watching: dict[int, None] = {}
        for key in keys:
            for identity in self._by_key.get(key, {}):
                watching[identity] = None
                key_changed = self._waiting[identity].key_changed
                if key_changed is not None:
                    key_changed(key)
        completions = []
        for identity in sorted(watching):
            message = _result_of(self._waiting[identity].operation.try_complete, now_ms)
            if message is not None:
                completions.append(Completion(owner=self._remove(identity).owner, message=message))
        return completions

    def expire(self, now_ms: int) -> list[Completion[Owner]]:
        """Complete the operations whose deadlines have passed."""
        completions = []
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            _, identity = heapq.heappop(self._deadlines)
            if identity in self._waiting:
                waiting = self._remove(identity)
                message = _result_of(waiting.operation.expire, now_ms)
                completions.append(Completion(owner=waiting.owner, message=message))
        return completions

    def next_deadline_ms(self) -> int | None:
        """Return the earliest deadline, or None if there are no operations."""
        while self._deadlines and self._deadlines[0][1] not in self._waiting:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def remove_group(self, group: Hashable) -> None:
        """Remove the operations of a group."""
        for identity in tuple(self._by_group.get(group, ())):
            self._remove(identity)

    def _remove(self, identity: int) -> _Waiting[Owner]:
        waiting = self._waiting.pop(identity)
        _discard(self._by_group, waiting.group, identity)
        for key in waiting.keys:
            _discard(self._by_key, key, identity)
        if len(self._deadlines) > 2 * len(self._waiting) + 64:
            self._deadlines = [entry for entry in self._deadlines if entry[1] in self._waiting]
            heapq.heapify(self._deadlines)
        return waiting


def _discard(index: dict[Hashable, dict[int, None]], key: Hashable, identity: int) -> None:
    identities = index[key]
    del identities[identity]
    if not identities:
        del index[key]


def _result_of(check: Callable[[int], object | None], now_ms: int) -> object | None:
    try:
        return check(now_ms)
    except Exception:
        logger.exception("A delayed request failed. Its client will be disconnected")
        return Failed()
