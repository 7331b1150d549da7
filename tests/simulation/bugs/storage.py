"""Bugs of the storage of nodes: atomicity, durability and corruption of files."""

from __future__ import annotations

import pytest

from integration.simulation.disk import SimulatedDisk
from tests.simulation.bugs.bug import Bug


def _write_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    write = SimulatedDisk.write_atomically

    def in_place(self: SimulatedDisk, path: str, data: bytes) -> None:
        write(self, path, b"")
        is_full, self.is_full = self.is_full, False  # Only a crash can prevent the second write.
        lacks_descriptors, self.lacks_descriptors = self.lacks_descriptors, None
        write(self, path, data)
        self.is_full, self.lacks_descriptors = is_full, lacks_descriptors

    monkeypatch.setattr(SimulatedDisk, "write_atomically", in_place)


BUGS = (
    Bug(
        name="write checkpoints in place",
        source="CheckpointFile.write",
        description="a checkpoint file is truncated and written again instead of replaced",
        reintroduce=_write_in_place,
        first_seed=23,
    ),
)
