"""Tests of the `offsets` command with checkpoints that the tests write, on a cluster."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as RdTopicPartition
from confluent_kafka.admin import AdminClient

from pyspark_kafka.__main__ import main
from pyspark_kafka.checkpoint.files import LocalFiles
from pyspark_kafka.client.factory import open_client
from pyspark_kafka.client.port import KafkaReadClient
from pyspark_kafka.commands import offsets as command
from pyspark_kafka.commands.arguments import ARGUMENTS, DONE, FAILED
from pyspark_kafka.commands.offset_arguments import add_offset_arguments
from pyspark_kafka.commands.offset_reset import Target
from pyspark_kafka.commands.offset_targets import target_of
from pyspark_kafka.options.values import ClientOptions
from tests.conformance.eventually import eventually
from tests.conftest import TopicFactory
from tests.pyspark_kafka.checkpoint.checkpoints import Checkpoint
from tests.pyspark_kafka.client.records import Record, write

MS = 1_700_000_000_000
"""The timestamp of the record with offset 0. Each further record is one second younger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A query that has committed micro-batch 3 of a topic. The topic has the offsets 2 to 10."""

    bootstrap: str
    topic: str
    checkpoint: Checkpoint

    def run(self, *arguments: str) -> int:
        servers = ("--bootstrap-servers", self.bootstrap)
        return main(
            ["offsets", "--checkpoint", str(self.checkpoint.directory), *servers, *arguments]
        )

    def line(self, *offsets: int) -> str:
        return json.dumps({self.topic: {str(n): offset for n, offset in enumerate(offsets)}})

    def write(
        self, *, planned: list[str] | None = None, committed: list[str] | None = None
    ) -> None:
        batches = {2: [self.line(4, 2)], 3: committed or [self.line(6, 4)]}
        self.checkpoint.write(offsets=batches | ({4: planned} if planned else {}), commits=[2, 3])


@pytest.fixture
def query(bootstrap: str, topic: TopicFactory, tmp_path: Path) -> Query:
    name = topic(partitions=2, **{"retention.ms": "-1"})
    records = [
        Record(value=b"%d" % n, partition=partition, timestamp_ms=MS + n * 1000)
        for n in range(10)
        for partition in (0, 1)
    ]
    write(bootstrap, name, records)
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})
    for future in admin.delete_records(
        [RdTopicPartition(name, partition, 2) for partition in (0, 1)]
    ).values():
        future.result(30)
    query = Query(bootstrap=bootstrap, topic=name, checkpoint=Checkpoint(tmp_path / "checkpoint"))
    query.write()
    return query


def table(text: str) -> list[list[str]]:
    """Return the rows of the table in the output, without the header."""
    lines = [line.split() for line in text.split("\n\n")[1].splitlines()]
    assert "PARTITION" in lines[0]
    return lines[1:]


def commit(bootstrap: str, group: str, topic: str, offsets: dict[int, int]) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "log_level": 2, "group.id": group})
    committed = [RdTopicPartition(topic, partition, o) for partition, o in offsets.items()]
    consumer.commit(offsets=committed, asynchronous=False)
    consumer.close()


def committed(bootstrap: str, group: str, topic: str) -> list[int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "log_level": 2, "group.id": group})
    found = consumer.committed([RdTopicPartition(topic, n) for n in (0, 1)], timeout=30)
    consumer.close()
    return [each.offset for each in found]


def test_offsets_and_lag_are_shown(query: Query, capsys: pytest.CaptureFixture[str]) -> None:
    assert query.run() == DONE
    out = capsys.readouterr().out
    assert Checkpoint.QUERY_ID in out
    assert table(out) == [[query.topic, "0", "6", "10", "4"], [query.topic, "1", "4", "10", "6"]]
    assert query.run("--topic", f"{query.topic}:1") == DONE
    assert table(capsys.readouterr().out) == [[query.topic, "1", "4", "10", "6"]]


def test_offsets_are_shown_without_a_cluster(
    query: Query, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["offsets", "--checkpoint", str(query.checkpoint.directory)]) == DONE
    rows = table(capsys.readouterr().out)
    assert rows == [[query.topic, "0", "6", "-", "-"], [query.topic, "1", "4", "-", "-"]]


def test_client_settings_are_never_ignored(
    query: Query, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without `--bootstrap-servers`, the other client arguments can contain the servers."""
    config = tmp_path / "client.properties"
    shown = ["offsets", "--checkpoint", str(query.checkpoint.directory)]
    option = ["--option", f"kafka.bootstrap.servers={query.bootstrap}"]
    for text, arguments in (
        (f"bootstrap.servers={query.bootstrap}", ["--command-config", str(config)]),
        ("bootstrap.servers=unused:1", ["--command-config", str(config), *option]),
    ):
        config.write_text(text)
        assert main([*shown, *arguments]) == DONE
        assert table(capsys.readouterr().out)[0] == [query.topic, "0", "6", "10", "4"]
    assert main([*shown, *option, "--to-latest", "--execute"]) == DONE
    assert query.checkpoint.sources(3) == [query.line(10, 10)]
    config.write_text("security.protocol=PLAINTEXT")
    for path in (config, tmp_path / "missing"):
        assert main([*shown, "--command-config", str(path)]) == FAILED
    assert main([*shown, "--option", "kafka.no.such.setting=1"]) == FAILED
    assert len(capsys.readouterr().err.splitlines()) == 3


def test_planned_batch_sources_and_missing_partitions_are_shown(
    query: Query, capsys: pytest.CaptureFixture[str]
) -> None:
    query.write(
        committed=[query.line(6, 4, 0), "17", query.line(20)],
        planned=[query.line(7, 9, 0), "18", query.line(20)],
    )
    assert query.run() == DONE
    assert table(capsys.readouterr().out) == [
        ["0", query.topic, "0", "6", "7", "10", "4"],
        ["0", query.topic, "1", "4", "9", "10", "6"],
        ["0", query.topic, "2", "0", "0", "-", "-"],
        ["2", query.topic, "0", "20", "20", "10", "0"],
    ]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--to-earliest"], (2, 2)),
        (["--to-latest"], (10, 10)),
        (["--to-offset", "3"], (3, 3)),
        (["--to-offset", "0"], (2, 2)),
        (["--to-offset", "99999"], (10, 10)),
        (["--shift-by", "-3"], (3, 2)),
        (["--shift-by", "2", "--topic", "{topic}:1"], (6, 6)),
        (["--to-datetime", "2023-11-14T22:13:25.500"], (6, 6)),
        (["--to-datetime", "2023-11-14T23:13:23+01:00"], (3, 3)),
        (["--to-datetime", "2030-01-01T00:00:00Z"], (10, 10)),
        (["--by-duration", "PT1H"], (10, 10)),
        (["--by-duration", "P20000D"], (2, 2)),
        (["--from-group", "{topic}"], (8, 9)),
    ],
)
def test_reset(query: Query, arguments: list[str], expected: tuple[int, int]) -> None:
    """Without `--execute` nothing changes. The backup contains the previous offsets."""
    commit(query.bootstrap, query.topic, query.topic, {0: 8, 1: 9})
    given = [argument.format(topic=query.topic) for argument in arguments]
    before = query.checkpoint.contents()
    assert query.run(*given) == DONE
    assert query.run(*given, "--dry-run") == DONE
    assert query.checkpoint.contents() == before
    assert query.run(*given, "--execute") == DONE
    assert query.checkpoint.sources(3) == [query.line(*expected)]
    after = query.checkpoint.contents()
    [backup] = after.keys() - before.keys()
    assert backup.startswith("offsets/3.backup-")
    assert ":" not in backup
    assert after.pop(backup) == before["offsets/3"]
    checksum = "offsets/.3.crc"
    assert before | {"offsets/3": after["offsets/3"]} == after | {checksum: before[checksum]}


def test_a_duration_ends_now() -> None:
    parser = argparse.ArgumentParser()
    add_offset_arguments(parser)
    earliest_ms = time.time() * 1000
    change = parser.parse_args(["--by-duration", "P1DT2H3M4.5S"]).change
    latest_ms = time.time() * 1000
    assert earliest_ms - 1 <= change.timestamp_ms + 93_784_500 <= latest_ms + 1


@pytest.mark.parametrize(
    ("arguments", "warnings"),
    [(["--to-offset", "0"], 2), (["--to-offset", "3"], 0), (["--shift-by", "-3"], 1)],
)
def test_an_offset_outside_the_log_causes_a_warning(
    query: Query, arguments: list[str], warnings: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert query.run(*arguments) == DONE
    assert capsys.readouterr().err.count(query.topic) == warnings


def test_a_target_in_a_growing_log_is_used(
    query: Query, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A producer writes to the topic immediately before the command requests the targets."""

    def target_of_test(*arguments: Any, **options: Any) -> Target:
        write(query.bootstrap, query.topic, [Record(value=b"10", partition=n) for n in (0, 1)])
        return target_of(*arguments, **options)

    monkeypatch.setattr(command, "target_of", target_of_test)
    assert query.run("--to-latest", "--execute") == DONE
    assert query.checkpoint.sources(3) == [query.line(11, 11)]
    assert capsys.readouterr().err == ""


def test_a_reset_to_the_current_offsets_changes_nothing(query: Query) -> None:
    before = query.checkpoint.contents()
    assert query.run("--shift-by", "0", "--execute") == DONE
    assert query.checkpoint.contents() == before


def test_change_of_a_partition_that_two_sources_read(
    query: Query, capsys: pytest.CaptureFixture[str], unique_name: Callable[[], str]
) -> None:
    """The sources can read from different clusters, so a change requires `--source`."""
    lines = [query.line(6, 4), "17", query.line(5), query.line(9, 9)]
    query.write(committed=lines, planned=["-", "18", query.line(5), query.line(9, 9)])
    before, group = query.checkpoint.contents(), unique_name()
    for change in (["--to-latest"], ["--shift-by", "1"], ["--to-group", group]):
        assert query.run(*change, "--execute") == FAILED
    for unknown in ("1", "4"):
        assert query.run("--source", unknown) == FAILED
    assert query.checkpoint.contents() == before
    capsys.readouterr()
    assert query.run("--source", "2") == DONE
    assert table(capsys.readouterr().out) == [[query.topic, "0", "5", "5", "10", "5"]]
    assert query.run("--to-group", group, "--source", "3", "--execute") == DONE
    assert committed(query.bootstrap, group, query.topic) == [9, 9]
    latest = ["--to-latest", "--discard-planned-batch", "--execute"]
    assert query.run(*latest, "--source", "3") == DONE
    assert query.checkpoint.sources(3) == [*lines[:3], query.line(10, 10)]
    assert query.checkpoint.sources(4) == ["-", "18", query.line(5), query.line(10, 10)]
    assert query.run(*latest, "--topic", f"{query.topic}:1", "--source", "0") == DONE
    assert query.checkpoint.sources(3) == [query.line(6, 10), *lines[1:3], query.line(10, 10)]


def test_only_a_reset_partition_is_removed_from_the_planned_batch(query: Query) -> None:
    query.write(planned=[query.line(7, 9)])
    arguments = ["--to-earliest", "--topic", f"{query.topic}:0", "--execute"]
    before = query.checkpoint.contents()
    assert query.run(*arguments) == FAILED
    assert query.checkpoint.contents() == before
    assert query.run(*arguments, "--discard-planned-batch") == DONE
    assert query.checkpoint.sources(3) == [query.line(2, 4)]
    assert query.checkpoint.sources(4) == [query.line(2, 9)]
    backups = [name for name in query.checkpoint.contents() if "backup" in name]
    assert sorted(name.partition(".")[0] for name in backups) == ["offsets/3", "offsets/4"]


@pytest.mark.parametrize("failed", ["offsets/3", "offsets/4"])
def test_a_failed_replacement_names_all_files_and_backups(
    query: Query, failed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    query.write(planned=[query.line(7, 9)])
    before = query.checkpoint.contents()
    write_file = LocalFiles.write

    def fail(files: LocalFiles, path: str, content: bytes) -> None:
        if path == failed:
            raise OSError("no space left on device")
        write_file(files, path, content)

    monkeypatch.setattr(LocalFiles, "write", fail)
    assert query.run("--to-earliest", "--discard-planned-batch", "--execute") == FAILED
    captured = capsys.readouterr()
    [line] = captured.err.splitlines()
    backups = query.checkpoint.contents().keys() - before.keys()
    assert len(backups) == 2
    for backup in backups:
        assert f"{query.checkpoint.directory}/{backup}\n" in captured.out
        assert f"{query.checkpoint.directory}/{backup})" in line


def test_a_rewind_of_a_query_with_state_is_refused(query: Query) -> None:
    (query.checkpoint.directory / "state" / "0").mkdir(parents=True)
    assert query.run("--to-earliest", "--execute") == FAILED
    assert query.checkpoint.sources(3) == [query.line(6, 4)]
    assert query.run("--to-latest", "--execute") == DONE
    assert query.run("--to-earliest", "--execute", "--keep-state") == DONE
    assert query.checkpoint.sources(3) == [query.line(2, 2)]


def test_a_running_query_is_detected(
    query: Query, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The query plans a micro-batch while the command talks to the cluster."""

    def open_client_of_test(options: ClientOptions) -> KafkaReadClient:
        query.write(planned=[query.line(10, 10)])
        return open_client(options)

    monkeypatch.setattr(command, "open_client", open_client_of_test)
    assert query.run("--to-earliest", "--execute") == FAILED
    assert "running" in capsys.readouterr().err
    assert query.checkpoint.sources(3) == [query.line(6, 4)]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--to-latest", "--topic", "{topic}:0,2"], "{topic}-2"),
        (["--to-latest", "--topic", "other"], "other"),
        (["--from-group", "nobody"], "'nobody'"),
        (["--to-latest", "--option", "kafka.acks=1"], "'kafka.acks'"),
        (["--to-latest", "--command-config", "/no/such/file"], "/no/such/file"),
    ],
)
def test_errors_are_one_line(
    query: Query, arguments: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [argument.format(topic=query.topic) for argument in arguments]
    assert query.run(*given, "--execute") == FAILED
    [line] = capsys.readouterr().err.splitlines()
    assert error.format(topic=query.topic) in line


def test_offsets_of_partitions_that_do_not_exist_are_not_reset(
    query: Query, capsys: pytest.CaptureFixture[str]
) -> None:
    query.write(committed=[query.line(6, 4, 1)])
    assert query.run("--to-latest", "--execute") == FAILED
    assert f"{query.topic}-2" in capsys.readouterr().err
    assert query.run("--to-latest", "--execute", "--topic", f"{query.topic}:0,1") == DONE
    assert query.checkpoint.sources(3) == [query.line(10, 10, 1)]


@pytest.mark.parametrize("arguments", [["--to-latest"], ["--to-group", "g"]])
def test_query_without_a_committed_batch(query: Query, arguments: list[str]) -> None:
    for path in (query.checkpoint.directory / "offsets").iterdir():
        path.unlink()
    for path in (query.checkpoint.directory / "commits").iterdir():
        path.unlink()
    assert query.run() == DONE
    assert query.run(*arguments, "--execute") == FAILED
    query.checkpoint.write(offsets={0: [query.line(6, 4)]}, commits=[])
    before = query.checkpoint.contents()
    assert query.run() == DONE
    assert query.run(*arguments, "--execute") == FAILED
    assert query.checkpoint.contents() == before


@pytest.mark.parametrize(
    ("location", "error"), [("dbfs:/x", "'dbfs:'"), ("{tmp_path}", "{tmp_path}")]
)
def test_location_that_is_not_a_checkpoint(
    tmp_path: Path, location: str, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["offsets", "--checkpoint", location.format(tmp_path=tmp_path)]) == FAILED
    assert error.format(tmp_path=tmp_path) in capsys.readouterr().err


def test_unreadable_checkpoint(query: Query, capsys: pytest.CaptureFixture[str]) -> None:
    (query.checkpoint.directory / "offsets" / "3").unlink()
    (query.checkpoint.directory / "offsets" / "3").mkdir()
    assert query.run() == FAILED
    [line] = capsys.readouterr().err.splitlines()
    assert "offsets/3" in line


def test_checkpoint_without_a_kafka_source(
    query: Query, capsys: pytest.CaptureFixture[str]
) -> None:
    query.write(committed=["17", "-"])
    assert query.run() == FAILED
    assert "Kafka source" in capsys.readouterr().err


def test_pattern_that_matches_no_topic_yet(
    query: Query, capsys: pytest.CaptureFixture[str]
) -> None:
    query.write(committed=["{}"])
    before = query.checkpoint.contents()
    for arguments in ([], ["--to-latest", "--execute"], ["--to-group", "g", "--execute"]):
        assert query.run(*arguments) == DONE
        captured = capsys.readouterr()
        assert Checkpoint.QUERY_ID in captured.out
        assert "PARTITION" not in captured.out
        assert captured.err == ""
    assert query.checkpoint.contents() == before
    assert query.run("--topic", query.topic) == FAILED


@pytest.mark.parametrize("engine", ["native", pytest.param("librdkafka", marks=pytest.mark.slow)])
def test_offsets_are_copied_to_a_group(
    query: Query, engine: str, unique_name: Callable[[], str]
) -> None:
    group, option = unique_name(), ("--option", f"engine={engine}")
    assert query.run("--to-group", group, *option) == DONE
    assert committed(query.bootstrap, group, query.topic) == [-1001, -1001]
    before = query.checkpoint.contents()
    assert query.run("--to-group", group, *option, "--execute") == DONE
    assert committed(query.bootstrap, group, query.topic) == [6, 4]
    assert query.run("--to-group", group, *option, "--execute", "--topic", f"{query.topic}:0") == 0
    assert query.checkpoint.contents() == before


def test_a_group_with_members_is_refused(
    query: Query, capsys: pytest.CaptureFixture[str], unique_name: Callable[[], str]
) -> None:
    group = unique_name()
    member = Consumer({"bootstrap.servers": query.bootstrap, "log_level": 2, "group.id": group})
    member.subscribe([query.topic])

    def has_joined() -> bool:
        member.poll(0.1)
        return bool(member.assignment())

    try:
        eventually(has_joined)
        assert query.run("--to-group", group, "--execute") == FAILED
        assert group in capsys.readouterr().err
    finally:
        member.close()


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--checkpoint", "c", "--execute"],
        ["--checkpoint", "c", "--to-latest"],
        ["--checkpoint", "c", "--bootstrap-servers", "b:1", "--to-latest", "--to-earliest"],
        ["--checkpoint", "c", "--bootstrap-servers", "b:1", "--to-latest", "--to-offset", "0"],
        ["--checkpoint", "c", "--bootstrap-servers", "b:1", "--to-offset", "-1"],
        ["--checkpoint", "c", "--bootstrap-servers", "b:1", "--shift-by", "1.5"],
        ["--checkpoint", "c", "--bootstrap-servers", "b:1", "--to-datetime", "yesterday"],
        ["--checkpoint", "c", "--bootstrap-servers", "b:1", "--to-datetime", "1969-12-31"],
        ["--checkpoint", "c", "--bootstrap-servers", "b:1", "--by-duration", "1H"],
        ["--checkpoint", "c", "--bootstrap-servers", "b:1", "--by-duration", "P1DT"],
        ["--checkpoint", "c", "--bootstrap-servers", "b:1", "--by-duration", "P99999D"],
        ["--checkpoint", "c", "--bootstrap-servers", "b:1", "--topic", "t:x"],
        ["--checkpoint", "c", "--bootstrap-servers", "b:1", "--topic", "t:"],
        ["--checkpoint", "c", "--bootstrap-servers", "b:1", "--topic", "a b"],
        ["--checkpoint", "c", "--bootstrap-servers", "b:1", "--to-group", "g", "--keep-state"],
        ["--checkpoint", "c", "--bootstrap-servers", "b:1", "--from-group", " "],
        ["--checkpoint", "c", "--bootstrap-servers", "b:1", "--to-group", ""],
        ["--checkpoint", "c", "--bootstrap-servers", "b:1", "--dry-run"],
    ],
)
def test_wrong_arguments_are_one_line(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["offsets", *arguments])
    assert ended.value.code == ARGUMENTS
    assert len(capsys.readouterr().err.splitlines()) == 1
