"""Tests that a log with records keeps its topic id after a power failure."""

from __future__ import annotations

from random import Random

import pytest

from broker_ref.log.config import LogConfig
from broker_ref.log.errors import CorruptLogError
from broker_ref.log.log_manager import LogManager
from broker_ref.protocol.identifiers import Uuid
from broker_ref.replication.partition_metadata_file import PartitionMetadataFile
from tests.broker_ref.log.batches import NOW_MS, batch
from tests.broker_ref.memory_storage import MemoryStorage

TOPIC_ID = Uuid(int=123456789)
SEEDS = range(20)


def opened(storage: MemoryStorage, *, is_new: bool) -> LogManager:
    file = PartitionMetadataFile(storage, "t-0")
    assert (file.read() is None) == is_new
    if is_new:
        file.record(TOPIC_ID)
    logs = LogManager(storage=storage)
    logs.open_log("t", 0, config=LogConfig(), now_ms=NOW_MS, before_first_write=file.maybe_flush)
    return logs


@pytest.mark.parametrize("is_restarted", [False, True])
def test_topic_id_is_durable_before_the_first_record(is_restarted: bool) -> None:
    storage = MemoryStorage()
    logs = opened(storage, is_new=True)
    if is_restarted:  # The first process is killed before it writes a record.
        logs = opened(storage, is_new=False)
    logs.logs["t", 0].append(batch(), leader_epoch=0, now_ms=NOW_MS)
    for seed in SEEDS:
        assert PartitionMetadataFile(storage.crash(Random(seed)), "t-0").read() == TOPIC_ID


def test_topic_id_of_an_empty_log_can_be_lost_and_written_again() -> None:
    storage = MemoryStorage()
    opened(storage, is_new=True)
    found = set()
    for seed in SEEDS:
        crashed = storage.crash(Random(seed))
        file = PartitionMetadataFile(crashed, "t-0")
        found.add(file.read())
        file.record(TOPIC_ID)
        assert PartitionMetadataFile(crashed, "t-0").read() == TOPIC_ID
    assert None in found


def test_damaged_topic_id_of_a_log_with_records_is_rejected() -> None:
    storage = MemoryStorage()
    logs = opened(storage, is_new=True)
    logs.logs["t", 0].append(batch(), leader_epoch=0, now_ms=NOW_MS)
    storage.write_atomically("t-0/partition.metadata", b"version: 0\n")
    with pytest.raises(CorruptLogError):
        PartitionMetadataFile(storage, "t-0").read()
