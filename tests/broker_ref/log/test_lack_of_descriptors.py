"""Tests of a log whose process runs out of file descriptors while segments change."""

from __future__ import annotations

from random import Random

import pytest

from broker_ref.log.config import LogConfig
from broker_ref.log.errors import LogError
from broker_ref.log.partition_log import PartitionLog
from integration.simulation.disk import SimulatedDisk
from tests.broker_ref.log.batches import NOW_MS, batch


def opened(disk: SimulatedDisk, *, clean: bool = False) -> PartitionLog:
    config = LogConfig.from_topic_configs({"segment.ms": "100", "flush.messages": "1"})
    return PartitionLog.open(
        storage=disk, directory="t-0", config=config, now_ms=NOW_MS, clean=clean
    )


@pytest.mark.parametrize("seed", range(25))
def test_a_log_reopens_after_any_failed_open(seed: int) -> None:
    disk = SimulatedDisk()
    log = opened(disk)
    disk.lacks_descriptors = Random(seed)
    written = 0
    for number in range(24):
        # Every second batch is as old as the first, so it does not roll a segment.
        now_ms = NOW_MS + (200 * number if number % 2 == 0 else 0)
        try:
            log.append(batch(timestamp=now_ms), leader_epoch=0, now_ms=now_ms)
            written += 1
        except LogError:
            # A write that can be retried has written nothing.
            assert log.storage_error is not None or log.log_end_offset == written
        if log.storage_error is not None:
            break
    disk.lacks_descriptors = None
    assert opened(disk).log_end_offset >= written, "an acknowledged record is lost"


def cut_piece_by_piece(log: PartitionLog) -> None:
    """Truncate the log to one record in four steps, so that one step runs out of descriptors."""
    for offset in (4, 3, 2, 1):
        log.truncate_to(offset, now_ms=NOW_MS)


@pytest.mark.parametrize("seed", range(25))
def test_a_partially_truncated_log_rejects_writes(seed: int) -> None:
    disk = SimulatedDisk()
    log = opened(disk)
    for number in range(6):
        now_ms = NOW_MS + 200 * number
        log.append(batch(timestamp=now_ms), leader_epoch=0, now_ms=now_ms)
    disk.lacks_descriptors = Random(seed)
    with pytest.raises(LogError):
        cut_piece_by_piece(log)
    assert log.storage_error is not None
    disk.lacks_descriptors = None
    again = opened(disk)
    assert again.log_end_offset <= log.log_end_offset
    assert again.read(
        0, end_offset=again.log_end_offset, max_bytes=1 << 20, at_least_one_batch=True
    )
