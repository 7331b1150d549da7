"""Tests of compaction: retained and removed records, steps, crashes."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_ref.log.batch import (
    NO_TIMESTAMP,
    Compression,
    Record,
    crc_matches,
    encode_batch,
    unpack_header,
)
from broker_ref.log.checkpoints import CLEANER_OFFSET_FILE, read_offsets
from broker_ref.log.config import LONG_MAX, LogConfig
from broker_ref.log.partition_log import PartitionLog
from broker_ref.log.segment import LogSegment
from tests.broker_ref.log.batches import NOW_MS
from tests.broker_ref.log.compacted import COMPACT, KEY, Compacted, Entry
from tests.broker_ref.log.logs import read_all, small


def last_values(records: Sequence[Record]) -> dict[bytes, bytes | None]:
    return {record.key or b"": record.value for record in records}


def test_compaction_keeps_the_last_record_of_every_key() -> None:
    log = Compacted()
    log.fill(30)
    active = log.log.segment_base_offsets[-1]
    before = log.records()
    log.clean()
    kept = [r for r in log.records() if r.offset < active]
    assert [(r.offset, r.key) for r in kept] == [
        (r.offset, r.key) for r in before[active - 3 : active]
    ]
    assert kept == before[active - 3 : active]
    assert [r for r in log.records() if r.offset >= active] == before[active:]
    assert log.log.log_end_offset == 30
    assert f"t 0 {active}\n".encode() in log.storage.read(CLEANER_OFFSET_FILE)
    assert all(crc_matches(b) for b in read_all(log.log))


def test_compaction_stops_at_the_high_watermark() -> None:
    log = Compacted()
    log.fill(30)
    third = log.log.segment_base_offsets[2]
    before = log.records()
    log.clean(high_watermark=third + 1)
    assert log.records(third) == before[third:]
    assert len(log.records()) < 30
    assert last_values([r for r in log.records() if r.offset < third]) == last_values(
        before[:third]
    )


def test_the_log_with_the_largest_dirty_ratio_is_compacted_first() -> None:
    made = Compacted()
    others = [
        made.directory.open_log("t", partition, config=COMPACT, now_ms=NOW_MS)
        for partition in (1, 2)
    ]
    logs = [made.log, *others]
    compacted = (20, 5, 60)
    for made.log, count in zip(logs, compacted, strict=True):
        made.fill(count, keys=count)
        made.roll()
    ends = {("t", partition): 10_000 for partition in range(3)}
    while made.directory.clean(NOW_MS, ends):
        pass
    before = read_offsets(made.storage, CLEANER_OFFSET_FILE)
    assert len(before) == 3
    for made.log, count in zip(logs, compacted, strict=True):
        made.fill(20, start=count)
        made.roll()
    while (after := read_offsets(made.storage, CLEANER_OFFSET_FILE)) == before:
        assert made.directory.clean(NOW_MS, ends, budget_bytes=1)
    assert [key for key, offset in after.items() if offset != before[key]] == [("t", 1)]


def test_small_segments_are_merged() -> None:
    log = Compacted()
    log.fill(60, keys=2)
    log.roll()
    before = log.log.segment_base_offsets
    log.clean()
    log.fill(10, keys=2, start=60)
    log.roll()
    log.clean()
    log.clean()
    assert len(log.log.segment_base_offsets) < len(before) // 2
    assert log.log.segment_base_offsets[0] == 0
    assert last_values(log.records()) == {b"k0": b"v68", b"k1": b"v69"}


def test_a_merged_segment_without_timestamps_is_as_old_as_the_newest_segment() -> None:
    log = Compacted(
        small(**_fields(COMPACT, cleanup_policy=("compact", "delete"), retention_ms=1000))
    )
    for key, roll_ms in ((b"a", NOW_MS + 800), (b"b", NOW_MS + 900)):
        log.append((key, b"v"), timestamp=NO_TIMESTAMP)
        log.log._roll(roll_ms, log.log.log_end_offset)
    log.clean(NOW_MS + 900)
    assert log.log.segment_base_offsets == (0, 2)
    assert log.log.apply_retention(NOW_MS + 1800) == 0
    assert log.log.apply_retention(NOW_MS + 1801) == 1


@pytest.mark.parametrize("codec", list(Compression))
def test_a_compacted_batch_keeps_offsets_and_codec(codec: Compression) -> None:
    log = Compacted(
        small(**{f: getattr(COMPACT, f) for f in ("cleanup_policy",)}, segment_bytes=10**6)
    )
    log.log.update_config(
        small(cleanup_policy=("compact",), segment_bytes=10**6, min_cleanable_dirty_ratio=0.0)
    )
    random = Random(1)
    big = random.randbytes(90_000) + bytes(90_000)
    log.append((b"a", b"1"), (b"b", big), (b"a", b"3"), (b"c", b"4"), codec=codec)
    log.append((b"c", b"5"))
    log.roll()
    before = log.records()
    log.clean()
    data = read_all(log.log)[0]
    header = unpack_header(data)
    assert (header.base_offset, header.last_offset, header.record_count) == (0, 3, 2)
    assert header.compression is codec
    assert crc_matches(data)
    assert log.records() == [before[1], before[2], before[4]]


def test_a_batch_with_all_records_stays_byte_for_byte() -> None:
    log = Compacted()
    log.append((b"a", b"1"), (b"b", b"2"), codec=Compression.GZIP)
    log.append((b"c", b"3"))
    log.roll()
    before = read_all(log.log)
    log.clean()
    assert read_all(log.log) == before


def test_a_tombstone_stays_for_delete_retention_ms() -> None:
    log = Compacted(small(**_fields(COMPACT, delete_retention_ms=1000)))
    log.append((b"a", b"1"), (b"b", b"2"))
    log.append((b"a", None), timestamp=NOW_MS + 5)
    log.roll()
    log.clean(NOW_MS + 100)
    assert log.entries() == [(1, (b"b", b"2")), (2, (b"a", None))]
    header = unpack_header(read_all(log.log)[1])
    assert header.delete_horizon_ms == NOW_MS + 1100
    assert header.max_timestamp == log.records()[1].timestamp == NOW_MS + 5
    # A new record makes another compaction worthwhile.
    for now_ms, kept in ((NOW_MS + 1099, True), (NOW_MS + 1100, False)):
        log.append((b"x", b"%d" % now_ms))
        log.roll()
        log.clean(now_ms)
        assert ((b"a", None) in [entry for _, entry in log.entries()]) is kept


def test_tombstones_stay_with_unlimited_retention() -> None:
    log = Compacted(small(**_fields(COMPACT, delete_retention_ms=LONG_MAX)))
    log.append((b"a", b"1"), (b"b", b"2"))
    log.append((b"a", None))
    log.roll()
    log.clean()
    assert log.entries() == [(1, (b"b", b"2")), (2, (b"a", None))]
    end = log.log.log_end_offset
    assert read_offsets(log.storage, CLEANER_OFFSET_FILE) == {KEY: end}
    # As in Kafka, no delete horizon was set, so that the shorter retention applies.
    log.log.update_config(small(**_fields(COMPACT, delete_retention_ms=5)))
    for now_ms in (NOW_MS, NOW_MS + 5):
        log.append((b"x", b"%d" % now_ms))
        log.roll()
        log.clean(now_ms)
    assert (b"a", None) not in [entry for _, entry in log.entries()]


def test_last_batches_keep_their_headers() -> None:
    log = Compacted()
    log.append((b"a", b"1"), producer=(7, 0, 0))
    log.append((b"a", b"2"), (b"a", b"3"), producer=(7, 0, 1))
    log.append((b"a", b"4"))
    log.roll()
    log.append((b"a", b"5"))
    log.roll()
    log.clean()
    headers = [unpack_header(b) for b in read_all(log.log)]
    assert [(h.base_offset, h.last_offset, h.record_count) for h in headers] == [
        (1, 2, 0),
        (4, 4, 1),
    ]
    log.storage = log.storage.crash(Random(0))
    for name in log.storage.list("t-0"):
        if name.endswith(".snapshot"):
            log.storage.remove(f"t-0/{name}")
    again = Compacted(storage=log.storage)
    (entry,) = again.log.producer_entries
    assert (entry.producer_id, entry.last_sequence) == (7, 2)
    again.append((b"a", b"6"), producer=(7, 0, 3))


@pytest.mark.parametrize(
    ("changes", "age_ms", "cleans"),
    [
        ({"min_cleanable_dirty_ratio": 0.9}, 0, True),
        ({"min_cleanable_dirty_ratio": 1.0}, 0, False),
        ({"min_cleanable_dirty_ratio": 1.0, "max_compaction_lag_ms": 500}, 500, False),
        ({"min_cleanable_dirty_ratio": 1.0, "max_compaction_lag_ms": 500}, 501, True),
        ({"min_compaction_lag_ms": 500}, 499, False),
        ({"min_compaction_lag_ms": 500}, 500, True),
        ({"cleanup_policy": ("delete",)}, 0, False),
        ({"cleanup_policy": ("compact", "delete")}, 0, True),
    ],
)
def test_conditions_for_compaction(changes: dict[str, object], age_ms: int, cleans: bool) -> None:
    log = Compacted(small(**_fields(COMPACT, **changes)))
    log.fill(20)
    log.roll()
    log.clean(NOW_MS + age_ms)
    assert (len(log.records()) < 20) is cleans


def test_the_active_segment_rolls_in_time_for_max_compaction_lag_ms() -> None:
    log = Compacted(small(**_fields(COMPACT, max_compaction_lag_ms=50)))
    log.append((b"a", b"1"))
    log.append((b"a", b"2"), timestamp=NOW_MS + 51)
    assert len(log.log.segment_base_offsets) == 2


def test_a_full_offset_map_requires_several_rounds() -> None:
    log = Compacted(dedupe_buffer_bytes=1000)
    log.fill(80, keys=20)
    log.roll()
    log.clean()
    assert last_values(log.records()) == {b"k%d" % (i % 20): b"v%d" % i for i in range(80)}
    assert len(log.records()) == 20


def test_an_offset_map_can_be_full_within_a_batch() -> None:
    config = small(**_fields(COMPACT, segment_bytes=1000))
    log = Compacted(config, dedupe_buffer_bytes=1000)
    log.append(*((b"k%d" % i, b"old") for i in range(30)))
    log.append(*((b"k%d" % i, b"new") for i in range(30)))
    log.roll()
    log.directory.clean(NOW_MS, {KEY: 60}, budget_bytes=1)
    while read_offsets(log.storage, CLEANER_OFFSET_FILE) == {}:
        assert log.directory.clean(NOW_MS, {KEY: 60}, budget_bytes=1)
    assert read_offsets(log.storage, CLEANER_OFFSET_FILE) == {KEY: 4}
    log.clean()
    assert log.entries() == [(30 + i, (b"k%d" % i, b"new")) for i in range(30)]


def test_small_records_count_as_work() -> None:
    log = Compacted(small(**_fields(COMPACT, segment_bytes=1 << 20)))
    for _ in range(10):
        log.append(*[(b"k", b"v")] * 3000, codec=Compression.ZSTD)
    log.roll()
    assert log.log.size_bytes < 1 << 15
    calls = 1
    while log.directory.clean(NOW_MS, {KEY: log.log.log_end_offset}):
        calls += 1
    assert calls > 5
    assert len(log.records()) == 1


def test_flushes_count_as_work(monkeypatch: pytest.MonkeyPatch) -> None:
    log, _ = two_logs()
    replace, replacements = PartitionLog.replace_segments, 0

    def counted(self: PartitionLog, old: Sequence[LogSegment], cleaned: LogSegment) -> None:
        nonlocal replacements
        replacements += 1
        replace(self, old, cleaned)

    monkeypatch.setattr(PartitionLog, "replace_segments", counted)
    has_more, work = True, 0
    while has_more:
        has_more = log.directory.clean(NOW_MS, {KEY: 40, ("u", 0): 40})
        before, work = work, replacements + len(read_offsets(log.storage, CLEANER_OFFSET_FILE))
        assert work - before <= 1
    assert replacements > 2
    assert work == replacements + 2


def test_the_log_is_complete_between_compaction_steps() -> None:
    log = Compacted()
    log.fill(40)
    expected = last_values(log.records())
    steps = 0
    while log.directory.clean(NOW_MS, {KEY: 40}, budget_bytes=1):
        steps += 1
        assert last_values(log.records()) == expected
    assert steps > 5


@pytest.mark.parametrize("steps", [1, 3, 6])
def test_truncation_aborts_the_compaction(steps: int) -> None:
    log = Compacted()
    log.fill(40)
    for _ in range(steps):
        assert log.directory.clean(NOW_MS, {KEY: 40}, budget_bytes=1)
    cut = log.log.segment_base_offsets[-2]
    log.log.truncate_to(cut, now_ms=NOW_MS)
    log.fill(20, start=100)
    expected = last_values(log.records())
    log.clean()
    assert last_values(log.records()) == expected
    assert not any("cleaned" in name for name in log.storage.list("t-0"))


def test_compaction_ends_when_the_cleanup_policy_changes() -> None:
    log = Compacted()
    log.fill(40)
    assert log.directory.clean(NOW_MS, {KEY: 40}, budget_bytes=1)
    log.log.update_config(replace(COMPACT, cleanup_policy=("delete",)))
    log.clean()
    assert len(log.records()) == 40
    assert not any("cleaned" in name for name in log.storage.list("t-0"))


def test_a_damaged_log_is_skipped() -> None:
    log, other = two_logs()
    log.storage.overwrite(f"t-0/{0:020d}.log", 70, b"\xff")
    clean_two(log)
    assert other.size_bytes < log.log.size_bytes
    assert log.log.storage_error is None


def two_logs() -> tuple[Compacted, PartitionLog]:
    log = Compacted()
    log.fill(40)
    other = log.directory.open_log("u", 0, config=COMPACT, now_ms=NOW_MS)
    for data in read_all(log.log):
        other.append_as_follower(data, now_ms=NOW_MS)
    return log, other


def clean_two(log: Compacted) -> None:
    while log.directory.clean(NOW_MS, {KEY: 40, ("u", 0): 40}):
        pass


def test_a_log_with_a_damaged_first_header_is_skipped() -> None:
    log, _ = two_logs()
    log.directory.close()
    log.storage.overwrite(f"t-0/{0:020d}.log", 16, b"\x07")
    again = Compacted(storage=log.storage)
    other = again.directory.open_log("u", 0, config=COMPACT, now_ms=NOW_MS)
    clean_two(again)
    assert other.size_bytes < again.log.size_bytes


def test_an_exception_affects_one_log_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log, other = two_logs()
    before = log.records()
    replace = PartitionLog.replace_segments

    def fail(self: PartitionLog, old: Sequence[LogSegment], cleaned: LogSegment) -> None:
        if self is log.log:
            raise RuntimeError("a bug")
        replace(self, old, cleaned)

    with monkeypatch.context() as patch:
        patch.setattr(PartitionLog, "replace_segments", fail)
        clean_two(log)
    assert log.records() == before
    assert other.size_bytes < log.log.size_bytes
    assert "RuntimeError: a bug" in caplog.text
    assert set(read_offsets(log.storage, CLEANER_OFFSET_FILE)) == {("u", 0)}
    clean_two(log)
    assert log.records() == before


def test_a_deleted_log_that_failed_compaction_is_released(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL)  # Captured logs would keep tracebacks alive.
    log, _ = two_logs()
    log.storage.overwrite(f"t-0/{0:020d}.log", 70, b"\xff")
    clean_two(log)
    log.directory.delete_log("t", 0, topic_id="id")
    gone = weakref.ref(log.log)
    del log.log
    log.directory.clean(NOW_MS, {})
    gc.collect()
    assert gone() is None


def test_a_full_disk_postpones_compaction() -> None:
    log = Compacted()
    log.fill(40)
    before = last_values(log.records())
    log.storage.fail_on("append")
    log.clean()
    log.storage.fail_on(None)
    assert last_values(log.records()) == before
    assert read_offsets(log.storage, CLEANER_OFFSET_FILE) == {}
    log.clean()
    assert read_offsets(log.storage, CLEANER_OFFSET_FILE) != {}
    assert len(log.records()) < 40


def test_an_interrupted_compaction_loses_nothing() -> None:
    """Each storage operation of a compaction fails once, with a power loss."""
    for step in range(1, 400):
        log = Compacted(small(**_fields(COMPACT, segment_bytes=250)))
        log.fill(16, keys=4)
        log.append((b"k0", None), producer=(3, 0, 0))
        log.log.flush()
        log.directory.checkpoint()
        expected, end = last_values(log.records()), log.log.log_end_offset
        log.storage.fail_after(step)
        log.directory.clean(NOW_MS, {KEY: end}, budget_bytes=10**9)
        finished = log.storage.fail_after(None)
        for seed in range(2):
            again = Compacted(storage=log.storage.crash(Random(seed)))
            assert again.log.log_end_offset == end
            assert last_values(again.records()) == expected
            assert [e.last_sequence for e in again.log.producer_entries] == [0]
            again.clean()
            assert last_values(again.records()) == expected
            names = again.storage.list("t-0")
            assert not any(name.endswith((".cleaned", ".swap")) for name in names)
        if finished:
            return
    raise AssertionError("the compaction never completed")


def test_offsets_are_not_used_again_after_a_compaction_and_a_power_loss() -> None:
    """Records without a key, from a time before the topic was compacted, are removed."""
    log = Compacted(small(**_fields(COMPACT, cleanup_policy=("delete",))))
    for _ in range(8):
        batch = encode_batch([Record(timestamp=NOW_MS, value=b"v")])
        log.log.append(batch, leader_epoch=0, now_ms=NOW_MS)
    log.roll()
    log.log.update_config(COMPACT)
    log.clean()
    assert log.records() == []
    for seed in range(20):
        again = Compacted(storage=log.storage.crash(Random(seed)))
        assert again.log.log_end_offset == 8


ENTRY = st.tuples(
    st.sampled_from([b"a", b"b", b"c", b"d"]), st.one_of(st.none(), st.binary(max_size=30))
)


@pytest.mark.slow
@given(
    batches=st.lists(st.lists(ENTRY, min_size=1, max_size=5), min_size=1, max_size=40),
    rounds=st.lists(st.integers(1, 40), max_size=4),
    codec=st.sampled_from(list(Compression)),
)
def test_a_read_from_any_offset_returns_the_last_values(
    batches: list[list[Entry]], rounds: list[int], codec: Compression
) -> None:
    log = Compacted(small(**_fields(COMPACT, delete_retention_ms=10**9)))
    written: list[Record] = []
    for index, entries in enumerate(batches):
        log.append(*entries, codec=codec)
        written += [
            Record(offset=len(written) + i, key=key, value=value)
            for i, (key, value) in enumerate(entries)
        ]
        if index in rounds:
            log.clean()
    log.clean()
    found = {record.offset: record for record in log.records()}
    for offset in range(len(written)):
        expected = last_values(written[offset:])
        assert last_values([r for o, r in sorted(found.items()) if o >= offset]) == expected
        data = log.log.read(
            offset, end_offset=log.log.log_end_offset, max_bytes=0, at_least_one_batch=True
        )
        assert unpack_header(data).last_offset >= offset
    assert all((found[o].key, found[o].value) == (written[o].key, written[o].value) for o in found)


def _fields(config: LogConfig, **changes: object) -> dict[str, object]:
    names = ("cleanup_policy", "segment_bytes", "index_interval_bytes", "min_cleanable_dirty_ratio")
    return {name: getattr(config, name) for name in names} | changes
