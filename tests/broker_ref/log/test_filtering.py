"""Tests of the compaction of one batch: invalid records, and limited memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest
from kio.schema.errors import ErrorCode

from broker_ref.log import filtering
from broker_ref.log.batch import (
    HEADER_BYTES,
    Compression,
    Record,
    decode_records,
    encode_batch,
    unpack_header,
)
from broker_ref.log.config import LONG_MAX
from broker_ref.log.errors import LogError
from broker_ref.log.filtering import filter_batch
from broker_ref.log.records import RecordView, encode_record
from tests.broker_ref.log.batches import NOW_MS, batch, compressed, patched, with_section


def filtered(
    data: bytes, retain: Callable[[RecordView], bool], *, horizon_ms: int | None = None
) -> bytes | None:
    return filter_batch(
        unpack_header(data),
        memoryview(data),
        retain=retain,
        retain_empty=False,
        new_delete_horizon_ms=horizon_ms,
    )


def odd(view: RecordView) -> bool:
    return view.offset_delta % 2 == 1


def of_deltas(*deltas: tuple[int, int]) -> bytes:
    """Encode a batch of records with these offset and timestamp deltas."""
    section = b"".join(
        encode_record(Record(key=b"k"), offset_delta=offset, timestamp_delta=timestamp)
        for offset, timestamp in deltas
    )
    return with_section(batch(len(deltas)), section, Compression.NONE)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(patched(of_deltas((0, 0), (1, 1)), base_timestamp=LONG_MAX), id="time"),
        pytest.param(patched(of_deltas((0, 0), (1, -1)), base_timestamp=-(2**63)), id="past"),
        pytest.param(of_deltas((0, 0), (2, 0)), id="offset above"),
        pytest.param(of_deltas((-1, 0), (1, 0)), id="offset below"),
        pytest.param(of_deltas((1, 0), (1, 0)), id="offset twice"),
    ],
)
def test_invalid_records_are_rejected(data: bytes) -> None:
    with pytest.raises(LogError) as error:
        filtered(data, odd)
    assert error.value.error_code is ErrorCode.invalid_record


@pytest.mark.parametrize(("timestamp", "fits"), [(-1, True), (-2, False)])
def test_a_timestamp_too_far_from_the_horizon_is_rejected(timestamp: int, fits: bool) -> None:
    data = encode_batch([Record(timestamp=timestamp, key=b"k", value=None)])
    if fits:
        left = filtered(data, lambda _: True, horizon_ms=LONG_MAX)
        assert left is not None
        assert unpack_header(left).delete_horizon_ms == LONG_MAX
        assert list(decode_records(left)) == list(decode_records(data))
        return
    with pytest.raises(LogError) as error:
        filtered(data, lambda _: True, horizon_ms=LONG_MAX)
    assert error.value.error_code is ErrorCode.invalid_record


@pytest.mark.parametrize("horizon_ms", [None, NOW_MS + 5])
@pytest.mark.parametrize("wants", [odd, lambda _: True, lambda _: False])
def test_large_batches_are_filtered_like_small_ones(
    wants: Callable[[RecordView], bool], horizon_ms: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [
        Record(timestamp=NOW_MS + i, key=b"%d" % i, value=b"v" if i % 3 else None)
        for i in range(20)
    ]
    data = compressed(encode_batch(records), Compression.ZSTD)
    held = filtered(data, wants, horizon_ms=horizon_ms)
    monkeypatch.setattr(filtering, "_RECORDS_HELD_MAX", 0)
    assert filtered(data, wants, horizon_ms=horizon_ms) == held
    if wants is odd:
        assert held is not None
        assert [r.timestamp for r in decode_records(held)] == [r.timestamp for r in records[1::2]]
        assert unpack_header(held).max_timestamp == NOW_MS + 19
        assert unpack_header(held).delete_horizon_ms == horizon_ms


@pytest.mark.slow
def test_large_batches_are_not_in_memory_as_a_whole() -> None:
    data = compressed(batch(20_000), Compression.ZSTD)
    plain_bytes = 20_000 * len(batch()[HEADER_BYTES:])
    tracemalloc.start()
    left = filtered(data, lambda view: view.offset_delta != 5)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert left is not None
    assert unpack_header(left).record_count == 19_999
    assert peak_bytes < 20 * plain_bytes
