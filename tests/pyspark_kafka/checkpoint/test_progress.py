"""Tests of the position of a query in its checkpoint."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from pathlib import Path

import pytest

from pyspark_kafka.checkpoint.files import LocalFiles, open_files
from pyspark_kafka.checkpoint.progress import last_batches, read_progress
from pyspark_kafka.errors import CheckpointError
from tests.pyspark_kafka.checkpoint.checkpoints import Checkpoint


@pytest.mark.parametrize(
    ("offset_ids", "commit_ids", "expected"),
    [
        ([], [], (None, None)),
        ([0], [], (None, 0)),
        ([0], [0], (0, None)),
        ([1, 0], [0], (0, 1)),
        ([9, 10, 11], [9, 10, 11], (11, None)),
        ([9, 10, 11], [9, 10], (10, 11)),
    ],
)
def test_last_batches(
    offset_ids: list[int], commit_ids: list[int], expected: tuple[int | None, int | None]
) -> None:
    assert last_batches(offset_ids, commit_ids) == expected


@pytest.mark.parametrize(
    ("offset_ids", "commit_ids"),
    [
        ([], [0]),  # the offsets are missing
        ([0], [1]),
        ([5, 6], []),  # the commits are missing
        ([3, 4, 5], [3]),  # asynchronous progress tracking
        ([6], [5]),  # the start offsets of micro-batch 6 are missing
    ],
)
def test_inconsistent_checkpoint(offset_ids: list[int], commit_ids: list[int]) -> None:
    with pytest.raises(CheckpointError):
        last_batches(offset_ids, commit_ids)


class RunningQuery(LocalFiles):
    """The files of a query that commits further micro-batches while the files are listed."""

    def __init__(self, directory: Path, batches: Iterable[int]) -> None:
        super().__init__(str(directory))
        self._committing = iter(batches)
        self.listings = 0

    def names(self, directory: str) -> list[str]:
        found = super().names(directory)
        self.listings += directory == "offsets"
        if directory == "offsets" and (batch_id := next(self._committing, None)) is not None:
            Checkpoint(Path(self.location)).write(offsets={batch_id: ["8"]}, commits=[batch_id])
        return found


def test_a_batch_is_committed_while_the_files_are_listed(tmp_path: Path) -> None:
    Checkpoint(tmp_path).write(offsets={0: ["7"]}, commits=[0])
    progress = read_progress(RunningQuery(tmp_path, (1, 2)))
    assert progress.committed is not None
    assert progress.committed.batch_id == 2
    with pytest.raises(CheckpointError, match="running"):
        read_progress(RunningQuery(tmp_path, count(3)))


def test_a_checkpoint_is_incomplete_only_if_it_does_not_change(tmp_path: Path) -> None:
    Checkpoint(tmp_path).write(offsets={0: ["7"]}, commits=[1])
    files = RunningQuery(tmp_path, ())
    with pytest.raises(CheckpointError, match="incomplete"):
        read_progress(files)
    assert files.listings == 2


def test_files_that_spark_ignores_are_ignored(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    checkpoint.write(offsets={2: ["7"], 10: ["8"]}, commits=[2, 10])
    for name in (".10.crc", "11.backup-20261126T010203.000000Z", ".11.f00.tmp", "x", "²"):
        (tmp_path / "offsets" / name).write_text("?")
    progress = read_progress(open_files(str(tmp_path)))
    assert progress.query_id == Checkpoint.QUERY_ID
    assert progress.committed is not None
    assert progress.committed.batch_id == 10
    assert progress.committed.entry.source_lines == ("8",)
    assert progress.planned is None
    assert not progress.has_state
    (tmp_path / "state" / "0").mkdir(parents=True)
    assert read_progress(open_files(str(tmp_path))).has_state


@pytest.mark.parametrize("content", [b"", b"v1", b"v3\n{}\n-", b'v1\n{}\n{"t":{"0":'])
def test_malformed_file(tmp_path: Path, content: bytes) -> None:
    Checkpoint(tmp_path).write(offsets={0: ["7"], 1: ["8"]}, commits=[0])
    (tmp_path / "offsets" / "1").write_bytes(content)
    with pytest.raises(CheckpointError, match=f"{tmp_path}/offsets/1"):
        read_progress(open_files(str(tmp_path)))


@pytest.mark.parametrize("directory", ["offsets", "other", "missing"])
def test_directory_that_is_not_a_checkpoint(tmp_path: Path, directory: str) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "other").mkdir()
    with pytest.raises(CheckpointError, match=f"{tmp_path}/{directory}"):
        read_progress(open_files(str(tmp_path / directory)))


def test_query_that_has_not_planned_a_batch(tmp_path: Path) -> None:
    Checkpoint(tmp_path).write(offsets={}, commits=[])
    progress = read_progress(open_files(str(tmp_path)))
    assert (progress.committed, progress.planned) == (None, None)
