"""The interface between the log and its storage.

The broker persists all data through `Storage`. The log can therefore use a disk
(`broker_ref.io.disk`) or, in tests, memory or a simulated disk that loses unflushed writes.
Invariant: paths are relative, use `/` as the separator, and never lead outside the root directory.
"""

from __future__ import annotations

from typing import Protocol


class StorageError(Exception):
    """A storage operation failed. The message contains the operation, the path and the reason."""


class RetriableStorageError(StorageError):
    """An operation was not started because file descriptors ran out. A retry is safe."""


class File(Protocol):
    """An open file.

    Writes go to the page cache. Only data that has been flushed survives a power failure.
    """

    @property
    def path(self) -> str: ...

    def size(self) -> int:
        """Return the current size in bytes."""

    def read(self, position: int, length: int) -> bytes:
        """Return `length` bytes from `position`, or fewer bytes at the end of the file."""

    def append(self, data: bytes | bytearray | memoryview) -> None:
        """Append `data` to the file.

        If an append fails, no part of `data` is visible to this process.
        """

    def truncate(self, size: int) -> None:
        """Truncate the file to `size` bytes. Later appends start at the new end."""

    def flush(self) -> None:
        """Make all previous writes durable (fsync)."""

    def close(self) -> None: ...


class Storage(Protocol):
    """A tree of files under one root directory.

    All errors are raised as `StorageError` with the path.
    """

    def open(self, path: str) -> File:
        """Open a file for reading and appending. Create it and its directories if necessary."""

    def exists(self, path: str) -> bool: ...

    def list(self, directory: str) -> list[str]:
        """Return the sorted names in `directory`, or an empty list if it does not exist."""

    def read(self, path: str) -> bytes:
        """Return the contents of a file."""

    def write_atomically(self, path: str, data: bytes) -> None:
        """Replace a file: write and fsync a temporary file, rename it, and fsync the directory."""

    def rename(self, source: str, target: str) -> None:
        """Rename a file or directory. The rename of a file is durable.

        A power failure may undo the rename of a directory.
        """

    def remove(self, path: str) -> None:
        """Remove a file, or a directory with its contents. The removal of a file is durable.

        A power failure may undo the removal of a directory. A path that does not exist is ignored.
        """
