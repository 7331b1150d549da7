"""Tests of the operator's command: arguments, output and exit codes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from pyspark_kafka.__main__ import main
from pyspark_kafka.client.resolved import resolved
from pyspark_kafka.commands import transactions as command
from pyspark_kafka.commands.arguments import ARGUMENTS, FAILED
from pyspark_kafka.errors import BrokerUnreachableError
from pyspark_kafka.options.values import ClientOptions
from pyspark_kafka.sink.exactly_once.operator_text import as_json, duration_text
from tests.conftest import TopicFactory
from tests.pyspark_kafka.sink.exactly_once.operator_scenarios import (
    decided_and_killed,
    lost,
    report_of,
)
from tests.pyspark_kafka.sink.exactly_once.worlds import FakeWorld, RealWorld


@pytest.fixture
def real(bootstrap: str, topic: TopicFactory, unique_name: Callable[[], str]) -> RealWorld:
    return RealWorld(bootstrap, topic, lambda: unique_name().replace("[", "-").replace("]", "-"))


@pytest.fixture
def fake_world(monkeypatch: pytest.MonkeyPatch) -> FakeWorld:
    """Return the cluster of the command; its clock does not advance, and pauses take no time."""
    world = FakeWorld()
    monkeypatch.setattr(command, "open_transactional_client", lambda _: world.client("operator"))
    monkeypatch.setattr(command, "wall_clock_ms", world.now_ms)
    monkeypatch.setattr("time.sleep", lambda _: None)
    return world


def call(sink_id: str, *arguments: str, servers: str = "broker:9092") -> int:
    return main(["transactions", "--id", sink_id, "--bootstrap-servers", servers, *arguments])


def test_command_shows_the_state(fake_world: FakeWorld, capsys: pytest.CaptureFixture[str]) -> None:
    run = decided_and_killed(fake_world)
    fake_world.cluster.advance(65_000)
    assert call(run.sink_id) == 0
    out = capsys.readouterr().out.splitlines()
    assert [line.partition(": ")[0] for line in out] == [
        f"owner id={run.sink_id} producer_id=1001 epoch=1 state=CompleteCommit",
        (
            "decision query=query batch=0 number=1 state=unfinished rows=3 tasks=2 "
            "run=run-1 decided=1970-01-01T00:16:40Z"
        ),
        f"  prepared id={run.sink_id}/0/0/0-0 partition=0 rows=2",
        f"  prepared id={run.sink_id}/0/1/0-1 partition=1 rows=1",
        (
            f"transaction id={run.sink_id}/0/0/0-0 state=Ongoing decided producer_id=1002 "
            "epoch=0 "
            "open_since=1970-01-01T00:16:40Z open_for=1m05s times_out_in=8m55s "
            f"partitions={run.topic}-0"
        ),
        (
            f"transaction id={run.sink_id}/0/1/0-1 state=Ongoing decided producer_id=1003 "
            "epoch=0 "
            "open_since=1970-01-01T00:16:40Z open_for=1m05s times_out_in=8m55s "
            f"partitions={run.topic}-0"
        ),
        (
            f"held partition={run.topic}-0 last_stable_offset=0 high_watermark=3 behind=3 "
            f"holder={run.sink_id}/0/0/0-0 open_since=1970-01-01T00:16:40Z open_for=1m05s"
        ),
    ]


def test_command_prints_planned_actions(
    fake_world: FakeWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    run = decided_and_killed(fake_world)
    fake_world.cluster.advance(65_000)
    assert call(run.sink_id, "--recover") == 0
    fence, commit, mark = capsys.readouterr().out.splitlines()[-3:]
    assert fence.startswith(f"would fence '{run.sink_id}'")
    assert re.match(r"would commit 2\b.*\bdecision 1\b", commit)
    assert re.match(r"would mark\b.*\bdecision 1\b", mark)
    assert fake_world.committed(run.topic) == []


def test_command_recovers(fake_world: FakeWorld, capsys: pytest.CaptureFixture[str]) -> None:
    run = decided_and_killed(fake_world)
    fake_world.cluster.advance(65_000)
    assert call(run.sink_id, "--recover", "--yes") == 0
    assert "done committed 2 " in capsys.readouterr().out
    assert fake_world.committed(run.topic) == [b"a", b"b", b"c"]
    assert call(run.sink_id, "--recover", "--yes") == 0
    assert "done nothing" in capsys.readouterr().out


def test_command_refuses_to_disturb_a_running_owner(
    fake_world: FakeWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    run = decided_and_killed(fake_world)
    assert call(run.sink_id, "--recover", "--yes") == command.ALIVE
    assert call(run.sink_id, "--recover") == command.ALIVE
    out = capsys.readouterr().out
    assert re.search(r"^alive .*\bquery\b", out, re.MULTILINE)
    assert re.search(r"^refused ", out, re.MULTILINE)
    assert fake_world.committed(run.topic) == []
    assert call(run.sink_id, "--recover", "--yes", "--take-over") == 0
    assert fake_world.committed(run.topic) == [b"a", b"b", b"c"]


def test_exit_code_reports_lost_rows(
    fake_world: FakeWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    run = lost(fake_world)
    assert call(run.sink_id) == command.LOST
    out = capsys.readouterr().out
    assert "state=LOST-ROWS" in out
    assert re.search(rf"^ +rows {run.topic}-0 .*\b0\b.*\b1$", out, re.MULTILINE)
    assert call(run.sink_id, "--recover", "--yes") == command.LOST
    assert call(run.sink_id, "--forget", "--accept-loss", "--yes") == 0


def test_command_prints_json(fake_world: FakeWorld, capsys: pytest.CaptureFixture[str]) -> None:
    run = lost(fake_world)
    assert call(run.sink_id, "--recover", "--yes", "--json") == command.LOST
    document = json.loads(capsys.readouterr().out)
    assert document["exit_code"] == command.LOST
    assert document["done"][0].startswith("fenced")
    [decision] = document["report"]["decisions"]
    assert decision["transactions"][1]["rows"] == [
        {"partition": f"{run.topic}-0", "first_offset": 2, "last_offset": 2}
    ]
    assert document["report"] == as_json(report_of(fake_world, run.sink_id)) | {
        "taken_ms": fake_world.now_ms()
    }
    assert call(run.sink_id, "--recover", "--json") == command.LOST
    assert json.loads(capsys.readouterr().out)["would"]


def test_without_a_command_the_commands_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == ARGUMENTS
    out, err = capsys.readouterr()
    assert not out
    assert {"offsets", "transactions"} <= set(err.split())


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["transaction"], "COMMAND"),
        (["transactions", "--id", "x"], "--bootstrap-servers"),
        (["transactions", "--id", "x", "--bootstrap-servers", "b:1", "--yes"], "--yes"),
        (
            ["transactions", "--id", "x", "--bootstrap-servers", "b:1", "--option", "kafka.hush:1"],
            "NAME=VALUE",
        ),
        (
            ["transactions", "--id", "x", "--bootstrap-servers", "b:1", "--recover", "--forget"],
            "--forget",
        ),
    ],
)
def test_wrong_arguments_are_one_line(
    arguments: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == ARGUMENTS
    [line] = capsys.readouterr().err.splitlines()
    assert error in line
    assert "hush" not in line


@pytest.mark.parametrize(
    ("sink_id", "arguments", "error"),
    [
        ("a/b", (), "'transactionalId'"),
        ("x", ("--commit-topic", "a b"), "'commitTopic'"),
        ("x", ("--option", "kafka.acks=1"), "'kafka.acks'"),
        ("x", ("--option", "engine=librdkafka"), "'native'"),
        ("nobody", (), "'nobody'"),
    ],
)
def test_errors_are_one_line(
    bootstrap: str,
    sink_id: str,
    arguments: tuple[str, ...],
    error: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert call(sink_id, *arguments, servers=bootstrap) == FAILED
    [line] = capsys.readouterr().err.splitlines()
    assert error in line


@pytest.mark.slow
def test_command_runs_as_a_process(real: RealWorld, bootstrap: str) -> None:
    """The command reports in one line that no broker is reachable."""
    run = decided_and_killed(real)
    ended = run_command(run.sink_id, bootstrap, "--recover", "--yes", "--quiet", "0")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "done committed 2 " in ended.stdout
    assert real.committed(run.topic) == [b"a", b"b", b"c"]
    failed = run_command(
        run.sink_id, "127.0.0.1:1", "--option", "kafka.default.api.timeout.ms=1000"
    )
    assert (failed.returncode, failed.stdout) == (FAILED, "")
    assert "127.0.0.1:1" in failed.stderr
    assert "Traceback" not in failed.stderr


def run_command(sink_id: str, servers: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *(sys.executable, "-m", "pyspark_kafka", "transactions"),
            *("--id", sink_id, "--bootstrap-servers", servers, *arguments),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_durations_are_short() -> None:
    texts = [duration_text(ms) for ms in (-5, 59_999, 61_000, 3_600_000, 90_061_000)]
    assert texts == ["0s", "59s", "1m01s", "1h00m", "25h01m"]


# --- the file of client settings ---


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[ClientOptions]:
    """The options of the clients that the command opens. Opening fails."""
    options: list[ClientOptions] = []

    def open_transactional_client(given: ClientOptions) -> NoReturn:
        with resolved(given) as known:
            options.append(known)
        raise BrokerUnreachableError("no broker")

    monkeypatch.setattr(command, "open_transactional_client", open_transactional_client)
    return options


def test_file_of_client_settings(
    opened: list[ClientOptions], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PASSWORD", "hush")
    path = tmp_path / "client.properties"
    path.write_text(
        """\
# of Kafka's tools
bootstrap.servers=elsewhere:1
security.protocol = SASL_SSL
SASL.mechanism=SCRAM-SHA-512
sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \\
    username="\\u00fcser" password="${env:PASSWORD}";
request.timeout.ms=1
"""
    )
    given = ("--option", "kafka.request.timeout.ms=5000", "--option", " kafka.client.id= me ")
    assert call("id", "--command-config", str(path), *given) == FAILED
    [options] = opened
    jaas = "org.apache.kafka.common.security.scram.ScramLoginModule required "
    assert options.bootstrap_servers == "broker:9092"
    assert options.kafka == {
        "bootstrap.servers": "broker:9092",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": f'{jaas}username="üser" password="hush";',
        "request.timeout.ms": "5000",
        "client.id": " me ",
    }


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "cannot be read"),
        ("password=hush\\u00zz", "line 1"),
        ("sasl.pasword=hush", "kafka.sasl.pasword"),
        ("sasl.password=hush${env:NO_SUCH_VARIABLE}", "NO_SUCH_VARIABLE"),
        ("sasl.mechanism=hush\nsecurity.protocol=SASL_SSL", "kafka.sasl.mechanism"),
    ],
)
def test_invalid_file_of_client_settings(
    content: str | None, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "client.properties"
    if content is not None:
        path.write_text(content)
    assert call("id", "--command-config", str(path)) == FAILED
    output = "".join(capsys.readouterr())
    assert expected in output
    assert "hush" not in output.replace("'HUSH'", "")  # a mechanism is no secret
