"""Small logs for tests, with segments of a few hundred bytes and frequent index entries."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from broker_ref.log.batch import unpack_header
from broker_ref.log.config import LogConfig
from broker_ref.log.partition_log import PartitionLog
from broker_ref.log.storage import Storage
from tests.broker_ref.log.batches import NOW_MS

DIRECTORY = "orders-0"
SMALL = LogConfig(segment_bytes=1000, index_interval_bytes=150)


def small(**changes: Any) -> LogConfig:
    return replace(SMALL, **changes)


def open_log(
    storage: Storage,
    *,
    config: LogConfig = SMALL,
    clean: bool = True,
    now_ms: int = NOW_MS,
    recovery_point: int = 0,
    log_start_offset: int = 0,
    high_watermark: int = 0,
) -> PartitionLog:
    return PartitionLog.open(
        storage=storage,
        directory=DIRECTORY,
        config=config,
        now_ms=now_ms,
        clean=clean,
        recovery_point=recovery_point,
        log_start_offset=log_start_offset,
        high_watermark=high_watermark,
    )


def split(data: bytes) -> list[bytes]:
    batches, position = [], 0
    while position < len(data):
        end = position + unpack_header(data, position).size_bytes
        batches.append(data[position:end])
        position = end
    return batches


def read_all(log: PartitionLog, *, max_bytes: int = 300) -> list[bytes]:
    """Return all batches from the log start offset to the end, as a consumer reads them."""
    batches: list[bytes] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        data = log.read(
            offset, end_offset=log.log_end_offset, max_bytes=max_bytes, at_least_one_batch=True
        )
        if not data:  # Compaction may remove everything before an empty active segment.
            assert log.segments.active.size_bytes == 0, f"no batches at or after offset {offset}"
            break
        batches += split(data)
        offset = unpack_header(batches[-1]).next_offset
    return batches
