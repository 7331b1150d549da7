"""Tests of reading and replacing the files of a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.fs
import pytest

from pyspark_kafka.checkpoint.files import ArrowFiles, CheckpointFiles, LocalFiles, open_files


class RenamingFileSystem:
    """A local file system that is used as if it were HDFS."""

    type_name = "hdfs"

    def __init__(self) -> None:
        self._local = pyarrow.fs.LocalFileSystem()
        self.opened: list[str] = []

    def open_output_stream(self, path: str) -> Any:
        self.opened.append(path)
        return self._local.open_output_stream(path)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._local, name)


@pytest.fixture(params=["local", "object store", "hdfs"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> CheckpointFiles:
    match request.param:
        case "local":
            return LocalFiles(str(tmp_path))
        case "object store":
            base = pyarrow.fs.SubTreeFileSystem(str(tmp_path.parent), pyarrow.fs.LocalFileSystem())
            return ArrowFiles("s3://bucket", base, tmp_path.name)
    return ArrowFiles("hdfs://name/c", RenamingFileSystem(), str(tmp_path))


def test_files_are_created_replaced_and_listed(files: CheckpointFiles, tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    files.write("offsets/7", b"old")
    files.write("offsets/7", b"new")
    assert files.read("offsets/7") == b"new"
    assert files.names("offsets") == ["7"]
    assert files.names("") == ["offsets"]
    assert files.names("missing") == []
    with pytest.raises(FileNotFoundError):
        files.read("offsets/8")


def test_a_file_on_hdfs_appears_when_it_is_complete(tmp_path: Path) -> None:
    file_system = RenamingFileSystem()
    ArrowFiles("hdfs://name/c", file_system, str(tmp_path)).write("7", b"new")
    [written] = file_system.opened
    assert written.startswith(f"{tmp_path}/7.")
    assert [path.name for path in tmp_path.iterdir()] == ["7"]


def test_a_replaced_local_file_keeps_its_mode_and_loses_its_checksum(tmp_path: Path) -> None:
    """Hadoop's `FileSystem` rejects a file whose content does not match its `.crc` file."""
    path = tmp_path / "7"
    path.write_bytes(b"old")
    path.chmod(0o640)
    (tmp_path / ".7.crc").write_bytes(b"crc")
    (tmp_path / ".8.crc").write_bytes(b"crc")
    LocalFiles(str(tmp_path)).write("7", b"new")
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o640
    assert sorted(each.name for each in tmp_path.iterdir()) == [".8.crc", "7"]


def test_a_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "7").write_bytes(b"old")

    def fail(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="no space"):
        LocalFiles(str(tmp_path)).write("7", b"new")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"7": b"old"}


@pytest.mark.parametrize("form", ["{}", "{}/", "file:{}", "file://{}/"])
def test_location_of_a_local_checkpoint(tmp_path: Path, form: str) -> None:
    assert open_files(form.format(tmp_path)).location == str(tmp_path)
