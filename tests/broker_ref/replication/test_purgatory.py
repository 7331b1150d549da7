"""Tests of the purgatory."""

from __future__ import annotations

import pytest

from broker_ref.replication.purgatory import Completion, Failed, Purgatory


class Waiting:
    """An operation that completes when it is tried; a `broken` operation raises."""

    def __init__(self, *, is_broken: bool = False) -> None:
        self._is_broken = is_broken

    def try_complete(self, now_ms: int) -> object | None:
        if self._is_broken:
            raise RuntimeError("a bug")
        return now_ms

    def expire(self, now_ms: int) -> object:
        return self.try_complete(now_ms)


@pytest.fixture
def purgatory() -> Purgatory[str]:
    made = Purgatory[str]()
    for owner in ("first", "broken", "last"):
        operation = Waiting(is_broken=owner == "broken")
        made.watch(owner=owner, operation=operation, keys=["key"], deadline_ms=10)
    return made


def expected(now_ms: int) -> list[Completion[str]]:
    return [
        Completion(owner="first", message=now_ms),
        Completion(owner="broken", message=Failed()),
        Completion(owner="last", message=now_ms),
    ]


def test_failing_operation_does_not_affect_others(purgatory: Purgatory[str]) -> None:
    assert purgatory.check(["key"], 5) == expected(5)
    assert len(purgatory) == 0


def test_operation_failing_to_expire_does_not_affect_others(purgatory: Purgatory[str]) -> None:
    assert purgatory.expire(10) == expected(10)
    assert purgatory.next_deadline_ms() is None
