"""An in-memory disk that loses unflushed data when the power fails.

Implements `Storage` for simulated nodes. `lose_power` preserves flushed data and a random prefix of
the unflushed data, whose last bytes may be torn. Files that were never flushed may disappear. A
truncation that was not flushed may be undone. The removal of a directory may also be undone, for
all or some of its files. Atomic writes, and renames and removals of single files, are durable, as
`Storage` requires. Renames of directories are also durable, although `Storage` does not require
this. With `crash_after`, the process crashes in the middle of a step, at a disk operation.
Invariant: if only the process ends, no data is lost.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Final

from broker_ref.log.storage import RetriableStorageError, StorageError

NO_SPACE: Final = "No space left on device"
NO_DESCRIPTORS: Final = "Too many open files"
CRASH_OPERATIONS_MAX: Final = 40
RARE_OPERATIONS_MAX: Final = 5
"""The maximum number of operations before a crash: of all kinds, or of one rare kind."""

INPUT_ERROR: Final = "Input/output error"
WRONG_DISK: Final = "in this data directory contains node.id"
INJECTED: Final = (NO_SPACE, NO_DESCRIPTORS, INPUT_ERROR, WRONG_DISK)
"""Substrings of the errors that this disk injects."""


class CrashedError(BaseException):
    """The process has crashed. This class is not an `Exception`, so no node can handle it."""


@dataclass(slots=True)
class _Crash:
    """A crash after a number of disk operations of one kind.

    If `kind` is empty, operations of all kinds are counted.
    """

    kind: str
    operations: int
    random: Random
    loses_power: bool


@dataclass(slots=True)
class _Content:
    """The content of a file.

    The first `flushed` bytes are durable. If `flushed` is None, the file itself is not durable and
    may disappear. `uncut` is the durable content before a truncation that was not flushed.
    """

    data: bytearray = field(default_factory=bytearray)
    flushed: int | None = None
    uncut: bytes | None = None

    def settle(self) -> None:
        """Make the whole content durable."""
        self.flushed = len(self.data)
        self.uncut = None


class SimulatedFile:
    """An open file. Handles to the same path share their content."""

    def __init__(self, disk: SimulatedDisk, path: str, content: _Content) -> None:
        self._disk = disk
        self._path = path
        self._content = content

    @property
    def path(self) -> str:
        return self._path

    def size(self) -> int:
        return len(self._content.data)

    def read(self, position: int, length: int) -> bytes:
        self._disk.check("read", self._path)
        return bytes(self._content.data[position : position + length])

    def append(self, data: bytes | bytearray | memoryview) -> None:
        self._disk.check("append", self._path)
        self._content.data += data

    def truncate(self, size: int) -> None:
        self._disk.check("truncate", self._path)
        content = self._content
        if content.flushed is not None and size < content.flushed:
            if content.uncut is None:
                content.uncut = bytes(content.data[: content.flushed])
            content.flushed = size
        del content.data[size:]

    def flush(self) -> None:
        self._disk.check("flush", self._path)
        self._content.settle()

    def close(self) -> None:
        """Do nothing, because there is no file descriptor."""


class SimulatedDisk:
    """The files of a machine, by path.

    With `is_full`, every write fails. With `fails_flushes`, every flush fails, and the data stays
    unflushed. With `lacks_descriptors`, operations that open a file for writing fail at random,
    without side effects.
    """

    def __init__(self) -> None:
        self._files: dict[str, _Content] = {}
        self._removed: dict[str, _Content] = {}
        """The files of removed directories. A power loss may undo their removal."""
        self.is_full = False
        self.fails_flushes = False
        self.lacks_descriptors: Random | None = None
        self._crash: _Crash | None = None

    def check(self, operation: str, path: str) -> None:
        """Raise the error of an injected fault if the fault affects this operation."""
        if self._crash is not None and operation != "read":
            self._approach(self._crash, operation)
        if self.is_full and operation in {"append", "write"}:
            raise StorageError(f"Cannot {operation} {path}: {NO_SPACE}.")
        if self.fails_flushes and operation in {"flush", "write"}:
            raise StorageError(f"Cannot {operation} {path}: {INPUT_ERROR}.")
        if self.lacks_descriptors is None or operation == "read":
            return
        if self.lacks_descriptors.random() < 0.5:
            raise RetriableStorageError(f"Cannot {operation} {path}: {NO_DESCRIPTORS}.")

    @property
    def is_crashing(self) -> bool:
        """Whether the process has crashed or will crash at one of the next operations."""
        return self._crash is not None

    def crash_after(self, random: Random, *, loses_power: bool) -> None:
        """Crash the process at one of the next operations, which is chosen at random.

        With `loses_power`, the machine loses power at the same time. Until `end_crash`, all later
        operations fail, so the process cannot do anything else.
        """
        kind = random.choice(("", "write", "write", "open", "truncate", "remove"))
        operations = random.randint(0, CRASH_OPERATIONS_MAX if not kind else RARE_OPERATIONS_MAX)
        self._crash = _Crash(kind, operations, random, loses_power)

    def end_crash(self) -> None:
        """Make the disk usable again, for a new process."""
        self._crash = None

    def _approach(self, crash: _Crash, operation: str) -> None:
        if crash.operations >= 0:
            crash.operations -= crash.kind in ("", operation)
        if crash.operations >= 0:
            return
        if crash.loses_power:
            crash.loses_power = False
            self.lose_power(crash.random)
        raise CrashedError

    def lose_power(self, random: Random) -> None:
        """Apply a power loss to all files."""
        for path, content in self._removed.items():
            if random.random() < 0.5:
                self._files.setdefault(path, content)
        self._removed.clear()
        for path, content in list(self._files.items()):
            left = _after_power_loss(content, random)
            if left is None:
                del self._files[path]
            else:
                content.data[:] = left
                content.settle()

    def clear(self) -> None:
        """Replace the disk with an empty one."""
        self._files.clear()
        self._removed.clear()

    def swap(self, other: SimulatedDisk) -> None:
        """Exchange the contents of two disks."""
        self._files, other._files = other._files, self._files
        self._removed, other._removed = other._removed, self._removed

    def rot(self, suffix: str, random: Random) -> None:
        """Flip one bit in about half of the files whose names end with `suffix`."""
        for path, content in self._files.items():
            if path.endswith(suffix) and content.data and random.random() < 0.5:
                content.data[random.randrange(len(content.data))] ^= 1 << random.randrange(8)

    def open(self, path: str) -> SimulatedFile:
        self.check("open", path)
        return SimulatedFile(self, path, self._files.setdefault(path, _Content()))

    def exists(self, path: str) -> bool:
        if path in self._files:
            return True
        prefix = f"{path}/"
        return any(name.startswith(prefix) for name in self._files)

    def list(self, directory: str) -> list[str]:
        prefix = f"{directory}/" if directory else ""
        size = len(prefix)
        return sorted(
            {name[size:].split("/", 1)[0] for name in self._files if name.startswith(prefix)}
        )

    def read(self, path: str) -> bytes:
        content = self._files.get(path)
        if content is None:
            raise StorageError(f"Cannot read {path}: No such file or directory.")
        return bytes(content.data)

    def write_atomically(self, path: str, data: bytes) -> None:
        self.check("write", path)
        self._files[path] = _Content(data=bytearray(data), flushed=len(data))

    def rename(self, source: str, target: str) -> None:
        self.check("rename", source)
        if self.list(target):
            raise StorageError(f"Cannot rename {source}: Directory not empty.")
        prefix = f"{source}/"
        for name in [n for n in self._files if n == source or n.startswith(prefix)]:
            self._files[target + name.removeprefix(source)] = self._files.pop(name)

    def remove(self, path: str) -> None:
        self.check("remove", path)
        self._files.pop(path, None)
        prefix = f"{path}/"
        for name in [name for name in self._files if name.startswith(prefix)]:
            self._removed[name] = self._files.pop(name)


def _after_power_loss(content: _Content, random: Random) -> bytes | None:
    """Return the content of a file after a power loss, or None if the file disappears."""
    if content.flushed is None and random.random() < 0.5:
        return None
    if content.uncut is not None and random.random() < 0.5:
        return content.uncut
    durable = content.flushed or 0
    unsynced = bytes(content.data[durable:])
    kept = bytearray(unsynced[: random.randint(0, len(unsynced))])
    if kept and random.random() < 0.5:
        torn = random.randint(0, len(kept) - 1)
        size = len(kept) - torn
        kept[torn:] = bytes(size) if random.random() < 0.5 else random.randbytes(size)
    return bytes(content.data[:durable]) + bytes(kept)
