"""Tests of all logs of a broker: checkpoints, clean stops, crashes and deletion."""

from __future__ import annotations

from random import Random

import pytest

from broker_ref.log.checkpoints import CLEAN_SHUTDOWN_FILE, RECOVERY_POINT_FILE
from broker_ref.log.errors import CorruptLogError
from broker_ref.log.log_manager import LogManager
from broker_ref.log.partition_log import PartitionLog
from broker_ref.log.storage import StorageError
from tests.broker_ref.log.batches import NOW_MS, batch
from tests.broker_ref.log.logs import SMALL, read_all
from tests.broker_ref.memory_storage import MemoryStorage


def opened(directory: LogManager, topic: str = "orders", partition: int = 0) -> PartitionLog:
    return directory.open_log(topic, partition, config=SMALL, now_ms=NOW_MS)


def append(log: PartitionLog, count: int) -> None:
    for _ in range(count):
        log.append(batch(), leader_epoch=0, now_ms=NOW_MS)


def test_a_clean_stop_writes_the_marker_and_the_next_start_removes_it() -> None:
    storage = MemoryStorage()
    directory = LogManager(storage=storage)
    assert not directory.was_clean
    append(opened(directory), 30)
    append(opened(directory, "a.b_c-d", 7), 3)
    directory.logs["orders", 0].delete_records_before(5)
    directory.close()
    assert storage.exists(CLEAN_SHUTDOWN_FILE)

    again = LogManager(storage=storage)
    assert again.was_clean
    assert not storage.exists(CLEAN_SHUTDOWN_FILE)
    assert again.partitions_on_disk() == [("a.b_c-d", 7), ("orders", 0)]
    log = opened(again)
    assert (log.log_start_offset, log.log_end_offset, log.recovery_point) == (5, 30, 30)
    assert opened(again, "a.b_c-d", 7).log_end_offset == 3


@pytest.mark.parametrize("seed", range(20))
def test_checkpoints_survive_a_crash(seed: int) -> None:
    storage = MemoryStorage()
    directory = LogManager(storage=storage)
    log = opened(directory)
    append(log, 8)
    log.flush()
    log.delete_records_before(4)
    directory.checkpoint()
    append(log, 2)

    again = LogManager(storage=storage.crash(Random(seed)))
    assert not again.was_clean
    recovered = opened(again)
    assert recovered.log_start_offset == 4
    assert 8 <= recovered.log_end_offset <= 10
    assert len(read_all(recovered)) == recovered.log_end_offset - 4


def test_damaged_flushed_data_is_rejected_and_the_stop_is_not_clean() -> None:
    storage = MemoryStorage()
    directory = LogManager(storage=storage)
    log = opened(directory)
    opened(directory, "other")
    append(log, 5)
    log.flush()
    directory.checkpoint()
    storage.overwrite("orders-0/00000000000000000000.log", 70, b"\xff\xff")

    again = LogManager(storage=storage)
    with pytest.raises(CorruptLogError, match=r"orders-0/0{20}\.log"):
        opened(again)
    opened(again, "other")
    again.close()
    assert not storage.exists(CLEAN_SHUTDOWN_FILE)
    with pytest.raises(CorruptLogError, match=r"orders-0/0{20}\.log"):
        opened(LogManager(storage=storage))


def test_a_stop_with_a_failed_log_is_not_clean() -> None:
    storage = MemoryStorage()
    directory = LogManager(storage=storage)
    log = opened(directory)
    storage.fail_on("append")
    with pytest.raises(Exception, match="No space left"):
        append(log, 1)
    storage.fail_on(None)
    directory.close()
    assert not storage.exists(CLEAN_SHUTDOWN_FILE)


def test_an_unopened_log_is_recovered_at_a_later_start() -> None:
    storage = MemoryStorage()
    directory = LogManager(storage=storage)
    append(opened(directory), 3)
    again = LogManager(storage=storage)
    again.close()
    assert not storage.exists(CLEAN_SHUTDOWN_FILE)


def test_an_unopened_log_without_records_needs_no_recovery() -> None:
    storage = MemoryStorage()
    opened(LogManager(storage=storage))
    again = LogManager(storage=storage)
    assert again.partitions_on_disk() == [("orders", 0)]
    again.close()
    assert storage.exists(CLEAN_SHUTDOWN_FILE)


def test_a_new_log_inherits_nothing_from_a_deleted_one() -> None:
    storage = MemoryStorage()
    directory = LogManager(storage=storage)
    log = opened(directory)
    append(log, 30)
    log.delete_records_before(20)
    log.flush()
    directory.checkpoint()
    directory.delete_log("orders", 0, topic_id="id")
    assert directory.partitions_on_disk() == []
    directory.remove_checkpoints("orders", 0)
    assert b"orders" not in storage.read(RECOVERY_POINT_FILE)
    fresh = opened(directory)
    assert (fresh.log_start_offset, fresh.log_end_offset) == (0, 0)
    append(fresh, 2)
    directory.close()
    assert opened(LogManager(storage=storage)).log_end_offset == 2


def test_a_log_is_deleted_again_before_the_first_files_are_removed() -> None:
    storage = MemoryStorage()
    directory = LogManager(storage=storage)
    for _ in range(2):
        append(opened(directory), 3)
        directory.delete_log("orders", 0, topic_id="id")
    deleted = storage.list("")
    assert len(deleted) == 2
    assert directory.partitions_on_disk() == []
    assert LogManager(storage=storage).remove_deleted(logs_max=1)
    assert len(storage.list("")) == 1
    assert not directory.remove_deleted(logs_max=2)
    assert storage.list("") == []


def test_a_failed_deletion_removes_the_checkpoints() -> None:
    storage = MemoryStorage()
    directory = LogManager(storage=storage)
    append(opened(directory), 3)
    directory.checkpoint()
    storage.fail_on("rename")
    with pytest.raises(StorageError):
        directory.delete_log("orders", 0, topic_id="id")
    storage.fail_on(None)
    directory.checkpoint()
    assert b"orders" not in storage.read(RECOVERY_POINT_FILE)


def test_an_interrupted_deletion_completes_at_the_next_start() -> None:
    storage = MemoryStorage()
    directory = LogManager(storage=storage)
    append(opened(directory), 3)
    storage.rename("orders-0", "id-0-delete")
    again = LogManager(storage=storage)
    assert again.partitions_on_disk() == []
    again.remove_deleted(logs_max=1)
    assert storage.list("id-0-delete") == []


def test_other_files_are_not_partitions() -> None:
    storage = MemoryStorage()
    storage.write_atomically("meta.properties", b"")
    storage.write_atomically("metadata/journal-0/x", b"")
    storage.write_atomically("t-x/file", b"")
    assert LogManager(storage=storage).partitions_on_disk() == []


def test_checkpoints_are_written_only_when_they_change() -> None:
    storage = MemoryStorage()
    directory = LogManager(storage=storage)
    append(opened(directory), 1)
    directory.checkpoint()
    storage.fail_on("write")
    directory.checkpoint()
    assert storage.read(RECOVERY_POINT_FILE) == b"0\n1\norders 0 0\n"


@pytest.mark.parametrize("seed", range(20))
def test_offsets_never_restart_below_a_checkpointed_log_start_offset(seed: int) -> None:
    storage = MemoryStorage()
    directory = LogManager(storage=storage)
    log = opened(directory)
    append(log, 3)
    log.delete_records_before(3)
    directory.checkpoint()
    for _ in range(2):  # The second crash may lose the records that replaced the lost ones.
        storage = storage.crash(Random(seed))
        directory = LogManager(storage=storage)
        log = opened(directory)
        assert (log.log_start_offset, log.log_end_offset) == (3, 3)
        directory.checkpoint()
