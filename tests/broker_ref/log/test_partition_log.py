"""Tests of one log: append, read, timestamp look-up and retention."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from broker_ref.log.batch import (
    HEADER_BYTES,
    Compression,
    TimestampType,
    crc_matches,
    decode_records,
    encode_batch,
    unpack_header,
)
from broker_ref.log.config import LogConfig
from broker_ref.log.errors import LogError, RecordValidationError
from broker_ref.log.partition_log import AppendResult, PartitionLog
from broker_ref.log.records import Record, encode_record
from tests.broker_ref.log.batches import NOW_MS, batch, compressed, patched, with_section
from tests.broker_ref.log.logs import open_log, read_all, small, split
from tests.broker_ref.memory_storage import MemoryStorage


def append(
    log: PartitionLog, data: bytes, *, leader_epoch: int = 0, now_ms: int = NOW_MS
) -> AppendResult:
    return log.append(data, leader_epoch=leader_epoch, now_ms=now_ms)


def filled(
    storage: MemoryStorage, counts: list[int], config: LogConfig | None = None
) -> PartitionLog:
    """Return a log with one batch per count; each record is one millisecond later."""
    log = open_log(storage, config=config or small())
    timestamp = NOW_MS
    for count in counts:
        append(log, batch(count, timestamp=timestamp))
        timestamp += count
    return log


def refused(log: PartitionLog, data: bytes, *, now_ms: int = NOW_MS) -> LogError:
    before = (log.log_end_offset, log.size_bytes, log.producer_entries)
    with pytest.raises(LogError) as error:
        append(log, data, now_ms=now_ms)
    assert (log.log_end_offset, log.size_bytes, log.producer_entries) == before
    return error.value


# Appends


def test_appended_batches_get_consecutive_offsets() -> None:
    log = open_log(MemoryStorage())
    first = append(log, batch(3), leader_epoch=4)
    second = append(log, compressed(batch(2), Compression.ZSTD), leader_epoch=5)
    assert (first.base_offset, first.last_offset) == (0, 2)
    assert (second.base_offset, second.last_offset) == (3, 4)
    assert (second.log_append_time_ms, second.log_start_offset) == (-1, 0)
    assert not second.is_duplicate
    batches = read_all(log)
    assert [unpack_header(b).partition_leader_epoch for b in batches] == [4, 5]
    assert [r.offset for b in batches for r in decode_records(b)] == [0, 1, 2, 3, 4]
    assert all(crc_matches(b) for b in batches)
    assert log.leader_epochs.entries == ((4, 0), (5, 3))


def test_log_append_time_sets_timestamps() -> None:
    log = open_log(
        MemoryStorage(), config=small(message_timestamp_type=TimestampType.LOG_APPEND_TIME)
    )
    result = append(log, batch(2, timestamp=1), now_ms=NOW_MS + 7)
    assert result.log_append_time_ms == NOW_MS + 7
    (stored,) = read_all(log)
    assert [r.timestamp for r in decode_records(stored)] == [NOW_MS + 7] * 2


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (batch() + batch(), ErrorCode.invalid_record),
        (b"", ErrorCode.invalid_record),
        (patched(batch(), base_offset=1), ErrorCode.invalid_record),
        (batch(value=bytes(2000)), ErrorCode.message_too_large),
        (batch(value=bytes(1000)), ErrorCode.record_list_too_large),
        (patched(batch(), attributes=0x10, producer_id=1, base_sequence=0),
         ErrorCode.invalid_txn_state),
        (patched(batch(), attributes=0x08, max_timestamp=-1), ErrorCode.invalid_timestamp),
    ],
)  # fmt: skip
def test_a_rejected_batch_changes_nothing(data: bytes, code: ErrorCode) -> None:
    log = filled(MemoryStorage(), [1], small(max_message_bytes=1500))
    assert refused(log, data).error_code is code


def test_max_message_bytes_is_inclusive() -> None:
    data = batch(value=bytes(100))
    log = open_log(MemoryStorage(), config=small(max_message_bytes=len(data)))
    append(log, data)
    assert refused(log, batch(value=bytes(101))).error_code is ErrorCode.message_too_large


def test_future_timestamps_are_rejected_by_record() -> None:
    log = open_log(MemoryStorage(), config=small(message_timestamp_after_max_ms=1000))
    append(log, batch(timestamp=NOW_MS + 1000))
    error = refused(log, batch(3, timestamp=NOW_MS + 999))
    assert isinstance(error, RecordValidationError)
    assert error.error_code is ErrorCode.invalid_timestamp
    assert [e.batch_index for e in error.record_errors] == [2]
    assert str(NOW_MS + 1001) in error.record_errors[0].message


def test_a_max_timestamp_without_a_record_is_rejected() -> None:
    log = open_log(MemoryStorage())
    error = refused(log, patched(batch(), max_timestamp=NOW_MS + 10**12))
    assert error.error_code is ErrorCode.invalid_timestamp


def test_old_timestamps_are_rejected_if_limited() -> None:
    log = open_log(MemoryStorage(), config=small(message_timestamp_before_max_ms=1000))
    append(log, batch(timestamp=NOW_MS - 1000))
    append(log, patched(batch(timestamp=-1), base_timestamp=-1, max_timestamp=-1))
    error = refused(log, compressed(batch(2, timestamp=NOW_MS - 1001), Compression.GZIP))
    assert error.error_code is ErrorCode.invalid_timestamp
    log.config = small()
    append(log, batch(timestamp=1))


def test_a_compacted_topic_rejects_records_without_a_key() -> None:
    log = open_log(MemoryStorage(), config=small(cleanup_policy=("compact",)))
    append(log, batch(key=b""))
    error = refused(log, compressed(batch(2, key=None), Compression.LZ4))
    assert isinstance(error, RecordValidationError)
    assert error.error_code is ErrorCode.invalid_record
    assert [e.batch_index for e in error.record_errors] == [0, 1]


def test_a_compacted_topic_rejects_offsets_that_are_not_consecutive() -> None:
    log = open_log(MemoryStorage(), config=small(cleanup_policy=("compact",)))
    record = encode_record(Record(key=b"k"), offset_delta=1, timestamp_delta=0)
    for codec in (Compression.NONE, Compression.GZIP):
        data = with_section(batch(2), record * 2, Compression.NONE)
        error = refused(log, compressed(data, codec) if codec else data)
        assert isinstance(error, RecordValidationError)
        assert error.error_code is ErrorCode.invalid_record
        assert [e.batch_index for e in error.record_errors] == [0]


@pytest.mark.parametrize("policy", ["compact", "delete"])
def test_bytes_after_the_batch_are_ignored(policy: str) -> None:
    log = open_log(MemoryStorage(), config=small(cleanup_policy=(policy,)))
    append(log, batch() + batch()[:-1])
    assert [unpack_header(data).size_bytes for data in read_all(log)] == [len(batch())]


def test_the_number_of_named_record_errors_is_limited() -> None:
    log = open_log(MemoryStorage(), config=small(cleanup_policy=("compact",)))
    plain = batch(150, key=None)
    garbled = with_section(plain, plain[HEADER_BYTES:-1] + b"\xff", Compression.NONE)
    error = refused(log, garbled)
    assert isinstance(error, RecordValidationError)
    assert [e.batch_index for e in error.record_errors] == list(range(100))


def test_a_producer_with_the_wrong_timestamp_type_is_rejected() -> None:
    config = small(message_timestamp_type=TimestampType.LOG_APPEND_TIME)
    log = open_log(MemoryStorage(), config=config)
    error = refused(log, patched(batch(), attributes=0x08))
    assert error.error_code is ErrorCode.invalid_timestamp


# Idempotence


def test_a_duplicate_batch_returns_the_original_offsets() -> None:
    log = open_log(MemoryStorage())
    append(log, batch(5))
    first = append(log, batch(2, producer=(9, 0, 0)))
    append(log, batch(2, producer=(9, 0, 2)))
    size = log.size_bytes
    again = append(log, batch(2, producer=(9, 0, 0)))
    assert (
        (again.base_offset, again.last_offset) == (first.base_offset, first.last_offset) == (5, 6)
    )
    assert again.is_duplicate
    assert (log.log_end_offset, log.size_bytes) == (9, size)


def test_duplicates_are_detected_before_other_producer_checks() -> None:
    log = open_log(MemoryStorage())
    append(log, batch(producer=(9, 0, 2**31 - 1)))
    append(log, batch(producer=(9, 0, 0)))
    assert append(log, batch(producer=(9, 0, 2**31 - 1))).base_offset == 0


def test_a_sequence_gap_and_an_old_epoch_are_rejected() -> None:
    log = open_log(MemoryStorage())
    append(log, batch(producer=(9, 3, 0)))
    gap = refused(log, batch(producer=(9, 3, 2)))
    assert gap.error_code is ErrorCode.out_of_order_sequence_number
    assert refused(log, batch(producer=(9, 2, 1))).error_code is ErrorCode.invalid_producer_epoch


def test_a_rejected_or_failed_append_does_not_change_producer_state() -> None:
    storage = MemoryStorage()
    log = open_log(storage)
    append(log, batch(producer=(9, 0, 0)))
    storage.fail_on("append")
    failed = refused(log, batch(producer=(9, 0, 1)))
    assert failed.error_code is ErrorCode.kafka_storage_error
    storage.fail_on(None)
    assert [entry.last_sequence for entry in log.producer_entries] == [0]


def test_after_a_storage_failure_appends_are_rejected_until_reopened() -> None:
    storage = MemoryStorage()
    log = filled(storage, [1, 1])
    storage.fail_on("append")
    assert "No space left" in str(refused(log, batch()))
    storage.fail_on(None)
    assert refused(log, batch()).error_code is ErrorCode.kafka_storage_error
    assert len(read_all(log)) == 2
    log.close()
    assert append(open_log(storage, clean=False), batch()).base_offset == 2


def test_a_read_error_does_not_change_the_log() -> None:
    storage = MemoryStorage()
    log = filled(storage, [1, 1])
    storage.fail_on("read")
    with pytest.raises(LogError, match="orders-0") as caught:
        read_all(log)
    assert caught.value.error_code is ErrorCode.kafka_storage_error
    storage.fail_on(None)
    assert append(log, batch()).base_offset == 2
    assert len(read_all(log)) == 3


# Reads


def test_reads_return_whole_batches_within_the_limit() -> None:
    log = filled(MemoryStorage(), [2] * 5, LogConfig())
    size = log.size_bytes // 5

    def read(start: int, max_bytes: int, *, end: int = 10, one: bool = True) -> list[int]:
        data = log.read(start, end_offset=end, max_bytes=max_bytes, at_least_one_batch=one)
        return [unpack_header(b).base_offset for b in split(data)]

    assert read(0, 10_000) == [0, 2, 4, 6, 8]
    assert read(0, size * 2) == [0, 2]
    assert read(0, size * 2 - 1) == [0]
    assert read(0, size * 3 - 1) == [0, 2]
    assert read(0, 1) == [0]
    assert read(0, 1, one=False) == []
    assert read(0, 0) == [0]
    assert read(5, 10_000) == [4, 6, 8]
    assert read(2, 10_000, end=6) == [2, 4]
    assert read(2, 10_000, end=5) == [2]
    assert read(2, 1, end=3) == []
    assert read(10, 10_000) == []
    assert read(7, 10_000, end=7) == []


@pytest.mark.parametrize("offset", [-1, 3, 11])
def test_offsets_outside_the_log_are_out_of_range(offset: int) -> None:
    log = filled(MemoryStorage(), [1] * 10)
    log.delete_records_before(4)
    with pytest.raises(LogError) as error:
        log.read(offset, end_offset=10, max_bytes=1, at_least_one_batch=True)
    assert error.value.error_code is ErrorCode.offset_out_of_range


@given(
    counts=st.lists(st.integers(1, 9), min_size=1, max_size=40),
    max_bytes=st.integers(0, 1500),
    interval=st.sampled_from([0, 150, 5000]),
)
def test_every_offset_is_found_across_segments_and_index_intervals(
    counts: list[int], max_bytes: int, interval: int
) -> None:
    log = filled(MemoryStorage(), counts, small(index_interval_bytes=interval))
    batches = read_all(log, max_bytes=max_bytes)
    assert [unpack_header(b).record_count for b in batches] == counts
    for offset in range(log.log_end_offset):
        data = log.read(offset, end_offset=10**9, max_bytes=max_bytes, at_least_one_batch=True)
        header = unpack_header(data)
        assert header.base_offset <= offset <= header.last_offset
    log.close()


def test_a_segment_rolls_by_size_time_and_index() -> None:
    by_size = filled(MemoryStorage(), [1] * 20)
    assert len(by_size.segment_base_offsets) > 1
    by_time = open_log(MemoryStorage(), config=LogConfig(segment_ms=100))
    for offset in (0, 100, 101, 150, 202):
        append(by_time, batch(timestamp=NOW_MS + offset))
    assert by_time.segment_base_offsets == (0, 2, 4)
    without_timestamps = open_log(MemoryStorage(), config=LogConfig(segment_ms=100))
    data = patched(batch(timestamp=-1), base_timestamp=-1, max_timestamp=-1)
    for now in (0, 100, 101):
        append(without_timestamps, data, now_ms=NOW_MS + now)
    assert without_timestamps.segment_base_offsets == (0, 2)
    by_index = filled(
        MemoryStorage(), [1] * 9, LogConfig(index_interval_bytes=0, segment_index_bytes=36)
    )
    assert by_index.segment_base_offsets == (0, 3, 6)


# Timestamp look-ups


@given(
    steps=st.lists(st.tuples(st.integers(1, 5), st.integers(-50, 50)), min_size=1, max_size=30),
    target=st.integers(-60, 400),
    start=st.integers(0, 40),
    codec=st.sampled_from([None, Compression.ZSTD]),
)
def test_timestamp_lookups_match_a_full_scan(
    steps: list[tuple[int, int]], target: int, start: int, codec: Compression | None
) -> None:
    log = open_log(MemoryStorage())
    timestamps: list[int] = []
    now = NOW_MS
    for count, step in steps:
        now += step
        data = batch(count, timestamp=now)
        append(log, compressed(data, codec) if codec else data)
        timestamps += range(now, now + count)
    start = min(start, len(timestamps))
    log.delete_records_before(start)
    for end in (len(timestamps), len(timestamps) // 2):
        hits = [
            (timestamp, offset)
            for offset, timestamp in enumerate(timestamps)
            if offset >= start and timestamp >= NOW_MS + target
        ]
        expected = hits[0] if hits and hits[0][1] < end else None
        found = log.offset_for_timestamp(NOW_MS + target, end_offset=end)
        assert (None if found is None else (found.timestamp_ms, found.offset)) == expected
    newest = max(timestamps)
    found = log.offset_of_max_timestamp(end_offset=len(timestamps))
    assert found is not None
    assert (found.timestamp_ms, found.offset) == (newest, timestamps.index(newest))
    assert log.offset_of_max_timestamp(end_offset=timestamps.index(newest)) is None


def test_timestamp_lookups_return_the_leader_epoch() -> None:
    log = open_log(MemoryStorage())
    for epoch in range(5):
        append(log, batch(2, timestamp=NOW_MS + epoch * 10), leader_epoch=epoch)
    found = log.offset_for_timestamp(NOW_MS + 21, end_offset=10)
    assert found is not None
    assert (found.offset, found.leader_epoch) == (5, 2)
    assert log.leader_epochs.epoch_for_offset(5) == 2


def test_timestamp_lookup_without_timestamps_finds_nothing() -> None:
    log = open_log(MemoryStorage())
    append(log, patched(batch(timestamp=-1), base_timestamp=-1, max_timestamp=-1))
    assert log.offset_for_timestamp(0, end_offset=1) is None
    assert log.offset_of_max_timestamp(end_offset=1) is None
    assert open_log(MemoryStorage()).offset_of_max_timestamp(end_offset=0) is None


def test_timestamp_lookup_under_log_append_time_finds_the_first_record() -> None:
    config = small(message_timestamp_type=TimestampType.LOG_APPEND_TIME)
    log = open_log(MemoryStorage(), config=config)
    append(log, batch(3), now_ms=NOW_MS)
    append(log, batch(3), now_ms=NOW_MS + 10)
    found = log.offset_for_timestamp(NOW_MS + 1, end_offset=6)
    assert found is not None
    assert (found.offset, found.timestamp_ms) == (3, NOW_MS + 10)


def test_timestamp_lookup_ends_at_a_wrong_max_timestamp() -> None:
    log = open_log(MemoryStorage())
    append(log, encode_batch([Record(timestamp=NOW_MS + 50), Record(timestamp=NOW_MS)]))
    log.delete_records_before(1)
    empty = patched(batch()[:HEADER_BYTES], base_offset=2, length=HEADER_BYTES - 12,
                    record_count=0, max_timestamp=NOW_MS + 50)  # fmt: skip
    log.append_as_follower(empty, now_ms=NOW_MS)
    append(log, patched(batch(), max_timestamp=NOW_MS + 40))
    append(log, batch(timestamp=NOW_MS + 45))
    found = log.offset_for_timestamp(NOW_MS + 41, end_offset=5)
    assert found is not None
    assert found.offset == 4, "removed records do not end the lookup"
    with pytest.raises(LogError) as error:
        log.offset_for_timestamp(NOW_MS + 30, end_offset=5)
    assert error.value.error_code is ErrorCode.invalid_record
    append(log, patched(batch(), max_timestamp=NOW_MS + 60))
    assert log.offset_of_max_timestamp(end_offset=5) is None
    with pytest.raises(LogError) as error:
        log.offset_of_max_timestamp(end_offset=6)
    assert error.value.error_code is ErrorCode.invalid_record


# Retention


def test_retention_by_size_keeps_at_least_the_limit() -> None:
    log = filled(MemoryStorage(), [1] * 100)
    log.config = small(retention_bytes=3000)
    assert log.apply_retention(NOW_MS) > 0
    assert 3000 <= log.size_bytes < 3000 + 1000
    assert log.log_start_offset == log.segment_base_offsets[0] > 0
    assert log.apply_retention(NOW_MS) == 0
    assert unpack_header(read_all(log)[0]).base_offset == log.log_start_offset


def test_retention_by_time_includes_the_active_segment() -> None:
    storage = MemoryStorage()
    log = filled(storage, [1] * 30, small(retention_ms=1000))
    segments = len(log.segment_base_offsets)
    assert log.apply_retention(NOW_MS + 1000) == 0
    assert log.apply_retention(NOW_MS + 29 + 1001) == segments
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (30, 30, 0)
    assert append(log, batch()).base_offset == 30
    names = storage.list("orders-0")
    assert [name for name in names if name.endswith(".log")] == ["00000000000000000030.log"]


def test_retention_by_time_uses_the_newest_record_of_a_segment() -> None:
    log = open_log(MemoryStorage(), config=LogConfig(segment_bytes=100, retention_ms=1000))
    for timestamp in (0, 5000, 10):
        append(log, batch(2, timestamp=NOW_MS + timestamp))
    assert log.segment_base_offsets == (0, 2, 4)
    assert log.apply_retention(NOW_MS + 2000) == 1
    assert log.log_start_offset == 2


def test_retention_stops_at_the_high_watermark() -> None:
    log = filled(MemoryStorage(), [1] * 30, small(retention_ms=0))
    second = log.segment_base_offsets[1]
    assert log.apply_retention(NOW_MS + 9999, high_watermark=second + 1) == 1
    assert log.log_start_offset == second


@pytest.mark.parametrize(("policy", "kept"), [(("compact",), True), (("compact", "delete"), False)])
def test_retention_requires_the_delete_policy(policy: tuple[str, ...], kept: bool) -> None:
    log = filled(MemoryStorage(), [1] * 30)
    log.config = small(cleanup_policy=policy, retention_ms=1, retention_bytes=1)
    log.apply_retention(NOW_MS + 9999)
    assert (log.log_start_offset == 0) is kept


def test_unlimited_retention_keeps_everything() -> None:
    log = filled(MemoryStorage(), [1] * 30, small(retention_ms=-1, retention_bytes=-1))
    assert log.apply_retention(NOW_MS + 10**12) == 0


def test_delete_records_raises_the_start_and_retention_removes_segments() -> None:
    storage = MemoryStorage()
    log = filled(storage, [3] * 20)
    bases = log.segment_base_offsets
    assert log.delete_records_before(bases[2] + 1) == bases[2] + 1
    assert log.delete_records_before(5) == bases[2] + 1
    assert log.segment_base_offsets == bases
    assert log.apply_retention(NOW_MS) == 2
    assert log.segment_base_offsets == bases[2:]
    assert log.leader_epochs.entries == ((0, bases[2] + 1),)
    assert unpack_header(read_all(log)[0]).base_offset == bases[2]
    assert not any(name.startswith(f"{bases[1]:020d}") for name in storage.list("orders-0"))


def test_delete_records_up_to_the_log_end() -> None:
    log = filled(MemoryStorage(), [1] * 3)
    assert log.delete_records_before(3) == 3
    assert read_all(log) == []
    for offset in (-1, 4):
        with pytest.raises(LogError) as error:
            log.delete_records_before(offset)
        assert error.value.error_code is ErrorCode.offset_out_of_range


# Durability


def test_the_log_is_flushed_after_flush_messages_and_flush_ms() -> None:
    log = open_log(MemoryStorage(), config=LogConfig(flush_messages=3, flush_ms=1000))
    append(log, batch(2))
    assert log.recovery_point == 0
    append(log, batch(1))
    assert log.recovery_point == 3
    append(log, batch(1), now_ms=NOW_MS + 10)
    log.flush_if_due(NOW_MS + 999)
    assert log.recovery_point == 3
    log.flush_if_due(NOW_MS + 1000)
    assert log.recovery_point == 4
