"""Tests of the storage on a real disk, and of a log on it."""

from __future__ import annotations

import errno
import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_ref.io.disk import DiskStorage
from broker_ref.log.errors import LogError
from broker_ref.log.log_manager import LogManager
from broker_ref.log.storage import Storage, StorageError
from tests.broker_ref.log.batches import NOW_MS, batch
from tests.broker_ref.log.logs import SMALL, read_all


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[DiskStorage]:
    made = DiskStorage(tmp_path / "data")
    yield made
    made.close()


def test_disk_storage_implements_storage(storage: DiskStorage) -> None:
    checked: Storage = storage
    assert checked.list("") == []
    assert not checked.exists("missing")
    checked.remove("missing")


def test_files_are_appended_read_truncated_and_reopened(
    storage: DiskStorage, tmp_path: Path
) -> None:
    file = storage.open("a/b/file")
    file.append(b"0123")
    file.append(memoryview(bytearray(b"456789")))
    assert (file.size(), file.path) == (10, "a/b/file")
    assert [file.read(2, 3), file.read(8, 100), file.read(10, 1)] == [b"234", b"89", b""]
    file.truncate(4)
    file.append(b"x")
    file.flush()
    assert storage.open("a/b/file").read(0, 99) == b"0123x"
    assert (tmp_path / "data/a/b/file").read_bytes() == b"0123x"
    assert storage.list("a") == ["b"]


def test_whole_files_are_replaced_renamed_and_removed(storage: DiskStorage) -> None:
    storage.write_atomically("d/one", b"1")
    storage.write_atomically("d/one", b"22")
    assert storage.read("d/one") == b"22"
    assert storage.list("d") == ["one"]
    storage.rename("d", "e")
    assert storage.exists("e/one")
    storage.remove("e/one")
    assert storage.list("e") == []
    storage.write_atomically("e/deep/two", b"")
    storage.remove("e")
    assert not storage.exists("e")


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/../../x", "a//b", "./a", "a/", "a\0b"])
def test_a_path_outside_the_root_is_rejected(storage: DiskStorage, path: str) -> None:
    for operation in (storage.open, storage.read, storage.remove, storage.list, storage.exists):
        with pytest.raises(StorageError, match=re.escape(repr(path))):
            operation(path)


def test_errors_name_the_file_and_the_reason(storage: DiskStorage, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"/data/missing\b.*No such file"):
        storage.read("missing")
    storage.write_atomically("file", b"")
    with pytest.raises(StorageError, match="/data/file/below"):
        storage.open("file/below")
    with pytest.raises(StorageError, match="/data/file/root"):
        DiskStorage(tmp_path / "data" / "file" / "root")


def test_a_second_broker_on_the_same_directory_is_rejected(
    storage: DiskStorage, tmp_path: Path
) -> None:
    with pytest.raises(StorageError, match=re.escape(f"{tmp_path}/data")) as caught:
        DiskStorage(tmp_path / "data")
    assert isinstance(caught.value.__cause__, BlockingIOError)
    code = f"from broker_ref.io.disk import DiskStorage; DiskStorage({str(tmp_path / 'data')!r})"
    other = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert other.returncode == 1
    assert "BlockingIOError" in other.stderr
    assert "StorageError" in other.stderr
    storage.close()
    DiskStorage(tmp_path / "data").close()


def test_the_number_of_descriptors_is_limited(tmp_path: Path) -> None:
    storage = DiskStorage(tmp_path, open_files_max=8)
    before = len(list(Path("/proc/self/fd").iterdir()))
    files = [storage.open(f"d/{i}") for i in range(100)]
    for turn in range(3):
        for i, file in enumerate(files):
            file.append(f"{turn}-{i} ".encode())
    assert len(list(Path("/proc/self/fd").iterdir())) - before <= 8
    assert files[17].read(0, 99) == b"0-17 1-17 2-17 "
    for file in files:
        file.flush()
        file.close()
    storage.close()


class FewDescriptors:
    """A patch of `os.open` that fails while more than `spare` descriptors are in use."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.spare: int | None = None
        self._open = os.open
        monkeypatch.setattr(os, "open", self.open)

    def allow(self, spare: int) -> None:
        """Set how many files can be opened in addition to the open ones."""
        self.spare = len(list(Path("/proc/self/fd").iterdir())) - 1 + spare

    def open(self, path: str | Path, flags: int, mode: int = 0o777) -> int:
        in_use = len(list(Path("/proc/self/fd").iterdir())) - 1
        if self.spare is not None and in_use >= self.spare:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return self._open(path, flags, mode)


def test_descriptors_are_closed_if_the_process_has_none_left(
    storage: DiskStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        storage.open(f"d/{number}").append(b"x")
    FewDescriptors(monkeypatch).allow(0)
    file = storage.open("d/new")
    file.append(b"y")
    file.flush()
    assert storage.read("d/new") == b"y"
    assert storage.open("d/0").read(0, 9) == b"x"


def test_a_log_accepts_writes_again_when_descriptors_are_available(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = DiskStorage(tmp_path, open_files_max=4)
    directory = LogManager(storage=storage)
    log = directory.open_log("orders", 0, config=SMALL, now_ms=NOW_MS)
    limit = FewDescriptors(monkeypatch)
    appended = 0
    for number in range(200):
        storage._descriptors.close_all()
        if number % 3 == 1:
            limit.spare = 0
            with pytest.raises(LogError, match="Too many open files"):
                log.append(batch(), leader_epoch=number // 50, now_ms=NOW_MS)
            with pytest.raises(LogError, match="Too many open files"):
                log.read(0, end_offset=1, max_bytes=1, at_least_one_batch=True)
            limit.spare = None
        else:
            log.append(batch(), leader_epoch=number // 50, now_ms=NOW_MS)
            appended += 1
    assert log.storage_error is None
    assert log.log_end_offset == appended
    assert len(log.segment_base_offsets) > 1
    batches = read_all(log)
    directory.close()
    again = LogManager(storage=storage)
    assert again.was_clean
    assert read_all(again.open_log("orders", 0, config=SMALL, now_ms=NOW_MS)) == batches
    storage.close()


class Fsyncs:
    """A patch of `os.fsync` that stores the paths, and fails for the paths in `failing`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
        self.failing: set[str] = set()
        self._root = root
        self._paths: list[str] = []
        self._fsync = os.fsync
        monkeypatch.setattr(os, "fsync", self.fsync)

    def fsync(self, descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink().relative_to(self._root).as_posix()
        self._paths.append(path)
        if path in self.failing:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self._fsync(descriptor)

    def take(self) -> list[str]:
        """Return the paths since the last call."""
        taken, self._paths = self._paths, []
        return taken


@pytest.fixture
def fsyncs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fsyncs:
    return Fsyncs(monkeypatch, tmp_path / "data")


@pytest.mark.parametrize("name", ["old", "new"])
def test_a_flush_makes_the_entries_of_a_killed_process_durable(
    tmp_path: Path, fsyncs: Fsyncs, name: str
) -> None:
    killed = DiskStorage(tmp_path / "data")
    killed.open("orders-0/old").append(b"a")
    killed.close()
    assert fsyncs.take() == []
    storage = DiskStorage(tmp_path / "data")
    file = storage.open(f"orders-0/{name}")
    file.append(b"b")
    fsyncs.failing.add(".")
    with pytest.raises(StorageError, match="Input/output error"):
        file.flush()
    fsyncs.failing.clear()
    for directories in (["orders-0", "."], []):
        fsyncs.take()
        file.flush()
        assert fsyncs.take() == [f"orders-0/{name}", *directories]
    storage.close()


def test_new_and_renamed_directories_become_durable(storage: DiskStorage, fsyncs: Fsyncs) -> None:
    for expected in (["a/b/c/file", "a/b/c", "a/b", "a", "."], ["a/b/c/file"]):
        storage.open("a/b/c/file").flush()
        assert fsyncs.take() == expected
    storage.open("a/d/file").flush()
    assert fsyncs.take() == ["a/d/file", "a/d", "a", "."]
    storage.rename("a", "e")
    storage.remove("e")
    assert fsyncs.take() == ["."]
    storage.open("a/file").flush()
    assert fsyncs.take() == ["a/file", "a", "."]


def test_a_partial_append_is_removed(storage: DiskStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    file = storage.open("file")
    file.append(b"before")
    write = os.pwrite

    def short_then_full(descriptor: int, data: memoryview, position: int) -> int:
        if position > 6:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data[:3], position)

    monkeypatch.setattr(os, "pwrite", short_then_full)
    with pytest.raises(StorageError, match="No space left on device"):
        file.append(b"after")
    monkeypatch.undo()
    assert (file.size(), storage.read("file")) == (6, b"before")
    file.append(b"!")
    assert storage.read("file") == b"before!"


def test_a_log_on_disk_survives_a_killed_process(tmp_path: Path) -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    storage = DiskStorage(tmp_path, open_files_max=min(16, soft))
    directory = LogManager(storage=storage)
    log = directory.open_log("orders", 0, config=SMALL, now_ms=NOW_MS)
    for i in range(100):
        log.append(batch(producer=(1, 0, i)), leader_epoch=i // 30, now_ms=NOW_MS)
    batches = read_all(log)
    storage.close()  # As in a killed process, nothing is flushed.

    storage = DiskStorage(tmp_path)
    directory = LogManager(storage=storage)
    again = directory.open_log("orders", 0, config=SMALL, now_ms=NOW_MS)
    assert read_all(again) == batches
    assert again.leader_epochs.entries == log.leader_epochs.entries
    assert [e.last_sequence for e in again.producer_entries] == [99]
    directory.close()
    storage.close()


def test_an_invalid_file_name_is_a_storage_error(storage: DiskStorage) -> None:
    for look_up in (storage.exists, storage.list):
        with pytest.raises(StorageError, match="File name too long"):
            look_up("x" * 300)
