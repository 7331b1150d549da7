"""A simulated disk with injected failures and damage.

`crash` returns the disk after a power loss. `fail_on` makes operations of a kind fail, as on a full
disk. `overwrite` and `cut` damage files.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from broker_ref.log.storage import StorageError
from integration.simulation.disk import NO_SPACE, SimulatedDisk


class MemoryStorage(SimulatedDisk):
    def __init__(self) -> None:
        super().__init__()
        self._failing: list[tuple[str, str]] = []
        self._changes_left: int | None = None

    def fail_on(self, operation: str | None) -> None:
        """Make all operations of a kind fail; None ends the failures.

        Kinds: `read`, `append`, `truncate`, `flush`, `write`, `rename`, `remove`.
        """
        self._failing = [] if operation is None else [("", operation)]

    def fail_below(self, prefix: str, operation: str) -> list[tuple[str, str]]:
        """Make an operation fail on paths with this prefix until the returned list is cleared."""
        self._failing = [(prefix, operation)]
        return self._failing

    def fail_after(self, changes: int | None) -> bool:
        """Let the first `changes - 1` changing operations succeed, and all later ones fail.

        With None all operations succeed. Return whether all have succeeded since the last call.
        """
        passed, self._changes_left = self._changes_left != 0, changes
        return passed

    def check(self, operation: str, path: str) -> None:
        if self._changes_left is not None and operation not in {"open", "read"}:
            self._changes_left = max(self._changes_left - 1, 0)
            if self._changes_left == 0:
                raise StorageError(f"Cannot {operation} {path}: the power is out.")
        if any(path.startswith(prefix) and operation == kind for prefix, kind in self._failing):
            raise StorageError(f"Cannot {operation} {path}: {NO_SPACE}.")

    def crash(self, random: Random) -> MemoryStorage:
        """Return the disk after a power loss, without changing this one."""
        survivor = MemoryStorage()
        for path, content in self._files.items():
            survivor._files[path] = replace(content, data=bytearray(content.data))
        survivor.lose_power(random)
        return survivor

    def overwrite(self, path: str, position: int, data: bytes) -> None:
        content = self._files[path]
        content.data[position : position + len(data)] = data
        content.settle()

    def cut(self, path: str, size: int) -> None:
        content = self._files[path]
        del content.data[size:]
        content.settle()
