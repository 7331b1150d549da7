"""Kafka's checkpoint files for offsets, leader epochs and clean shutdowns.

    0                      version
    2                      number of entries
    orders 0 1042          topic partition offset      (recovery-point-offset-checkpoint,
    orders 1 998                                        log-start-offset-checkpoint,
                                                        replication-offset-checkpoint,
                                                        cleaner-offset-checkpoint)

    0
    2
    0 0                    epoch start-offset          (leader-epoch-checkpoint)
    3 1042

This module reads and writes the files. If a file has a different format, it is rejected as a
whole, with an error that contains its name. The clean-shutdown file is JSON with the broker epoch,
for example `{"version":0,"brokerEpoch":42}`. Source: `CheckpointFile`, `OffsetCheckpointFile`,
`LeaderEpochCheckpointFile`, `CleanShutdownFileHandler`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from broker_ref.log.errors import CorruptLogError
from broker_ref.log.storage import Storage

RECOVERY_POINT_FILE = "recovery-point-offset-checkpoint"
LOG_START_OFFSET_FILE = "log-start-offset-checkpoint"
HIGH_WATERMARK_FILE = "replication-offset-checkpoint"
LEADER_EPOCH_FILE = "leader-epoch-checkpoint"
CLEANER_OFFSET_FILE = "cleaner-offset-checkpoint"
CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"
NO_BROKER_EPOCH = -1
_VERSION = "0"

TopicPartition = tuple[str, int]


def read_offsets(storage: Storage, path: str) -> dict[TopicPartition, int]:
    """Return the offsets in a checkpoint file, keyed by partition.

    The result is empty if the file does not exist. Raises: CorruptLogError with the name of the
    file.
    """
    offsets: dict[TopicPartition, int] = {}
    for line_number, (topic, partition, offset) in _read(storage, path, columns=3):
        offsets[topic, _number(path, line_number, partition)] = _number(path, line_number, offset)
    return offsets


def write_offsets(storage: Storage, path: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Replace the contents of an offset checkpoint file."""
    _write(storage, path, [f"{t} {p} {offset}" for (t, p), offset in sorted(offsets.items())])


def read_epochs(storage: Storage, path: str) -> list[tuple[int, int]]:
    """Return the (leader epoch, start offset) entries of a checkpoint file in file order.

    The result is empty if the file does not exist.
    """
    return [
        (_number(path, line_number, epoch), _number(path, line_number, offset))
        for line_number, (epoch, offset) in _read(storage, path, columns=2)
    ]


def write_epochs(storage: Storage, path: str, epochs: Sequence[tuple[int, int]]) -> None:
    """Replace the contents of a leader epoch checkpoint file."""
    _write(storage, path, [f"{epoch} {offset}" for epoch, offset in epochs])


def read_clean_shutdown_epoch(storage: Storage) -> int:
    """Return the broker epoch of the last clean shutdown, or -1 if the last shutdown was not clean.

    As in Kafka, return -1 if the contents of the file are invalid.
    """
    if not storage.exists(CLEAN_SHUTDOWN_FILE):
        return NO_BROKER_EPOCH
    try:
        return int(json.loads(storage.read(CLEAN_SHUTDOWN_FILE))["brokerEpoch"])
    except (ValueError, TypeError, KeyError):
        return NO_BROKER_EPOCH


def write_clean_shutdown(storage: Storage, broker_epoch: int) -> None:
    """Durably record the clean shutdown of the broker with this broker epoch (KIP-966)."""
    content = json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":"))
    storage.write_atomically(CLEAN_SHUTDOWN_FILE, content.encode())


def _write(storage: Storage, path: str, lines: Sequence[str]) -> None:
    storage.write_atomically(path, "\n".join([_VERSION, str(len(lines)), *lines, ""]).encode())


def _read(storage: Storage, path: str, *, columns: int) -> list[tuple[int, list[str]]]:
    if not storage.exists(path):
        return []
    lines = storage.read(path).decode("utf-8", "replace").splitlines()
    if len(lines) < 2 or lines[0] != _VERSION:
        raise CorruptLogError(
            path, 0, f"the file does not start with version {_VERSION} and an entry count"
        )
    if len(lines) - 2 != _number(path, 1, lines[1]):
        raise CorruptLogError(
            path,
            0,
            f"the file contains {len(lines) - 2} entries, but the entry count in the second line "
            f"is {lines[1]}",
        )
    rows = [(number, line.split()) for number, line in enumerate(lines[2:], start=2)]
    for number, row in rows:
        if len(row) != columns:
            raise _bad_line(path, number)
    return rows


def _number(path: str, line_number: int, text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise _bad_line(path, line_number)
    return int(text)


def _bad_line(path: str, line_number: int) -> CorruptLogError:
    return CorruptLogError(path, 0, f"line {line_number + 1} is not a valid entry")
