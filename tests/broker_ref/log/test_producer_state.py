"""Tests of producer state: the table, expiry, and the snapshot format."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c
from kio.schema.errors import ErrorCode

from broker_ref.log.batch import SEQUENCE_MAX, BatchHeader, unpack_header
from broker_ref.log.errors import LogError
from broker_ref.log.producer_snapshots import decode_snapshot, encode_snapshot
from broker_ref.log.producer_state import ProducerStateManager
from tests.broker_ref.log.batches import NOW_MS, batch, patched


def written(
    sequence: int, *, epoch: int = 0, count: int = 1, offset: int = 0, producer_id: int = 7
) -> BatchHeader:
    data = batch(count, producer=(producer_id, epoch, sequence))
    return unpack_header(patched(data, base_offset=offset))


def state_after(*headers: BatchHeader) -> ProducerStateManager:
    state = ProducerStateManager()
    for header in headers:
        assert state.duplicate_of(header) is None
        state.check(header)
        state.update(header)
    return state


def refused(state: ProducerStateManager, header: BatchHeader) -> ErrorCode:
    assert state.duplicate_of(header) is None
    with pytest.raises(LogError) as error:
        state.check(header)
    return error.value.error_code


def test_an_unknown_producer_may_start_with_any_sequence() -> None:
    state_after(written(0))
    state_after(written(12345, epoch=3))


def test_the_next_sequence_is_the_only_one_accepted() -> None:
    state = state_after(written(0, count=3))
    state.check(written(3))
    for sequence in (0, 1, 2, 4, 100):
        assert refused(state, written(sequence)) is ErrorCode.out_of_order_sequence_number


def test_the_last_five_batches_are_duplicates() -> None:
    state = state_after(*(written(i * 2, count=2, offset=100 + i * 2) for i in range(6)))
    for i in range(1, 6):
        found = state.duplicate_of(written(i * 2, count=2))
        assert found is not None
        assert (found.first_offset, found.last_offset) == (100 + i * 2, 101 + i * 2)
    assert refused(state, written(0, count=2)) is ErrorCode.out_of_order_sequence_number


def test_a_duplicate_must_have_the_same_first_and_last_sequence_and_epoch() -> None:
    state = state_after(written(0, count=4))
    assert state.duplicate_of(written(0, count=4)) is not None
    assert state.duplicate_of(written(0, count=3)) is None
    assert state.duplicate_of(written(1, count=3)) is None
    assert state.duplicate_of(written(0, count=4, epoch=1)) is None
    assert state.duplicate_of(written(0, count=4, producer_id=8)) is None


def test_an_older_epoch_is_fenced_even_with_the_next_sequence() -> None:
    state = state_after(written(0, epoch=2))
    assert refused(state, written(1, epoch=1)) is ErrorCode.invalid_producer_epoch


def test_a_new_epoch_starts_at_sequence_zero() -> None:
    state = state_after(written(0), written(1))
    assert refused(state, written(2, epoch=1)) is ErrorCode.out_of_order_sequence_number
    state.update(written(0, epoch=1))
    assert state.duplicate_of(written(1)) is None
    assert refused(state, written(1)) is ErrorCode.invalid_producer_epoch
    state.check(written(1, epoch=1))


def test_sequences_wrap_to_zero() -> None:
    state = state_after(written(SEQUENCE_MAX, offset=9))
    assert refused(state, written(1)) is ErrorCode.out_of_order_sequence_number
    state.check(written(0))
    across = state_after(written(SEQUENCE_MAX - 1, count=4, offset=50))
    assert across.entries[0].last_sequence == 1
    duplicate = across.duplicate_of(written(SEQUENCE_MAX - 1, count=4))
    assert duplicate is not None
    assert duplicate.first_offset == 50
    across.check(written(2))


def test_checking_changes_nothing() -> None:
    state = state_after(written(0))
    for header in (written(1), written(0, epoch=5), written(9, producer_id=99)):
        try:
            state.check(header)
        except LogError:
            pytest.fail("these values are valid")
    assert [(e.producer_id, e.epoch, e.last_sequence) for e in state.entries] == [(7, 0, 0)]


def test_idle_producers_expire_unless_their_transaction_is_open() -> None:
    state = state_after(written(0), written(0, producer_id=8))
    state.entries[1].current_txn_first_offset = 1
    state.expire(NOW_MS + 999, expiration_ms=1_000)
    assert len(state.entries) == 2
    state.expire(NOW_MS + 1_000, expiration_ms=1_000)
    assert [entry.producer_id for entry in state.entries] == [8]


def test_batches_without_a_producer_id_have_no_state() -> None:
    state = state_after(unpack_header(batch()))
    assert state.entries == ()


def test_a_snapshot_contains_each_producers_last_batch() -> None:
    state = state_after(
        written(0, count=2, offset=3), written(2, offset=9), written(5, epoch=4, producer_id=8)
    )
    entries = decode_snapshot(encode_snapshot(state.entries))
    assert entries is not None
    restored = ProducerStateManager()
    restored.load(entries)
    restored.check(written(3))
    restored.check(written(6, epoch=4, producer_id=8))
    assert restored.duplicate_of(written(2)) is not None
    assert restored.duplicate_of(written(0, count=2)) is None
    assert encode_snapshot(restored.entries) == encode_snapshot(state.entries)


def test_the_snapshot_format_is_kafkas() -> None:
    state = state_after(written(4, count=3, offset=20, epoch=2))
    body = struct.pack("!iqhiqiqiq", 1, 7, 2, 6, 22, 2, NOW_MS + 2, -1, -1)
    assert encode_snapshot(state.entries) == struct.pack("!hI", 1, crc32c(body)) + body


@pytest.mark.parametrize("damage", ["cut", "flipped", "version", "empty"])
def test_a_damaged_snapshot_is_detected(damage: str) -> None:
    good = encode_snapshot(state_after(written(0)).entries)
    flipped = bytearray(good)
    flipped[15] ^= 1
    bad = {
        "cut": good[:-1],
        "flipped": bytes(flipped),
        "version": b"\x00\x09" + good[2:],
        "empty": b"",
    }
    assert decode_snapshot(bad[damage]) is None
