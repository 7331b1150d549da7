"""Tests of leader epochs and the text checkpoints."""

from __future__ import annotations

import pytest

from broker_ref.log.checkpoints import LEADER_EPOCH_FILE, read_offsets, write_offsets
from broker_ref.log.errors import CorruptLogError
from broker_ref.log.leader_epochs import LeaderEpochFileCache
from tests.broker_ref.memory_storage import MemoryStorage

PATH = f"t-0/{LEADER_EPOCH_FILE}"


def epochs_of(*entries: tuple[int, int]) -> LeaderEpochFileCache:
    epochs = LeaderEpochFileCache(storage=MemoryStorage(), directory="t-0")
    for epoch, start_offset in entries:
        epochs.assign(epoch, start_offset)
    return epochs


def test_the_checkpoint_has_kafkas_format() -> None:
    storage = MemoryStorage()
    epochs = LeaderEpochFileCache(storage=storage, directory="t-0")
    epochs.assign(0, 0)
    epochs.assign(3, 1042)
    epochs.flush()
    assert storage.read(PATH) == b"0\n2\n0 0\n3 1042\n"
    assert LeaderEpochFileCache(storage=storage, directory="t-0").entries == ((0, 0), (3, 1042))


def test_a_repeated_epoch_writes_nothing() -> None:
    storage = MemoryStorage()
    epochs = LeaderEpochFileCache(storage=storage, directory="t-0")
    epochs.assign(1, 5)
    epochs.flush()
    storage.fail_on("write")
    epochs.assign(1, 9)
    epochs.flush()
    assert epochs.entries == ((1, 5),)


def test_an_entry_removes_contradicting_ones() -> None:
    assert epochs_of((0, 0), (1, 10), (2, 20), (3, 15)).entries == ((0, 0), (1, 10), (3, 15))
    assert epochs_of((0, 0), (1, 10), (2, 10)).entries == ((0, 0), (2, 10))
    assert epochs_of((5, 0), (4, 10)).entries == ((4, 10),)


def test_epoch_for_offset() -> None:
    epochs = epochs_of((2, 10), (4, 20))
    assert [epochs.epoch_for_offset(o) for o in (9, 10, 19, 20, 99)] == [None, 2, 2, 4, 4]


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [(0, (0, 10)), (2, (2, 20)), (3, (2, 20)), (4, (4, 33)), (5, (-1, -1)), (-1, (-1, -1))],
)
def test_end_offset_for_epoch(epoch: int, expected: tuple[int, int]) -> None:
    epochs = epochs_of((2, 10), (4, 20))
    assert epochs.end_offset_for_epoch(epoch, log_end_offset=33) == expected
    assert epochs_of().end_offset_for_epoch(epoch, log_end_offset=33) == (-1, -1)


def test_truncation_from_the_end() -> None:
    epochs = epochs_of((0, 0), (1, 10), (2, 20))
    epochs.truncate_from_end(20)
    assert epochs.entries == ((0, 0), (1, 10))


@pytest.mark.parametrize(
    ("start_offset", "expected"),
    [
        (0, ((0, 0), (1, 10), (2, 20))),
        (5, ((0, 5), (1, 10), (2, 20))),
        (15, ((1, 15), (2, 20))),
        (20, ((2, 20),)),
        (99, ((2, 99),)),
    ],
)
def test_truncation_from_the_start(
    start_offset: int, expected: tuple[tuple[int, int], ...]
) -> None:
    epochs = epochs_of((0, 0), (1, 10), (2, 20))
    epochs.truncate_from_start(start_offset)
    assert epochs.entries == expected


@pytest.mark.parametrize(
    "content",
    [b"", b"1\n0\n", b"0\n2\n0 0\n", b"0\n1\n0 x\n", b"0\n1\n0 0 0\n", b"0\n2\n1 0\n0 5\n",
     b"0\n2\n0 5\n1 5\n", b"\xff\xfe", b"0\n1\n-1 0\n"],
)  # fmt: skip
def test_a_damaged_checkpoint_is_rejected(content: bytes) -> None:
    storage = MemoryStorage()
    storage.write_atomically(PATH, content)
    with pytest.raises(CorruptLogError, match=LEADER_EPOCH_FILE):
        LeaderEpochFileCache(storage=storage, directory="t-0")


def test_offsets_round_trip_in_kafkas_format() -> None:
    storage = MemoryStorage()
    offsets = {("b", 1): 7, ("a.b-c", 10): 2**40}
    write_offsets(storage, "file", offsets)
    assert storage.read("file") == b"0\n2\na.b-c 10 1099511627776\nb 1 7\n"
    assert read_offsets(storage, "file") == offsets
    assert read_offsets(storage, "missing") == {}
