"""Tests of a follower's log: appends and truncation, including crashes."""

from __future__ import annotations

import struct
from random import Random

import pytest
from kio.schema.errors import ErrorCode

from broker_ref.log.batch import rewrite, unpack_header
from broker_ref.log.checkpoints import HIGH_WATERMARK_FILE
from broker_ref.log.errors import LogError
from broker_ref.log.log_manager import LogManager
from broker_ref.log.partition_log import PartitionLog
from broker_ref.log.storage import StorageError
from integration.simulation.disk import SimulatedFile
from tests.broker_ref.log.batches import NOW_MS, batch, patched
from tests.broker_ref.log.logs import DIRECTORY, SMALL, open_log, read_all, small
from tests.broker_ref.memory_storage import MemoryStorage

SEEDS = range(20)


def led(count: int = 40) -> PartitionLog:
    """Return a leader's log.

    It has batches of two records, leader epochs 0 to 2, and one idempotent producer.
    """
    log = open_log(MemoryStorage())
    for i in range(count):
        log.append(
            batch(2, timestamp=NOW_MS + i, producer=(5, 0, 2 * i)),
            leader_epoch=i // 15,
            now_ms=NOW_MS,
        )
    return log


def at(base_offset: int, *, epoch: int = 0, count: int = 1) -> bytes:
    return bytes(
        rewrite(batch(count), base_offset=base_offset, leader_epoch=epoch, log_append_time_ms=None)
    )


def state(log: PartitionLog) -> tuple[object, ...]:
    return (
        read_all(log),
        log.log_end_offset,
        log.segment_base_offsets,
        log.leader_epochs.entries,
        [(e.producer_id, e.last_sequence) for e in log.producer_entries],
    )


@pytest.mark.parametrize("batches_a_call", [1, 3, 40])
def test_a_follower_equals_its_leader(batches_a_call: int) -> None:
    leader = led()
    batches = read_all(leader)
    storage = MemoryStorage()
    follower = open_log(storage)
    for start in range(0, len(batches), batches_a_call):
        records = b"".join(batches[start : start + batches_a_call])
        follower.append_as_follower(records + b"\0" * 30, now_ms=NOW_MS)
    assert state(follower) == state(leader)
    assert len(follower.segment_base_offsets) >= 4
    follower.close()
    assert state(open_log(storage))[:4] == state(leader)[:4]
    assert state(open_log(storage, clean=False))[:4] == state(leader)[:4]


def test_many_batches_are_one_write_per_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = read_all(led(12))
    follower = open_log(MemoryStorage(), config=small(segment_bytes=1 << 20))
    follower.append_as_follower(batches[0], now_ms=NOW_MS)
    writes: list[int] = []
    write = SimulatedFile.append

    def counted(file: SimulatedFile, data: bytes | bytearray | memoryview) -> None:
        if file.path.endswith(".log"):
            writes.append(len(data))
        write(file, data)

    monkeypatch.setattr(SimulatedFile, "append", counted)
    follower.append_as_follower(b"".join(batches[1:]), now_ms=NOW_MS)
    assert writes == [sum(len(b) for b in batches[1:])]


def test_gaps_are_accepted_and_survive_a_restart() -> None:
    storage = MemoryStorage()
    log = open_log(storage)
    batches = [at(5), at(6), at(900, count=3), at(5_000_000_000)]
    log.append_as_follower(b"".join(batches[:2]), now_ms=NOW_MS)
    log.append_as_follower(b"".join(batches[2:]), now_ms=NOW_MS)
    assert read_all(log) == batches
    assert log.log_end_offset == 5_000_000_001
    snapshots = [f for f in storage.list(DIRECTORY) if f.endswith(".snapshot")]
    # A segment without a snapshot at its base offset would lose the state of its producers.
    assert snapshots == [f"{base:020d}.snapshot" for base in log.segment_base_offsets[1:]]
    assert log.read(7, end_offset=10**10, max_bytes=1, at_least_one_batch=True) == batches[2]
    log.close()
    for clean in (True, False):
        again = open_log(storage, clean=clean, recovery_point=5_000_000_001)
        assert read_all(again) == batches


@pytest.mark.parametrize(
    ("records", "code"),
    [
        (at(9), ErrorCode.offset_out_of_range),
        (at(10) + at(10), ErrorCode.corrupt_message),
        (at(10) + patched(at(11), fix_crc=False, crc=1), ErrorCode.corrupt_message),
        (at(10) + patched(at(11), magic=1), ErrorCode.corrupt_message),
        (at(10) + patched(at(11), last_offset_delta=-1), ErrorCode.corrupt_message),
        (b"\0" * 100, ErrorCode.corrupt_message),
    ],
)
def test_damaged_or_old_batches_change_nothing(records: bytes, code: ErrorCode) -> None:
    log = open_log(MemoryStorage())
    log.append_as_follower(at(9), now_ms=NOW_MS)
    before = state(log)
    with pytest.raises(LogError) as raised:
        log.append_as_follower(records, now_ms=NOW_MS)
    assert raised.value.error_code is code
    assert state(log) == before
    log.append_as_follower(at(10), now_ms=NOW_MS)


@pytest.mark.parametrize("offset", [0, 2, 30, 31, 46, 78, 79])
def test_truncation_restores_the_earlier_state(offset: int) -> None:
    storage = MemoryStorage()
    log = open_log(storage)
    batches = read_all(led())
    log.append_as_follower(b"".join(batches), now_ms=NOW_MS)
    log.truncate_to(offset, now_ms=NOW_MS)
    kept = [b for b in batches if unpack_header(b).next_offset <= offset]
    expected = open_log(MemoryStorage())
    expected.append_as_follower(b"".join(kept), now_ms=NOW_MS)
    assert read_all(log) == kept
    assert log.log_end_offset == 2 * len(kept)
    assert log.leader_epochs.entries == expected.leader_epochs.entries
    assert [e.last_sequence for e in log.producer_entries] == [
        e.last_sequence for e in expected.producer_entries
    ]
    assert not any(
        int(name[:20]) > offset for name in storage.list(DIRECTORY) if name[:20].isdigit()
    )
    log.append_as_follower(at(log.log_end_offset, epoch=7), now_ms=NOW_MS)
    after = read_all(log)
    log.close()
    assert read_all(open_log(storage, recovery_point=log.log_end_offset)) == after


def test_truncation_after_a_gap_ends_the_log_at_the_last_batch() -> None:
    storage = MemoryStorage()
    log = open_log(storage)
    batches = [at(0), at(10), at(50), at(51)]
    log.append_as_follower(b"".join(batches), now_ms=NOW_MS)
    # The offset index has an entry for the first batch that is removed.
    assert storage.read(f"{DIRECTORY}/{0:020d}.index")[:4] == struct.pack("!i", 50)
    log.truncate_to(50, now_ms=NOW_MS)
    assert log.log_end_offset == 11
    log.close()
    again = open_log(storage, recovery_point=11)
    assert (again.log_end_offset, read_all(again)) == (11, batches[:2])


def appended(count: int, *, sealed: int | None = None) -> tuple[PartitionLog, MemoryStorage]:
    """Return a segment with varying timestamps, reopened after `sealed` batches."""
    storage = MemoryStorage()
    log = open_log(storage, config=ONE_SEGMENT)
    for i in range(count):
        if i == sealed:
            log.close()
            log = open_log(storage, config=ONE_SEGMENT, recovery_point=log.log_end_offset)
        stamp = NOW_MS + i - 40 * (i % 3)
        log.append(batch(2, timestamp=stamp), leader_epoch=0, now_ms=NOW_MS)
    return log, storage


ONE_SEGMENT = small(segment_bytes=1 << 20)
COUNT = 14


@pytest.mark.parametrize("sealed", [None, 6, 9])
@pytest.mark.parametrize("batches", range(COUNT))
def test_a_truncated_segment_has_the_indexes_of_a_shorter_one(
    batches: int, sealed: int | None
) -> None:
    log, storage = appended(COUNT, sealed=sealed)
    log.truncate_to(2 * batches + 1, now_ms=NOW_MS)
    assert log.segments.active.end_offset == log.log_end_offset == 2 * batches
    expected, of_expected = appended(batches, sealed=sealed)
    index, time_index = (f"{DIRECTORY}/{0:020d}.{suffix}" for suffix in ("index", "timeindex"))
    for added in range(3):
        assert read_all(log) == read_all(expected)
        if sealed is None:
            # An empty segment that is new has no index files.
            indexed = of_expected.read(index) if of_expected.exists(index) else b""
            assert storage.read(index) == indexed
        stamps = [unpack_header(data).max_timestamp for data in read_all(log)]
        for stamp, offset in struct.iter_unpack("!qi", storage.read(time_index)):
            assert (stamp, offset % 2) == (max(stamps[: offset // 2 + 1]), 1)
        assert log.segments.active.max_timestamp == max(stamps, default=-1)
        assert log.segments.active.first_timestamp == (stamps[0] if stamps else -1)
        for stamp in range(NOW_MS - 90, NOW_MS + COUNT + 10):
            assert log.offset_for_timestamp(stamp, end_offset=100) == (
                expected.offset_for_timestamp(stamp, end_offset=100)
            )
        for each in (log, expected):
            each.append(batch(2, timestamp=NOW_MS + added), leader_epoch=0, now_ms=NOW_MS)
    log.close()
    again = open_log(storage, config=ONE_SEGMENT, recovery_point=log.log_end_offset)
    assert state(again) == state(expected)


def test_truncating_a_record_does_not_read_the_whole_segment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = open_log(MemoryStorage(), config=small(segment_bytes=1 << 20, index_interval_bytes=4096))
    for _ in range(1000):
        log.append(batch(value=bytes(200)), leader_epoch=0, now_ms=NOW_MS)
    size_bytes, bytes_read = log.size_bytes, 0
    read = SimulatedFile.read

    def counted(file: SimulatedFile, position: int, length: int) -> bytes:
        nonlocal bytes_read
        data = read(file, position, length)
        bytes_read += len(data)
        return data

    monkeypatch.setattr(SimulatedFile, "read", counted)
    log.segments.active.truncate_to(999)
    assert log.size_bytes == size_bytes // 1000 * 999
    assert bytes_read < size_bytes // 10


def test_truncation_at_the_end_removes_an_epoch_without_records() -> None:
    log = led(3)
    log.leader_epochs.assign(9, log.log_end_offset)
    log.truncate_to(6, now_ms=NOW_MS)
    assert log.log_end_offset == 6
    assert log.leader_epochs.latest == 0


def test_truncation_below_the_first_segment_restarts_there() -> None:
    log = led()
    log.delete_records_before(60)
    log.apply_retention(NOW_MS)
    assert log.segment_base_offsets[0] > 10
    log.truncate_to(10, now_ms=NOW_MS)
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (10, 10, 0)


@pytest.mark.parametrize("start", [0, 50, 1000])
def test_a_fully_truncated_log_keeps_nothing(start: int) -> None:
    storage = MemoryStorage()
    log = open_log(storage)
    log.append_as_follower(b"".join(read_all(led())), now_ms=NOW_MS)
    log.truncate_fully_and_start_at(start, now_ms=NOW_MS)
    assert state(log) == ([], start, (start,), (), [])
    assert log.log_start_offset == start
    log.append_as_follower(at(start + 3, epoch=4), now_ms=NOW_MS)
    log.close()
    assert read_all(open_log(storage)) == [at(start + 3, epoch=4)]


@pytest.mark.parametrize("target", [33, 1000, 0])
@pytest.mark.parametrize("fully", [False, True])
def test_an_interrupted_truncation_is_not_damage(target: int, fully: bool) -> None:
    """Each storage operation of the truncation fails once, with a power loss."""
    appended = read_all(led())
    for step in range(1, 200):
        storage = MemoryStorage()
        directory = LogManager(storage=storage)
        log = directory.open_log("orders", 0, config=SMALL, now_ms=NOW_MS)
        log.append_as_follower(b"".join(appended), now_ms=NOW_MS)
        log.flush()
        directory.checkpoint({("orders", 0): 70})
        storage.fail_after(step)
        finished = True
        try:
            if fully:
                log.truncate_fully_and_start_at(target, now_ms=NOW_MS)
            else:
                log.truncate_to(target, now_ms=NOW_MS)
        except LogError:
            finished = False
        for seed in range(4):
            again = LogManager(storage=storage.crash(Random(seed)))
            found = again.open_log("orders", 0, config=SMALL, now_ms=NOW_MS)
            left = read_all(found)
            high_watermark = again.high_watermark("orders", 0)
            assert found.log_start_offset <= high_watermark <= found.log_end_offset
            start = found.log_start_offset
            readable = [b for b in appended if unpack_header(b).next_offset > start]
            assert left == readable[: len(left)]
            if finished and fully:
                assert found.log_end_offset == target
            if finished and not fully:
                assert found.log_end_offset == min(2 * (target // 2), 80)
                assert high_watermark <= min(target, 70)
        if finished:
            return
    raise AssertionError("the truncation never completed")


def test_high_watermarks_are_checkpointed_and_limited_to_the_log() -> None:
    storage = MemoryStorage()
    directory = LogManager(storage=storage)
    log = directory.open_log("orders", 0, config=SMALL, now_ms=NOW_MS)
    assert directory.high_watermark("orders", 0) == 0
    log.append_as_follower(b"".join(read_all(led(5))), now_ms=NOW_MS)
    directory.checkpoint({("orders", 0): 7, ("gone", 1): 3})
    assert storage.read(HIGH_WATERMARK_FILE) == b"0\n1\norders 0 7\n"
    directory.close({("orders", 0): 8})
    again = LogManager(storage=storage)
    found = again.open_log("orders", 0, config=SMALL, now_ms=NOW_MS)
    assert again.high_watermark("orders", 0) == 8
    found.delete_records_before(9)
    assert again.high_watermark("orders", 0) == 9
    found.truncate_fully_and_start_at(2, now_ms=NOW_MS)
    assert again.high_watermark("orders", 0) == 2
    again.delete_log("orders", 0, topic_id="id")
    again.checkpoint()
    assert storage.read(HIGH_WATERMARK_FILE) == b"0\n0\n"


def test_a_failed_truncation_takes_the_log_offline() -> None:
    storage = MemoryStorage()
    log = open_log(storage)
    log.append_as_follower(b"".join(read_all(led())), now_ms=NOW_MS)
    storage.fail_on("truncate")
    with pytest.raises(LogError) as raised:
        log.truncate_to(33, now_ms=NOW_MS)
    assert raised.value.error_code is ErrorCode.kafka_storage_error
    assert isinstance(raised.value.__cause__, StorageError)
    with pytest.raises(LogError):
        log.append_as_follower(at(100), now_ms=NOW_MS)
