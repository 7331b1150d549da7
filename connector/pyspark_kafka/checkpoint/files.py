"""Reads and replaces the files of a checkpoint, on a local file system or through Arrow.

Spark writes a checkpoint through Hadoop. This module uses Arrow, which accesses HDFS and the same
object stores as Hadoop, but requires its own credentials. Invariant: on a local file system, in S3
and in Google Cloud Storage, a file is replaced atomically, so readers see either the old or the new
content. On Azure and HDFS, an atomic replacement is not possible. On Azure, Arrow replaces the file
with an empty blob before it uploads the content. On HDFS, Arrow deletes the old file before it
renames the new file. If a replacement fails on Azure or HDFS, the file can be empty or missing.
Callers must therefore back up a file before they replace it.
"""

from __future__ import annotations

import os
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import quote
from uuid import uuid4

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(.*)", re.DOTALL)
_LOCAL: Final = "file"
_SCHEMES: Final = {
    "s3": "s3",
    "s3a": "s3",
    "s3n": "s3",
    "gs": "gs",
    "gcs": "gs",
    "abfs": "abfs",
    "abfss": "abfss",
    "hdfs": "hdfs",
    "viewfs": "viewfs",
}
"""Hadoop's URI schemes, and Arrow's schemes for the same file systems."""
_RENAMES: Final = ("hdfs",)
"""The Arrow file systems on which a file is written under another name and then renamed.

Here, a partially written file would be visible. S3 and Google Cloud Storage show an object only
after it is complete. On Azure, a rename would not help, because Arrow does not support it for all
storage accounts.
"""


class CheckpointFiles(Protocol):
    """The files of one checkpoint. Paths are relative to `location`, with `/` as the separator.

    Every method raises `OSError`, `ValueError` or `NotImplementedError` if it fails.
    """

    @property
    def location(self) -> str:
        """The location of the checkpoint, without a trailing slash."""

    def names(self, directory: str) -> list[str]:
        """Return the names in a directory. The list is empty if the directory does not exist."""

    def read(self, path: str) -> bytes:
        """Return the content of a file. Raises `FileNotFoundError`."""

    def write(self, path: str, content: bytes) -> None:
        """Create or replace a file. After an error, an existing file can be empty or missing."""


def unsupported_scheme(location: str) -> str | None:
    """Return the URI scheme of a location if the scheme is not supported, otherwise None."""
    match = _SCHEME.fullmatch(location)
    if match is None or match[1].lower() in (_LOCAL, *_SCHEMES):
        return None
    return match[1].lower()


def open_files(location: str) -> CheckpointFiles:
    """Return the files of a checkpoint. `location` is a local path or a supported URI.

    Raises `OSError`, `ValueError` or `NotImplementedError` if the file system cannot be opened.
    """
    location = location.rstrip("/") or "/"
    match = _SCHEME.fullmatch(location)
    if match is None:
        return LocalFiles(location)
    scheme, rest = match[1].lower(), match[2]
    if scheme == _LOCAL:
        return LocalFiles(f"/{rest.lstrip('/')}")
    # Imported locally, because the import loads the clients of all object stores.
    from pyarrow.fs import FileSystem  # noqa: PLC0415

    # Hadoop does not percent-decode paths, but Arrow decodes URIs.
    file_system, directory = FileSystem.from_uri(f"{_SCHEMES[scheme]}:{quote(rest, safe='/:@')}")
    return ArrowFiles(location, file_system, directory)


class LocalFiles:
    """The files of a checkpoint on a local or mounted file system."""

    def __init__(self, location: str) -> None:
        self.location = location
        self._directory = Path(location)

    def names(self, directory: str) -> list[str]:
        with suppress(FileNotFoundError):
            return [path.name for path in (self._directory / directory).iterdir()]
        return []

    def read(self, path: str) -> bytes:
        return (self._directory / path).read_bytes()

    def write(self, path: str, content: bytes) -> None:
        """Create or replace a file, and remove the checksum that Hadoop has written for it.

        A new file gets the owner and the mode of the file that it replaces, because the query may
        run as a different user than this process.
        """
        target = self._directory / path
        temporary = target.with_name(f".{target.name}.{uuid4()}.tmp")
        try:
            temporary.write_bytes(content)
            if target.exists():
                shutil.copymode(target, temporary)
                with suppress(PermissionError):
                    owner = target.stat()
                    os.chown(temporary, owner.st_uid, owner.st_gid)
            target.with_name(f".{target.name}.crc").unlink(missing_ok=True)
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)


class ArrowFiles:
    """The files of a checkpoint on HDFS or in an object store."""

    def __init__(self, location: str, file_system: Any, directory: str) -> None:
        self.location = location
        self._file_system = file_system
        self._directory = directory.rstrip("/")

    def names(self, directory: str) -> list[str]:
        from pyarrow.fs import FileSelector  # noqa: PLC0415

        selector = FileSelector(f"{self._directory}/{directory}", allow_not_found=True)
        return [found.base_name for found in self._file_system.get_file_info(selector)]

    def read(self, path: str) -> bytes:
        with self._file_system.open_input_stream(f"{self._directory}/{path}") as stream:
            return bytes(stream.read())

    def write(self, path: str, content: bytes) -> None:
        target = f"{self._directory}/{path}"
        is_renamed = self._file_system.type_name in _RENAMES
        written = f"{target}.{uuid4()}.tmp" if is_renamed else target
        with self._file_system.open_output_stream(written) as stream:
            stream.write(content)
        if is_renamed:
            self._file_system.move(written, target)
