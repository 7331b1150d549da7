"""Comparison of the logs of a partition's replicas on disk, byte for byte.

Replicas may have different segments and indexes, but the batches below the high watermark are the
same bytes in the same order.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from tests.conformance.eventually import eventually

_HEAD: Final = struct.Struct(">qi")


def committed_bytes(directory: Path, topic: str, partition: int, end_offset: int) -> bytes:
    """Return the complete batches of a replica that start below `end_offset`, in order.

    Fail if the log has a gap or ends earlier.
    """
    data = b"".join(path.read_bytes() for path in sorted(_log(directory, topic, partition)))
    position = expected_offset = 0
    while expected_offset < end_offset:
        assert position + 61 <= len(data), f"{directory.name} ends at offset {expected_offset}"
        base_offset, length = _HEAD.unpack_from(data, position)
        (last_offset_delta,) = struct.unpack_from(">i", data, position + 23)
        assert base_offset == expected_offset, f"{directory.name} lacks offset {expected_offset}"
        expected_offset = base_offset + last_offset_delta + 1
        position += _HEAD.size + length
    assert expected_offset == end_offset, f"{end_offset} is inside a batch of {directory.name}"
    return data[:position]


def assert_replicas_agree(
    directories: Collection[Path], topic: str, high_watermarks: Mapping[int, int]
) -> None:
    """Assert that all replicas have the same bytes up to the high watermark.

    If brokers are running, wait until they have written the records that they fetched.
    """
    for partition, end_offset in high_watermarks.items():
        first, *others = [
            _await_bytes(directory, topic, partition, end_offset) for directory in directories
        ]
        assert first
        assert all(other == first for other in others), f"logs of {topic}-{partition} differ"


def _await_bytes(directory: Path, topic: str, partition: int, end_offset: int) -> bytes:
    found: list[bytes] = []

    def is_there() -> bool:
        try:
            found[:] = [committed_bytes(directory, topic, partition, end_offset)]
        except (AssertionError, FileNotFoundError):
            return False
        return True

    try:
        eventually(is_there)
    except AssertionError:
        return committed_bytes(directory, topic, partition, end_offset)
    return found[0]


def _log(directory: Path, topic: str, partition: int) -> list[Path]:
    return list((directory / f"{topic}-{partition}").glob("*.log"))
