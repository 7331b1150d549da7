"""Bugs of the storage of nodes: atomicity, durability and corruption of files."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from crc32c import crc32c

from broker_ref import identity
from broker_ref.log import producer_snapshots
from broker_ref.log.partition_log import PartitionLog
from broker_ref.log.producer_state import ProducerStateEntry
from broker_ref.log.segment import LogSegment
from broker_ref.log.storage import StorageError
from integration.simulation.disk import SimulatedDisk
from tests.simulation.bugs.bug import Bug

_SNAPSHOT_CRC = 2
"""The position of the CRC in a producer snapshot."""
_SNAPSHOT_BODY = 6
"""The position of the bytes that the CRC covers."""


def _write_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    write = SimulatedDisk.write_atomically

    def in_place(self: SimulatedDisk, path: str, data: bytes) -> None:
        write(self, path, b"")
        is_full, self.is_full = self.is_full, False  # Only a crash can prevent the second write.
        lacks_descriptors, self.lacks_descriptors = self.lacks_descriptors, None
        write(self, path, data)
        self.is_full, self.lacks_descriptors = is_full, lacks_descriptors

    monkeypatch.setattr(SimulatedDisk, "write_atomically", in_place)


def _ignore_failed_flushes(monkeypatch: pytest.MonkeyPatch) -> None:
    flush = LogSegment.flush

    def try_to_flush(self: LogSegment) -> None:
        with suppress(StorageError):
            flush(self)

    monkeypatch.setattr(LogSegment, "flush", try_to_flush)


def _read_corrupt_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    decode = producer_snapshots.decode_snapshot

    def decode_unchecked(data: bytes) -> list[ProducerStateEntry] | None:
        body = data[_SNAPSHOT_BODY:]
        return decode(data[:_SNAPSHOT_CRC] + crc32c(body).to_bytes(4) + body)

    monkeypatch.setattr(producer_snapshots, "decode_snapshot", decode_unchecked)


def _leave_recovered_records_unflushed(monkeypatch: pytest.MonkeyPatch) -> None:
    open_log = PartitionLog.open

    def open_without_flush(**arguments: Any) -> PartitionLog:
        with monkeypatch.context() as during:
            during.setattr(PartitionLog, "_flush_if_required", lambda *_: None)
            return open_log(**arguments)

    monkeypatch.setattr(PartitionLog, "open", open_without_flush)


def _use_disks_of_other_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "_require", lambda *_: None)


BUGS = (
    Bug(
        name="write checkpoints in place",
        source="CheckpointFile.write",
        description="a checkpoint file is truncated and written again instead of replaced",
        reintroduce=_write_in_place,
        first_seed=8,
    ),
    Bug(
        name="ignore failed flushes",
        source="LogDirFailureChannel",
        description="a broker continues after a failed flush, and treats the data as flushed",
        reintroduce=_ignore_failed_flushes,
        first_seed=661,
    ),
    Bug(
        name="read corrupt producer snapshots",
        source="ProducerStateManager.readSnapshot",
        description="the CRC of a producer snapshot is not checked",
        reintroduce=_read_corrupt_snapshots,
        first_seed=97,
    ),
    Bug(
        name="leave recovered records unflushed",
        source="LogLoader.recoverLog",
        description="with flush.messages=1, consumers read records that a failed process wrote and "
        "did not flush, and a power failure removes them. Kafka does this",
        reintroduce=_leave_recovered_records_unflushed,
        first_seed=31013327,
        seeds_max=1,
    ),
    Bug(
        name="use another broker's disk",
        source="KAFKA-1070, MetaPropertiesEnsemble.verify",
        description="a broker starts although meta.properties contains another node.id",
        reintroduce=_use_disks_of_other_brokers,
        first_seed=16,
    ),
)
