"""A `Storage` implementation that stores files on a disk.

Invariants: no path leads outside the root directory. Only one process at a time can lock the root
directory (with a `.lock` file, as in Kafka's log directories). At most `open_files_max` file
descriptors are open, even if more files are in use. When a flush returns, the directory entries of
the file and of its parent directories are durable, even if an earlier process created them and was
killed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from broker_ref.log.storage import RetriableStorageError, StorageError

LOCK_FILE = ".lock"
_TEMPORARY_SUFFIX = ".tmp"
OPEN_FILES_MAX = 512

_Result = TypeVar("_Result")
_TOO_MANY_OPEN = (errno.EMFILE, errno.ENFILE)


class DiskStorage:
    """A directory tree under `root`, which is created if it does not exist. Not thread-safe."""

    def __init__(
        self, root: str | os.PathLike[str], *, open_files_max: int = OPEN_FILES_MAX
    ) -> None:
        """Lock the root directory.

        Raises: StorageError if the directory cannot be used or another broker uses it.
        """
        self._root = Path(root).absolute()
        self._descriptors = _Descriptors(self._root, open_files_max)
        with _errors("create", self._root):
            self._root.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(
                self._root / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644
            )
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise StorageError(
                f"The data directory {self._root} is in use by another broker. Stop that broker, "
                "or use another directory."
            ) from error

    def close(self) -> None:
        """Close all files and release the lock."""
        self._descriptors.close_all()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def open(self, path: str) -> DiskFile:
        full = self._resolve(path)
        with _errors("open", full):
            self._make_directory(full.parent)
        return DiskFile(path, full, self._descriptors)

    def exists(self, path: str) -> bool:
        full = self._resolve(path)
        with _errors("look up", full):
            try:
                full.stat()  # since Python 3.14, Path.exists() also returns False for I/O errors
            except (FileNotFoundError, NotADirectoryError):
                return False
            return True

    def list(self, directory: str) -> list[str]:
        full = self._resolve(directory)
        with _errors("list", full):
            try:
                names = self._descriptors.with_room(lambda: os.listdir(full))  # noqa: PTH208
            except (FileNotFoundError, NotADirectoryError):
                return []
        return sorted(
            name for name in names if name != LOCK_FILE and not name.endswith(_TEMPORARY_SUFFIX)
        )

    def read(self, path: str) -> bytes:
        full = self._resolve(path)
        with _errors("read", full):
            return self._descriptors.with_room(full.read_bytes)

    def write_atomically(self, path: str, data: bytes) -> None:
        full = self._resolve(path)
        temporary = full.with_name(full.name + _TEMPORARY_SUFFIX)
        with _errors("write", full):
            self._make_directory(full.parent)
            with self._descriptors.with_room(lambda: temporary.open("wb")) as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(full)
            self._descriptors.sync_directory(full.parent)

    def rename(self, source: str, target: str) -> None:
        full_source, full_target = self._resolve(source), self._resolve(target)
        with _errors("rename", full_source):
            full_source.rename(full_target)
            changed = {full_target.parent, full_source.parent}
            if full_target.is_dir():
                self._descriptors.entries_changed(full_source, *changed)
                return
            for directory in changed:
                self._descriptors.sync_directory(directory)

    def remove(self, path: str) -> None:
        full = self._resolve(path)
        with _errors("remove", full):
            if full.is_dir() and not full.is_symlink():
                # Make an earlier rename durable first. Otherwise, after a power failure, the old
                # name could refer to a log that lacks some files.
                self._descriptors.ensure_synced(full.parent)
                self._descriptors.entries_changed(full)
                self._descriptors.with_room(lambda: shutil.rmtree(full))
                return
            try:
                full.unlink()
            except FileNotFoundError:
                return
            self._descriptors.sync_directory(full.parent)

    def _make_directory(self, full: Path) -> None:
        if not full.is_dir():
            full.mkdir(parents=True)
            self._descriptors.entries_changed(full, *full.parents)

    def _resolve(self, path: str) -> Path:
        parts = path.split("/") if path else []
        if any(part in ("", ".", "..") or "\x00" in part for part in parts):
            raise StorageError(f"The path {path!r} is outside the data directory {self._root}.")
        return self._root.joinpath(*parts)


class DiskFile:
    """A file whose descriptor is opened when it is needed."""

    def __init__(self, path: str, full: Path, descriptors: _Descriptors) -> None:
        self._path = path
        self._full = full
        self._descriptors = descriptors
        with _errors("open", full):
            if not full.exists():
                descriptors.entries_changed(full.parent)
            self._size = os.fstat(descriptors.get(self._full)).st_size

    @property
    def path(self) -> str:
        return self._path

    def size(self) -> int:
        return self._size

    def read(self, position: int, length: int) -> bytes:
        length = min(length, self._size - position)
        if length <= 0:
            return b""
        with _errors("read", self._full):
            data = os.pread(self._descriptors.get(self._full), length, position)
            while len(data) < length:
                more = os.pread(
                    self._descriptors.get(self._full), length - len(data), position + len(data)
                )
                if not more:
                    break
                data += more
            return data

    def append(self, data: bytes | bytearray | memoryview) -> None:
        view = memoryview(data)
        written = 0
        with _errors("append to", self._full):
            descriptor = self._descriptors.get(self._full)
            try:
                while written < len(view):
                    written += os.pwrite(descriptor, view[written:], self._size + written)
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(descriptor, self._size)
                raise
        self._size += written

    def truncate(self, size: int) -> None:
        with _errors("truncate", self._full):
            os.ftruncate(self._descriptors.get(self._full), size)
        self._size = size

    def flush(self) -> None:
        with _errors("flush", self._full):
            os.fsync(self._descriptors.get(self._full))
            self._descriptors.ensure_synced(self._full.parent)

    def close(self) -> None:
        self._descriptors.close(self._full)


class _Descriptors:
    """The open file descriptors by path. The least recently used descriptor is closed first."""

    def __init__(self, root: Path, open_files_max: int) -> None:
        self._root = root
        self._open_files_max = open_files_max
        self._open: OrderedDict[Path, int] = OrderedDict()
        self._synced: set[Path] = set()
        """The directories whose own entries and whose parents' entries are durable.

        Entries that an earlier process created may not be durable, because that process may have
        been killed.
        """

    def get(self, full: Path) -> int:
        descriptor = self._open.get(full)
        if descriptor is not None:
            self._open.move_to_end(full)
            return descriptor
        while len(self._open) >= self._open_files_max:
            self._close_oldest()
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        descriptor = self.with_room(lambda: os.open(full, flags, 0o644))
        self._open[full] = descriptor
        return descriptor

    def with_room(self, action: Callable[[], _Result]) -> _Result:
        """Run an action that opens a file.

        If too many files are open, close a descriptor and run the entire action again.
        """
        while True:
            try:
                return action()
            except OSError as error:
                if error.errno not in _TOO_MANY_OPEN or not self._open:
                    raise
                self._close_oldest()

    def sync_directory(self, full: Path) -> None:
        """Make the entries of a directory and of its parents durable (fsync)."""
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        descriptor = self.with_room(lambda: os.open(full, flags))
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if full != self._root:
            self.ensure_synced(full.parent)
        self._synced.add(full)

    def ensure_synced(self, full: Path) -> None:
        """Make the entries of a directory durable, unless they are already durable."""
        if full not in self._synced:
            self.sync_directory(full)

    def entries_changed(self, *directories: Path) -> None:
        """Record that entries of these directories may not be durable."""
        self._synced.difference_update(directories)

    def _close_oldest(self) -> None:
        os.close(self._open.popitem(last=False)[1])

    def close(self, full: Path) -> None:
        descriptor = self._open.pop(full, None)
        if descriptor is not None:
            os.close(descriptor)

    def close_all(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1])


@contextlib.contextmanager
def _errors(operation: str, full: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        kind = RetriableStorageError if error.errno in _TOO_MANY_OPEN else StorageError
        raise kind(f"Cannot {operation} {full}: {reason}.") from error
