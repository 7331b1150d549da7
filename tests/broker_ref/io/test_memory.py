"""Tests of the shared memory limit of unfinished requests.

The oldest request can always complete.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker_ref.io.memory import RequestMemory


def test_requests_within_the_limit_get_memory() -> None:
    memory = RequestMemory(bytes_max=100)
    assert memory.grow(1, 40)
    assert memory.grow(2, 60)
    assert memory.used_bytes == 100
    assert memory.blocking is None


def test_requests_above_the_limit_wait_for_memory() -> None:
    memory = RequestMemory(bytes_max=100)
    assert memory.grow(1, 80)
    assert not memory.grow(2, 30)
    assert memory.is_waiting(2)
    assert memory.blocking == 1
    assert memory.release(1) == [2]
    assert not memory.is_waiting(2)
    assert memory.used_bytes == 30


def test_the_oldest_request_never_waits() -> None:
    memory = RequestMemory(bytes_max=100)
    assert memory.grow(1, 60)
    assert memory.grow(2, 40)
    assert not memory.grow(2, 41)
    assert memory.grow(1, 500)
    assert memory.used_bytes == 540


def test_the_next_request_becomes_the_oldest() -> None:
    memory = RequestMemory(bytes_max=100)
    memory.grow(1, 50)
    memory.grow(2, 50)
    assert not memory.grow(2, 400)
    assert not memory.grow(3, 400)
    assert memory.release(1) == [2]
    assert memory.release(2) == [3]
    assert memory.release(3) == []
    assert memory.used_bytes == 0


def test_a_connection_without_memory_releases_nothing() -> None:
    assert RequestMemory(bytes_max=100).release(7) == []


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(-1, 50)), max_size=60))
def test_the_limit_holds_except_for_the_oldest_request(
    steps: list[tuple[int, int]],
) -> None:
    """Each step is (connection, growth), where -1 releases the memory.

    The expected result is calculated with a plain sum.
    """
    memory = RequestMemory(bytes_max=100)
    held: dict[int, int] = {}
    wanted: dict[int, int] = {}
    for connection_id, growth in steps:
        if growth < 0:
            held.pop(connection_id, None)
            wanted.pop(connection_id, None)
            for granted in memory.release(connection_id):
                held[granted] = wanted.pop(granted)
        elif connection_id not in wanted:
            target = held.setdefault(connection_id, 0) + growth
            if memory.grow(connection_id, target):
                held[connection_id] = target
            else:
                wanted[connection_id] = target
        assert memory.used_bytes == sum(held.values())
        first = next(iter(held), None)
        assert sum(size for owner, size in held.items() if owner != first) <= 100
        assert first is None or first not in wanted
