"""A file that is created lazily.

An empty segment has no index files, so a new partition creates fewer files. Invariant: a file that
does not exist is treated as empty.
"""

from __future__ import annotations

from broker_ref.log.storage import File, Storage


class LazyFile:
    """A `File` that is created by `create`, the first append or the first flush."""

    def __init__(self, storage: Storage, path: str) -> None:
        self.path = path
        self._storage = storage
        self._file: File | None = storage.open(path) if storage.exists(path) else None

    def create(self) -> File:
        """Create the file if it does not exist, and return it."""
        if self._file is None:
            self._file = self._storage.open(self.path)
        return self._file

    def size(self) -> int:
        return 0 if self._file is None else self._file.size()

    def read(self, position: int, length: int) -> bytes:
        return b"" if self._file is None else self._file.read(position, length)

    def append(self, data: bytes | bytearray | memoryview) -> None:
        self.create().append(data)

    def truncate(self, size: int) -> None:
        if self._file is not None:
            self._file.truncate(size)

    def flush(self) -> None:
        self.create().flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
