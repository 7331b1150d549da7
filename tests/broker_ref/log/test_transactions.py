"""Tests of transactions in one log: verification, markers and the last stable offset."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
from kio.schema.errors import ErrorCode

from broker_ref.log.append import AppendOrigin
from broker_ref.log.batch import NO_SEQUENCE
from broker_ref.log.control import Marker
from broker_ref.log.errors import CorruptLogError, LogError
from broker_ref.log.partition_log import PartitionLog
from broker_ref.log.producer_state import EPOCH_MAX
from broker_ref.log.transaction_index import AbortedTransaction
from broker_ref.log.verification_guards import VerificationGuard
from tests.broker_ref.log.batches import NOW_MS, batch
from tests.broker_ref.log.logs import DIRECTORY, open_log, read_all, small
from tests.broker_ref.log.transactions import Writer, transactional
from tests.broker_ref.memory_storage import MemoryStorage

COMMIT = Marker.COMMIT
FENCED = ErrorCode.invalid_producer_epoch


@pytest.fixture
def log() -> PartitionLog:
    return open_log(MemoryStorage())


def append(
    log: PartitionLog,
    data: bytes,
    guard: VerificationGuard | None = None,
    origin: AppendOrigin = AppendOrigin.CLIENT,
) -> int:
    return log.append(data, leader_epoch=0, now_ms=NOW_MS, guard=guard, origin=origin).base_offset


def refused(
    log: PartitionLog,
    data: bytes,
    guard: VerificationGuard | None = None,
    origin: AppendOrigin = AppendOrigin.CLIENT,
) -> ErrorCode:
    """Return the error code of a rejected append, which must change nothing."""
    before = state(log)
    with pytest.raises(LogError) as error:
        append(log, data, guard, origin)
    assert state(log) == before
    return error.value.error_code


def state(log: PartitionLog) -> object:
    end = log.log_end_offset
    entries = [replace(entry, batches=entry.batches.copy()) for entry in log.producer_entries]
    return end, log.size_bytes, entries, log.last_stable_offset(end)


def begin(log: PartitionLog, **fields: int | bool) -> VerificationGuard | None:
    requested = {"producer_id": 7, "epoch": 0, "sequence": 0, "supports_epoch_bump": False} | fields
    return log.producers.maybe_start_transaction_verification(
        requested["producer_id"],
        requested["epoch"],
        requested["sequence"],
        supports_epoch_bump=bool(requested["supports_epoch_bump"]),
        now_ms=NOW_MS,
    )


# Start of a transaction


def test_a_transaction_requires_the_guard_of_its_verification(log: PartitionLog) -> None:
    first = transactional(7)
    assert refused(log, first) is ErrorCode.invalid_txn_state
    assert refused(log, first, VerificationGuard()) is ErrorCode.invalid_txn_state
    guard = begin(log)
    assert refused(log, first) is ErrorCode.invalid_txn_state
    assert append(log, first, guard) == 0
    assert begin(log, sequence=1) is None  # An open transaction needs no verification.
    assert append(log, transactional(7, sequence=1)) == 1


def test_a_guard_is_valid_for_its_producer_only(log: PartitionLog) -> None:
    begin(log, producer_id=8)
    assert refused(log, transactional(8), begin(log)) is ErrorCode.invalid_txn_state


@pytest.mark.parametrize("marker", list(Marker))
def test_batches_after_the_marker_are_rejected(log: PartitionLog, marker: Marker) -> None:
    writer = Writer(log=log, producer_id=7)
    writer.write()
    writer.end(marker)
    assert refused(log, transactional(7, sequence=1)) is ErrorCode.invalid_txn_state


def test_a_marker_invalidates_the_guard(log: PartitionLog) -> None:
    guard = begin(log)
    Writer(log=log, producer_id=7).abort()
    assert refused(log, transactional(7), guard) is ErrorCode.invalid_txn_state
    # This guard verifies another transaction.
    again = begin(log)
    assert again is not guard
    assert refused(log, transactional(7), guard) is ErrorCode.invalid_txn_state
    assert append(log, transactional(7), again) == 1


@pytest.mark.parametrize("marker", list(Marker))
def test_a_guard_survives_the_marker_of_the_previous_transaction(
    log: PartitionLog, marker: Marker
) -> None:
    """In version 2 the previous marker has the epoch of the transaction that is being verified."""
    guard = begin(log, epoch=1, supports_epoch_bump=True)
    Writer(log=log, producer_id=7, epoch=1).end(marker)
    assert append(log, transactional(7, epoch=1), guard) == 1
    # The transaction's own marker has a higher epoch and invalidates the guard.
    guard = begin(log, epoch=2, supports_epoch_bump=True)
    Writer(log=log, producer_id=7, epoch=3).end(marker)
    assert refused(log, transactional(7, epoch=3), guard) is ErrorCode.invalid_txn_state


def test_a_replicated_batch_invalidates_the_guard(log: PartitionLog) -> None:
    guard = begin(log)
    there = open_log(MemoryStorage())
    Writer(log=there, producer_id=7).commit()
    log.append_as_follower(b"".join(read_all(there)), now_ms=NOW_MS)
    assert refused(log, transactional(7), guard) is ErrorCode.invalid_txn_state


def test_the_next_epoch_is_another_transaction(log: PartitionLog) -> None:
    """In version 2 the marker of the previous transaction may not have arrived yet."""
    writer = Writer(log=log, producer_id=7)
    writer.write()
    following = transactional(7, epoch=1)
    assert refused(log, following) is ErrorCode.invalid_txn_state
    assert append(log, following, begin(log, epoch=1, supports_epoch_bump=True)) == 1


def test_an_older_epoch_is_not_verified(log: PartitionLog) -> None:
    writer = Writer(log=log, producer_id=7, epoch=3)
    writer.write()
    for data in (transactional(7, epoch=2, sequence=1), batch(producer=(7, 2, 1))):
        assert refused(log, data) is FENCED
    with pytest.raises(LogError) as error:
        begin(log, epoch=2)
    assert error.value.error_code is FENCED


def test_an_older_epoch_is_fenced_with_any_sequence(log: PartitionLog) -> None:
    """`ProducerAppendInfo` checks the producer epoch before the verification."""
    writer = Writer(log=log, producer_id=7, epoch=3)
    writer.write()
    writer.commit()
    begin(log, epoch=3, sequence=1)
    assert refused(log, batch(producer=(7, 2, 5))) is FENCED


def test_a_later_batch_is_rejected_before_the_first_verified_one(log: PartitionLog) -> None:
    """The verification of sequence 0 is retried, so sequence 1 must not be appended before it."""
    guard = begin(log)
    assert begin(log, sequence=1) is guard
    later = transactional(7, sequence=1)
    assert refused(log, later, guard) is ErrorCode.out_of_order_sequence_number
    assert append(log, transactional(7), guard) == 0
    assert append(log, later) == 1


def test_a_new_epoch_counts_sequences_from_its_own_first(log: PartitionLog) -> None:
    begin(log, sequence=5)
    guard = begin(log, sequence=9, epoch=1)
    assert append(log, transactional(7, epoch=1, sequence=9), guard) == 0


def test_transactions_of_version_2_begin_at_sequence_0(log: PartitionLog) -> None:
    guard = begin(log, sequence=3, supports_epoch_bump=True)
    first = transactional(7, sequence=3)
    assert refused(log, first, guard) is ErrorCode.out_of_order_sequence_number
    assert append(log, transactional(7), guard) == 0


def test_a_duplicate_returns_its_offsets_in_and_after_the_transaction(
    log: PartitionLog,
) -> None:
    writer = Writer(log=log, producer_id=7)
    writer.write(2)
    for _ in range(2):
        again = log.append(transactional(7, count=2), leader_epoch=0, now_ms=NOW_MS)
        assert (again.is_duplicate, again.base_offset, again.last_offset) == (True, 0, 1)
        writer.commit()


def test_an_open_transaction_rejects_other_batches(log: PartitionLog) -> None:
    writer = Writer(log=log, producer_id=7)
    writer.write()
    assert refused(log, batch(producer=(7, 0, 1))) is ErrorCode.invalid_txn_state
    writer.commit()
    assert append(log, batch(producer=(7, 0, 1))) == 2


def test_coordinator_writes_have_no_sequences_but_require_verification(
    log: PartitionLog,
) -> None:
    offsets = transactional(7, sequence=NO_SEQUENCE)
    assert refused(log, offsets, begin(log)) is ErrorCode.invalid_record
    assert refused(log, offsets, None, AppendOrigin.COORDINATOR) is ErrorCode.invalid_txn_state
    assert append(log, offsets, begin(log), AppendOrigin.COORDINATOR) == 0
    assert append(log, offsets, None, AppendOrigin.COORDINATOR) == 1


def test_unused_verifications_expire(log: PartitionLog) -> None:
    guard = begin(log)
    log.expire_producers(NOW_MS + 24 * 60 * 60 * 1000)
    assert refused(log, transactional(7), guard) is ErrorCode.invalid_txn_state


# End of a transaction


@pytest.mark.parametrize(
    ("epoch", "coordinator_epoch", "transaction_version", "error_code"),
    [
        (4, 9, 1, FENCED),
        (5, 9, 1, None),
        (6, 9, 1, None),
        (5, 9, 2, FENCED),
        (6, 9, 2, None),
        (5, 8, 1, None),
        (5, 7, 1, ErrorCode.transaction_coordinator_fenced),
        (6, 7, 2, ErrorCode.transaction_coordinator_fenced),
    ],
)
def test_epochs_that_may_end_a_transaction(
    log: PartitionLog,
    epoch: int,
    coordinator_epoch: int,
    transaction_version: int,
    error_code: ErrorCode | None,
) -> None:
    writer = Writer(log=log, producer_id=7, epoch=5, coordinator_epoch=8)
    writer.commit()
    writer.write()
    end = Writer(log=log, producer_id=7, epoch=epoch, coordinator_epoch=coordinator_epoch)
    if transaction_version >= 2:
        end.epoch -= 1  # This marker ends the transaction with the next epoch.
    before = state(log)
    if error_code is not None:
        with pytest.raises(LogError) as error:
            end.end(COMMIT, transaction_version=transaction_version)
        assert error.value.error_code is error_code
        assert state(log) == before
        return
    assert end.end(COMMIT, transaction_version=transaction_version).base_offset == 2
    (entry,) = log.producer_entries
    assert not entry.has_open_transaction
    assert (entry.epoch, entry.coordinator_epoch) == (epoch, coordinator_epoch)


def test_a_marker_of_version_2_may_be_repeated(log: PartitionLog) -> None:
    """The response to the first marker was lost; the second marker has no effect."""
    writer = Writer(log=log, producer_id=7)
    writer.write()
    for offset in (1, 2):
        writer.epoch = 0
        assert writer.end(COMMIT, transaction_version=2).base_offset == offset
    assert log.last_stable_offset(3) == 3


def test_a_marker_of_version_2_may_have_the_last_epoch(log: PartitionLog) -> None:
    writer = Writer(log=log, producer_id=7, epoch=EPOCH_MAX)
    writer.write()
    writer.epoch -= 1
    writer.end(COMMIT, transaction_version=2)
    assert log.last_stable_offset(2) == 2


def test_a_marker_of_an_unknown_producer_is_written_and_fences(log: PartitionLog) -> None:
    Writer(log=log, producer_id=7, epoch=4).abort()
    assert log.log_end_offset == 1
    assert log.aborted_transactions(0, 1) == []
    assert refused(log, transactional(7, epoch=3)) is FENCED


# Consumers


def test_the_last_stable_offset_waits_for_the_marker_to_be_replicated(log: PartitionLog) -> None:
    first, second = Writer(log=log, producer_id=7), Writer(log=log, producer_id=8)
    append(log, batch())
    first.write()
    second.write()
    assert [log.last_stable_offset(hw) for hw in (0, 1, 2, 3)] == [0, 1, 1, 1]
    second.commit()
    first.abort()
    # The markers are at offsets 3 and 4, so they are replicated from high watermarks 4 and 5 on.
    assert [log.last_stable_offset(hw) for hw in (2, 3, 4, 5)] == [1, 1, 1, 5]


def test_the_last_stable_offset_follows_a_lower_high_watermark(log: PartitionLog) -> None:
    writer = Writer(log=log, producer_id=7)
    writer.write()
    writer.commit()
    log.producers.remove_replicated(2)
    assert [log.last_stable_offset(hw) for hw in (2, 1)] == [2, 1]


@pytest.mark.parametrize("marker", list(Marker))
def test_recovery_finds_unreplicated_markers(marker: Marker) -> None:
    """Both markers are below the snapshot of the clean stop, which does not contain them."""
    storage = MemoryStorage()
    log = open_log(storage)
    writer = Writer(log=log, producer_id=7)
    for _ in range(2):
        writer.write()
        writer.end(marker)
    log.close()
    for checkpointed, stable in {0: [0, 0, 2, 2, 4], 2: [2, 2, 4], 3: [2, 4], 4: [4]}.items():
        again = open_log(storage, recovery_point=4, high_watermark=checkpointed)
        found = [again.last_stable_offset(hw) for hw in range(checkpointed, 5)]
        assert found == stable
        again.discard()


def test_a_log_opens_despite_damage_before_the_snapshot() -> None:
    storage = MemoryStorage()
    log = open_log(storage)
    writer = Writer(log=log, producer_id=7)
    writer.write()
    size = log.size_bytes
    writer.commit()
    append(log, batch())
    log.close()
    storage.overwrite(f"{DIRECTORY}/00000000000000000000.log", size + 70, b"\xff")
    assert open_log(storage, recovery_point=3).log_end_offset == 3


def test_truncation_keeps_unreplicated_markers() -> None:
    """The second segment starts with a snapshot above the high watermark."""
    log = open_log(MemoryStorage(), config=small(segment_bytes=200))
    writer = Writer(log=log, producer_id=7)
    writer.write()
    writer.commit()
    while len(log.segment_base_offsets) == 1 or log.log_end_offset < 4:
        append(log, batch())
    log.truncate_to(log.log_end_offset - 1, now_ms=NOW_MS)
    assert log.producers.snapshots.offsets[0] >= 2
    assert [log.last_stable_offset(hw) for hw in (1, 2, 3)] == [0, 2, 3]


def test_snapshots_of_earlier_shutdowns_are_removed() -> None:
    storage = MemoryStorage()
    for number in range(6):
        log = open_log(storage)
        append(log, batch(1, producer=(9, 0, number)))
        log.close()
    assert open_log(storage).producers.snapshots.offsets == (6,)


def test_deleting_records_raises_the_first_unstable_offset(log: PartitionLog) -> None:
    writer = Writer(log=log, producer_id=7)
    for _ in range(4):
        writer.write()
    log.delete_records_before(3)
    assert log.last_stable_offset(4) == 3


def test_index_entries_have_kafkas_format() -> None:
    storage = MemoryStorage()
    log = open_log(storage)
    first, second = Writer(log=log, producer_id=7), Writer(log=log, producer_id=0x1122334455667788)
    first.write()
    second.write(2)
    second.abort()
    first.abort()
    stored = storage.read(f"{DIRECTORY}/00000000000000000000.txnindex")
    assert stored == struct.pack("!hqqqqhqqqq", 0, 0x1122334455667788, 1, 3, 0, 0, 7, 0, 4, 5)


def test_without_aborts_there_is_no_transaction_index() -> None:
    storage = MemoryStorage()
    Writer(log=open_log(storage), producer_id=7).commit()
    assert not [name for name in storage.list(DIRECTORY) if name.endswith(".txnindex")]


def test_the_transaction_index_is_deleted_with_its_segment() -> None:
    storage = MemoryStorage()
    log = open_log(storage, config=small(segment_bytes=200, retention_bytes=0))
    for _ in range(4):
        writer = Writer(log=log, producer_id=7, sequence=len(read_all(log)))
        writer.log.producers.expire(2**62)
        writer.write()
        writer.abort()
    assert len([n for n in storage.list(DIRECTORY) if n.endswith(".txnindex")]) > 1
    log.apply_retention(NOW_MS)
    assert not [n for n in storage.list(DIRECTORY) if n.endswith(".txnindex")]


@pytest.mark.parametrize("damage", ["torn", "order"])
def test_a_damaged_transaction_index_is_rebuilt(damage: str) -> None:
    storage = MemoryStorage()
    log = open_log(storage)
    writer = Writer(log=log, producer_id=7)
    for _ in range(3):
        writer.write()
        writer.abort()
    expected = log.aborted_transactions(0, 6)
    log.close()
    path = f"{DIRECTORY}/00000000000000000000.txnindex"
    if damage == "torn":
        storage.cut(path, 50)
    else:
        storage.overwrite(path, 18, struct.pack("!q", 4))
    again = open_log(storage, recovery_point=6)
    assert again.aborted_transactions(0, 6) == expected
    assert [a.last_offset for a in expected] == [1, 3, 5]


def test_a_damaged_marker_is_found_when_the_log_is_read() -> None:
    storage = MemoryStorage()
    log = open_log(storage)
    writer = Writer(log=log, producer_id=7)
    writer.write()
    size = log.size_bytes
    writer.commit()
    log.close()
    for name in storage.list(DIRECTORY):
        if name.endswith(".snapshot"):
            storage.remove(f"{DIRECTORY}/{name}")
    storage.overwrite(f"{DIRECTORY}/00000000000000000000.log", size + 70, b"\xff")
    with pytest.raises(CorruptLogError):
        open_log(storage, recovery_point=2)


def test_a_failed_marker_append_changes_nothing() -> None:
    storage = MemoryStorage()
    log = open_log(storage)
    writer = Writer(log=log, producer_id=7)
    writer.write()
    storage.fail_on("append")
    for end in (writer.commit, writer.write):
        with pytest.raises(LogError) as error:
            end()
        assert error.value.error_code is ErrorCode.kafka_storage_error
        assert log.last_stable_offset(1) == 0
        assert log.producer_entries[0].has_open_transaction


def test_truncation_of_a_marker_reopens_the_transaction() -> None:
    log = open_log(MemoryStorage())
    writer = Writer(log=log, producer_id=7)
    writer.write()
    writer.abort()
    assert log.aborted_transactions(0, 2) == [
        AbortedTransaction(producer_id=7, first_offset=0, last_offset=1, last_stable_offset=2)
    ]
    log.truncate_to(1, now_ms=NOW_MS)
    assert log.last_stable_offset(1) == 0
    assert log.aborted_transactions(0, 2) == []
    writer.commit()
    assert log.last_stable_offset(2) == 2
    assert log.aborted_transactions(0, 2) == []
