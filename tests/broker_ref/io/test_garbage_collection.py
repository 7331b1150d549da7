"""Tests that full collections skip long-lived objects, but do not leak cycles forever."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from broker_ref.io.garbage_collection import LongLivedObjects


class Node:
    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def objects() -> Iterator[LongLivedObjects]:
    objects = LongLivedObjects(frozen_margin=1_000)
    objects.start()
    yield objects
    objects.stop()
    gc.collect()


def test_a_full_collection_visits_only_new_objects(objects: LongLivedObjects) -> None:
    old = [Node() for _ in range(100)]
    gc.collect()
    assert gc.get_freeze_count() >= len(old)
    new = Node()
    assert any(each is new for each in gc.get_objects())
    assert not any(each is old[0] for each in gc.get_objects())


@pytest.mark.slow
def test_cycles_of_frozen_objects_are_freed_when_many_objects_are_frozen(
    objects: LongLivedObjects,
) -> None:
    node = Node()
    is_alive = weakref.ref(node)
    gc.collect()  # The first collection freezes everything, which is more than the margin.
    gc.collect()  # So the second one is complete, and doubles the limit.
    del node
    gc.collect()
    assert is_alive() is not None
    kept = []
    while is_alive() is not None:
        kept.append([Node() for _ in range(50_000)])
        gc.collect()
        assert len(kept) < 100
