"""Tests of the offsets of a micro-batch, read from Spark's checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.fs
import pytest

from pyspark_kafka.errors import CheckpointError, OptionError
from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.sink.exactly_once.source_offsets import SourceOffsets, read_source_offsets

METADATA = '{"batchWatermarkMs":0,"batchTimestampMs":1763771111111,"conf":{"a":"b"}}'
KAFKA = '{"t":{"0":5,"1":7}}'


def written(directory: Path, *sources: str, version: str = "v1", metadata: str = METADATA) -> str:
    """Write a checkpoint with the offsets of batch 3 and return its path."""
    return file_of(directory, "\n".join([version, metadata, *sources]).encode())


def file_of(directory: Path, content: bytes) -> str:
    (directory / "offsets").mkdir(parents=True, exist_ok=True)
    (directory / "offsets" / "3").write_bytes(content)
    return str(directory)


def offsets(found: SourceOffsets) -> dict[str, int]:
    return {str(partition): offset for partition, offset in found.offsets.items()}


def test_offsets_of_a_source(tmp_path: Path) -> None:
    found = read_source_offsets(written(tmp_path, KAFKA), 3)
    assert found.offsets == {TopicPartition("t", 0): 5, TopicPartition("t", 1): 7}


def test_offsets_of_several_kafka_sources_are_merged(tmp_path: Path) -> None:
    found = read_source_offsets(written(tmp_path, KAFKA, '{"u":{"0":1}}'), 3)
    assert offsets(found) == {"t-0": 5, "t-1": 7, "u-0": 1}


def test_lower_offset_of_two_sources_counts(tmp_path: Path) -> None:
    found = read_source_offsets(written(tmp_path, KAFKA, '{"t":{"0":4}}', '{"t":{"1":9}}'), 3)
    assert offsets(found) == {"t-0": 4, "t-1": 7}


@pytest.mark.parametrize(
    "line",
    [
        "-",
        "17",
        '{"logOffset":3}',
        '{"offset":12,"timestamp":1763771111111}',
        '{"sourceVersion":1,"reservoirId":"x","index":-1,"isStartingVersion":true}',
        '{"shardId-000":{"iteratorType":"AFTER_SEQUENCE_NUMBER","iteratorPosition":"49"}}',
        "{}",
        "some text",
        '"a":1',
    ],
)
def test_sources_that_are_not_kafka_have_no_offsets(tmp_path: Path, line: str) -> None:
    assert offsets(read_source_offsets(written(tmp_path, line, KAFKA), 3)) == {"t-0": 5, "t-1": 7}
    assert offsets(read_source_offsets(written(tmp_path, line), 3)) == {}


@pytest.mark.parametrize(
    ("line", "facts"),
    [
        ('{"t":{"0":5,"1"', "JSON"),
        ('{"t":{"0":-5}}', "t-0 .*-5"),
        ('{"t":{"0":"5"}}', "t-0 .*'5'"),
        ('{"t":{"0":5.5}}', r"t-0 .*\b5\.5"),
        ('{"t":{"zero":5}}', "'zero'"),
        ('{"t":{"1":5,"01":6}}', "t-1"),
        ('{"t":{}}', "'t'"),
        ('{"t":{"0":5},"u":6}', "'u'"),
        ('{"t":{"0":5}} ,', "JSON"),
        ('{"":{"0":5}}', "source 2"),
    ],
)
def test_damaged_line_of_a_kafka_source(tmp_path: Path, line: str, facts: str) -> None:
    with pytest.raises(CheckpointError, match=facts) as raised:
        read_source_offsets(written(tmp_path, KAFKA, line), 3)
    text = str(raised.value)
    assert f"{tmp_path}/offsets/3" in text
    assert raised.value.option == "checkpointLocation"
    assert "source 2" in text


@pytest.mark.parametrize(
    ("content", "facts"),
    [
        (b"", "''"),
        (b"v3\n{}\n" + KAFKA.encode(), "'v3'"),
        (b"v1", "offsets/3"),
        (b"v1\n{}", "offsets/3"),
        (b"v1\n{}\n", "offsets/3"),
        (b"v1\n{}\n\xff", "UTF-8"),
    ],
)
def test_incomplete_file(tmp_path: Path, content: bytes, facts: str) -> None:
    with pytest.raises(CheckpointError, match=facts):
        read_source_offsets(file_of(tmp_path, content), 3)


def test_hash_covers_all_sources_and_nothing_else(tmp_path: Path) -> None:
    def hash_of(*sources: str, metadata: str = METADATA) -> str:
        return read_source_offsets(written(tmp_path, *sources, metadata=metadata), 3).hash

    first = hash_of(KAFKA, "17")
    assert hash_of(KAFKA, "17") == first
    assert hash_of(KAFKA, "17", metadata="") == first, "the timestamp is not part of the input"
    assert hash_of(KAFKA, "18") != first
    assert hash_of('{"t":{"0":5,"1":8}}', "17") != first
    assert hash_of(KAFKA) != first
    assert hash_of("17", KAFKA) != first


def test_the_second_version_names_its_sources(tmp_path: Path) -> None:
    found = read_source_offsets(written(tmp_path, f"0:{KAFKA}", "b:-", version="v2"), 3)
    assert offsets(found) == {"t-0": 5, "t-1": 7}
    with pytest.raises(CheckpointError, match="'-'"):
        read_source_offsets(written(tmp_path, "-", version="v2"), 3)


@pytest.mark.parametrize("form", ["{}", "{}/", "file:{}", "file://{}", "file:///{}"])
def test_forms_of_a_local_path(tmp_path: Path, form: str) -> None:
    directory = tmp_path / "a checkpoint, 100%"
    written(directory, KAFKA)
    assert offsets(read_source_offsets(form.format(directory), 3)) == {"t-0": 5, "t-1": 7}


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=f"{tmp_path}/offsets/4") as raised:
        read_source_offsets(str(tmp_path), 4)
    assert raised.value.option == "checkpointLocation"


def test_unreadable_path(tmp_path: Path) -> None:
    (tmp_path / "offsets" / "3").mkdir(parents=True)
    with pytest.raises(CheckpointError, match=f"{tmp_path}/offsets/3"):
        read_source_offsets(str(tmp_path), 3)


def test_unknown_file_system() -> None:
    with pytest.raises(OptionError, match="'dbfs:/x'") as raised:
        read_source_offsets("dbfs:/x", 3)
    assert raised.value.option == "checkpointLocation"


@pytest.mark.parametrize(
    ("checkpoint", "uri"),
    [
        ("s3://bucket/a/b", "s3://bucket/a/b"),
        ("s3a://bucket/a b/", "s3://bucket/a%20b"),
        ("gs://bucket/a", "gs://bucket/a"),
        (
            "abfss://files@account.dfs.core.windows.net/a",
            "abfss://files@account.dfs.core.windows.net/a",
        ),
        ("hdfs://name:8020/a", "hdfs://name:8020/a"),
        ("HDFS:///a", "hdfs:///a"),
    ],
)
def test_remote_checkpoints_are_read_through_arrow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checkpoint: str, uri: str
) -> None:
    opened = []
    written(tmp_path, KAFKA)

    class Stores:
        @staticmethod
        def from_uri(name: str) -> tuple[Any, str]:
            opened.append(name)
            return pyarrow.fs.LocalFileSystem(), str(tmp_path)

    monkeypatch.setattr(pyarrow.fs, "FileSystem", Stores)
    assert offsets(read_source_offsets(checkpoint, 3)) == {"t-0": 5, "t-1": 7}
    assert opened == [uri]


def test_error_of_a_store_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stores:
        @staticmethod
        def from_uri(name: str) -> tuple[Any, str]:
            raise OSError(f"no credentials for {name}")

    monkeypatch.setattr(pyarrow.fs, "FileSystem", Stores)
    with pytest.raises(CheckpointError, match="no credentials for s3://b") as raised:
        read_source_offsets("s3://b", 3)
    assert raised.value.option == "checkpointLocation"


def test_arrow_accepts_the_uris() -> None:
    """The test only parses the URIs, without network access."""
    file_system, path = pyarrow.fs.FileSystem.from_uri(
        "abfss://files@account.dfs.core.windows.net/a%20b/offsets/3"
    )
    assert file_system.type_name == "abfs"
    assert path == "files/a b/offsets/3"
