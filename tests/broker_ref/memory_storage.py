"""A disk in memory that can crash.

Purpose: `Storage` for tests. `crash` gives the disk as a power loss would leave it: what was
flushed is there, of what was written after that any prefix, possibly with its last bytes torn;
files never flushed may be gone. Renames, removals and atomic writes are durable, as the protocol
says. `fail_on` makes the next operations of a kind fail, as a full disk does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from broker_ref.log.storage import StorageError


@dataclass(slots=True)
class _Content:
    current: bytearray = field(default_factory=bytearray)
    durable: bytes | None = None


class MemoryFile:
    """One file; handles of the same path share their content."""

    def __init__(self, storage: MemoryStorage, path: str, content: _Content) -> None:
        self._storage = storage
        self._path = path
        self._content = content

    @property
    def path(self) -> str:
        return self._path

    def size(self) -> int:
        return len(self._content.current)

    def read(self, position: int, length: int) -> bytes:
        self._storage.check("read", self._path)
        return bytes(self._content.current[position : position + length])

    def append(self, data: bytes | bytearray | memoryview) -> None:
        self._storage.check("append", self._path)
        self._content.current += data

    def truncate(self, size: int) -> None:
        self._storage.check("truncate", self._path)
        del self._content.current[size:]

    def flush(self) -> None:
        self._storage.check("flush", self._path)
        self._content.durable = bytes(self._content.current)

    def close(self) -> None:
        """Nothing to give back."""


class MemoryStorage:
    """Files by path."""

    def __init__(self) -> None:
        self._files: dict[str, _Content] = {}
        self._failing: list[tuple[str, str]] = []
        self._changes_left: int | None = None

    def fail_on(self, operation: str | None) -> None:
        """Let every operation of a kind fail; None: none any more.

        Kinds: `read`, `append`, `truncate`, `flush`, `write`, `rename`, `remove`.
        """
        self._failing = [] if operation is None else [("", operation)]

    def fail_below(self, prefix: str, operation: str) -> list[tuple[str, str]]:
        """Let an operation fail where the path begins so, until the list returned is cleared."""
        self._failing = [(prefix, operation)]
        return self._failing

    def fail_after(self, changes: int | None) -> bool:
        """Let the first `changes - 1` operations that change something pass, and then none.

        None: let all pass. Returns whether none has failed since the last call.
        """
        passed, self._changes_left = self._changes_left != 0, changes
        return passed

    def check(self, operation: str, path: str) -> None:
        if self._changes_left is not None and operation != "read":
            self._changes_left = max(self._changes_left - 1, 0)
            if self._changes_left == 0:
                raise StorageError(f"Cannot {operation} {path}: the power is out.")
        if any(path.startswith(prefix) and operation == kind for prefix, kind in self._failing):
            raise StorageError(f"Cannot {operation} {path}: No space left on device.")

    def crash(self, random: Random) -> MemoryStorage:
        """The disk after a power loss now; this one stays as it is."""
        survivor = MemoryStorage()
        for path, content in self._files.items():
            left = _after_crash(content, random)
            if left is not None:
                survivor._files[path] = _Content(current=bytearray(left), durable=left)
        return survivor

    def overwrite(self, path: str, position: int, data: bytes) -> None:
        """Damage a file behind the log's back."""
        content = self._files[path]
        content.current[position : position + len(data)] = data
        content.durable = bytes(content.current)

    def cut(self, path: str, size: int) -> None:
        """Shorten a file behind the log's back."""
        del self._files[path].current[size:]
        self._files[path].durable = bytes(self._files[path].current)

    def open(self, path: str) -> MemoryFile:
        return MemoryFile(self, path, self._files.setdefault(path, _Content()))

    def exists(self, path: str) -> bool:
        return path in self._files or any(name.startswith(f"{path}/") for name in self._files)

    def list(self, directory: str) -> list[str]:
        prefix = f"{directory}/" if directory else ""
        names = {
            name.removeprefix(prefix).split("/")[0]
            for name in self._files
            if name.startswith(prefix)
        }
        return sorted(names)

    def read(self, path: str) -> bytes:
        if path not in self._files:
            raise StorageError(f"Cannot read {path}: No such file or directory.")
        return bytes(self._files[path].current)

    def write_atomically(self, path: str, data: bytes) -> None:
        self.check("write", path)
        self._files[path] = _Content(current=bytearray(data), durable=bytes(data))

    def rename(self, source: str, target: str) -> None:
        self.check("rename", source)
        for name in [n for n in self._files if n == source or n.startswith(f"{source}/")]:
            self._files[target + name.removeprefix(source)] = self._files.pop(name)

    def remove(self, path: str) -> None:
        self.check("remove", path)
        for name in [n for n in self._files if n == path or n.startswith(f"{path}/")]:
            del self._files[name]


def _after_crash(content: _Content, random: Random) -> bytes | None:
    """What is left of one file, None if it is gone."""
    durable = content.durable
    if durable is None:
        if random.random() < 0.5:
            return None
        durable = b""
    current = bytes(content.current)
    if not current.startswith(durable):
        return durable if random.random() < 0.5 else current
    unsynced = current[len(durable) :]
    kept = bytearray(unsynced[: random.randint(0, len(unsynced))])
    if kept and random.random() < 0.5:
        torn = random.randint(0, len(kept) - 1)
        kept[torn:] = (
            bytes(len(kept) - torn) if random.random() < 0.5 else random.randbytes(len(kept) - torn)
        )
    return durable + bytes(kept)
