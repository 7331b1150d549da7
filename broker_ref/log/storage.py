"""The seam between the log and whatever keeps its bytes.

Purpose: everything the broker persists goes through `Storage`, so that the same log runs on a
disk (`broker_ref.io.disk`), in memory for tests, and on a simulated disk that loses unsynced
writes. Invariant: a path is relative, `/`-separated and never leaves the root. What it must not
know: Kafka. Record formats live above it.
"""

from __future__ import annotations

from typing import Protocol


class StorageError(Exception):
    """The storage could not do what was asked: names the path, the operation and the reason."""


class RetriableStorageError(StorageError):
    """The process has no file descriptor to spare: doing the same again later is safe."""


class File(Protocol):
    """One open file. Writes reach the page cache; only `flush` makes them survive power loss."""

    @property
    def path(self) -> str: ...

    def size(self) -> int:
        """Current length in bytes."""

    def read(self, position: int, length: int) -> bytes:
        """Up to `length` bytes from `position`; shorter only where the file ends."""

    def append(self, data: bytes | bytearray | memoryview) -> None:
        """Write at the end, whole or not at all as far as this process can tell."""

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes; later appends go there."""

    def flush(self) -> None:
        """Make everything written so far durable (fsync)."""

    def close(self) -> None: ...


class Storage(Protocol):
    """A tree of files under one root. Every error is a `StorageError` naming the path."""

    def open(self, path: str) -> File:
        """Open for reading and appending; made, with its directories, where missing."""

    def exists(self, path: str) -> bool: ...

    def list(self, directory: str) -> list[str]:
        """Names of the entries directly under `directory`, sorted; empty where it is missing."""

    def read(self, path: str) -> bytes:
        """The whole file."""

    def write_atomically(self, path: str, data: bytes) -> None:
        """Replace the file: write beside it, fsync, rename, fsync the directory."""

    def rename(self, source: str, target: str) -> None:
        """Rename a file or directory, durably."""

    def remove(self, path: str) -> None:
        """Remove a file, or a directory with all that is in it; nothing happens where missing."""
