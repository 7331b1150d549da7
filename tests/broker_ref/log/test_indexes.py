"""Tests of indexes: look-ups in indexes larger than one block, and the binary formats."""

from __future__ import annotations

import struct

from broker_ref.log.indexes import OffsetIndex, TimeIndex
from tests.broker_ref.memory_storage import MemoryStorage

ENTRIES = 1000
BASE = 5000


def test_the_offset_index_finds_the_last_entry_at_or_before_an_offset() -> None:
    file = MemoryStorage().open("index")
    index = OffsetIndex(file, base_offset=BASE, bytes_max=8 * ENTRIES)
    assert index.lookup(BASE) is None
    for i in range(1, ENTRIES + 1):
        assert not index.is_full
        index.append(BASE + 10 * i, 100 * i)
    assert index.is_full
    assert file.read(0, 16) == struct.pack("!iiii", 10, 100, 20, 200)
    assert index.lookup(BASE + 9) is None
    for i in range(1, ENTRIES + 1):
        for offset in (10 * i, 10 * i + 1, 10 * i + 9):
            assert index.lookup(BASE + offset) == (BASE + 10 * i, 100 * i)
    assert index.lookup(2**62) == (BASE + 10 * ENTRIES, 100 * ENTRIES)
    again = OffsetIndex(file, base_offset=BASE, bytes_max=8 * ENTRIES)
    assert again.lookup(BASE + 5005) == (BASE + 5000, 50_000)
    assert again.damage(100 * ENTRIES + 1) is None
    assert again.damage(100 * ENTRIES) is not None


def test_the_time_index_keeps_ascending_timestamps_and_a_slot_for_the_last() -> None:
    file = MemoryStorage().open("timeindex")
    index = TimeIndex(file, base_offset=BASE, bytes_max=12 * ENTRIES)
    assert index.last() == (-1, BASE)
    for i in range(1, ENTRIES):
        assert not index.is_full
        index.append_if_larger(1000 * i, BASE + i)
        index.append_if_larger(1000 * i, BASE + i + 1)
        index.append_if_larger(1000 * i - 1, BASE + i + 1)
    assert index.is_full
    assert file.size() == 12 * (ENTRIES - 1)
    assert file.read(0, 12) == struct.pack("!qi", 1000, 1)
    assert index.last() == (1000 * (ENTRIES - 1), BASE + ENTRIES - 1)
    assert index.lookup(999) == BASE
    for i in range(1, ENTRIES):
        assert index.lookup(1000 * i) == BASE + i
        assert index.lookup(1000 * i + 999) == BASE + i
    assert TimeIndex(file, base_offset=BASE, bytes_max=12 * ENTRIES).last() == index.last()
