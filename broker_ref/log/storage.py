"""The interface between the log and its storage.

Purpose: everything that the broker persists goes through `Storage`, so that the same log runs on a
disk (`broker_ref.io.disk`), in memory for tests, and on a simulated disk that loses unflushed
writes. Invariant: a path is relative, `/`-separated and never leaves the root. Must not know:
Kafka; record formats belong to higher layers.
"""

from __future__ import annotations

from typing import Protocol


class StorageError(Exception):
    """A storage operation failed; the message contains the path, the operation and the reason."""


class RetriableStorageError(StorageError):
    """The operation did not start for lack of file descriptors; a retry is safe."""


class File(Protocol):
    """An open file. Writes reach the page cache; only `flush` makes them survive power loss."""

    @property
    def path(self) -> str: ...

    def size(self) -> int:
        """Return the current length in bytes."""

    def read(self, position: int, length: int) -> bytes:
        """Return up to `length` bytes from `position`; fewer only at the end of the file."""

    def append(self, data: bytes | bytearray | memoryview) -> None:
        """Write at the end, completely or not at all as far as this process can observe."""

    def truncate(self, size: int) -> None:
        """Truncate the file to `size` bytes; later appends start there."""

    def flush(self) -> None:
        """Make everything written so far durable (fsync)."""

    def close(self) -> None: ...


class Storage(Protocol):
    """A tree of files under one root. Every error is a `StorageError` with the path."""

    def open(self, path: str) -> File:
        """Open for reading and appending, creating the file and its directories if missing."""

    def exists(self, path: str) -> bool: ...

    def list(self, directory: str) -> list[str]:
        """Return the names in `directory`, sorted; empty if it is missing."""

    def read(self, path: str) -> bytes:
        """Return the contents of the file."""

    def write_atomically(self, path: str, data: bytes) -> None:
        """Replace the file: write a temporary file, fsync, rename, fsync the directory."""

    def rename(self, source: str, target: str) -> None:
        """Durably rename a file or directory."""

    def remove(self, path: str) -> None:
        """Remove a file, or a directory with its contents; has no effect if missing."""
