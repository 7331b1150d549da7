"""`python -m broker_ref`: one line when ready, one line when wrong, a clean end."""

from __future__ import annotations

import contextlib
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from broker_ref.io.admin import create_topic
from broker_ref.io.process import BrokerProcess

pytestmark = pytest.mark.slow  # every test starts processes

COMMAND = [sys.executable, "-m", "broker_ref"]
TIMEOUT_SECONDS = 30


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command that is expected to end by itself."""
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
    )


@contextlib.contextmanager
def started(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Start a command that runs until it is told to stop; killed where the test fails."""
    with subprocess.Popen(
        [*COMMAND, "--port", "0", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def ready_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


REFUSED = [
    (["--brokers", "3"], "argument --brokers: this version runs one broker, not '3'"),
    (["--port", "70000"], "argument --port: '70000' is not a port: 0 (a free one) to 65535"),
    (["--port", "kafka"], "argument --port: 'kafka' is not a port"),
    (["--config", "num.partitions"], "'num.partitions' is not of the form name=value"),
    (["--log-level", "loud"], "argument --log-level: invalid choice: 'loud'"),
    (["--nonsense"], "unrecognized arguments: --nonsense"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED)
def test_wrong_arguments_are_one_line_and_exit_code_2(arguments: list[str], message: str) -> None:
    ended = run(*arguments)
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert message in ended.stderr
    assert ended.stderr.count("\n") == 1


def failure(*arguments: str) -> str:
    """The one line of a start that fails with exit code 1."""
    ended = run("--port", "0", "--log-level", "error", *arguments)
    assert ended.returncode == 1, ended.stderr
    assert ended.stdout == ""
    assert ended.stderr.startswith("python -m broker_ref: ")
    assert ended.stderr.count("\n") == 1, ended.stderr
    return ended.stderr


def test_an_unknown_config_is_named() -> None:
    assert "unknown broker config 'num.partition'" in failure("--config", "num.partition=3")


def test_a_config_of_a_wrong_value_is_named_with_it() -> None:
    line = failure("--config", "num.partitions=many")
    assert "invalid value 'many' for broker config num.partitions" in line


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = failure("--port", str(port))
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in line


def test_a_host_that_does_not_resolve_is_named() -> None:
    assert "'no.such.host.invalid'" in failure("--host", "no.such.host.invalid")


def test_every_interface_needs_a_host_to_advertise() -> None:
    line = failure("--host", "0.0.0.0")
    assert "host '0.0.0.0' listens on every interface" in line
    assert "--advertised-host NAME" in line


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    line = failure("--data", str(tmp_path / "file" / "data"))
    assert str(tmp_path / "file" / "data") in line
    assert "Not a directory" in line


def test_a_directory_that_another_broker_uses_is_named(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path):
        line = failure("--data", str(tmp_path))
    assert str(tmp_path) in line
    assert "in use by another broker" in line


def only_line(process: subprocess.Popen[str]) -> str:
    """What a process that ended with exit code 1 has said, apart from its log."""
    _, stderr = process.communicate(timeout=TIMEOUT_SECONDS)
    assert process.returncode == 1, stderr
    assert "Traceback" not in stderr
    lines = [line for line in stderr.splitlines() if line.startswith("python -m broker_ref: ")]
    assert len(lines) == 1, stderr
    return lines[0]


def test_a_disk_that_takes_nothing_is_one_line_at_the_stop_and_at_the_start(
    tmp_path: Path,
) -> None:
    with started("--data", str(tmp_path)) as process:
        address = ready_line(process)
        create_topic(address, "t")
        create_topic(address, "u")
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, 0))
        process.terminate()
        assert "File too large" in only_line(process)
    limited = ["bash", "-c", 'ulimit -f 0; exec "$@"', "bash"]
    arguments = [*COMMAND, "--port", "0", "--data", str(tmp_path)]
    with subprocess.Popen(
        [*limited, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert "cluster-metadata.journal: File too large" in only_line(process)
    with started("--data", str(tmp_path)) as process:
        assert ready_line(process)


def test_it_may_open_as_many_files_as_the_system_allows(tmp_path: Path) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    command = [*COMMAND, "--port", "0", "--data", str(tmp_path)]
    with subprocess.Popen(
        ["bash", "-c", 'ulimit -Sn 64; exec "$@"', "bash", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert ready_line(process)
            assert resource.prlimit(process.pid, resource.RLIMIT_NOFILE) == (hard, hard)
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_prints_its_bootstrap_servers_and_stops_cleanly_on_a_signal(
    number: signal.Signals, tmp_path: Path
) -> None:
    with started("--data", str(tmp_path)) as process:
        address = ready_line(process)
        host, _, port = address.partition(":")
        assert host == "127.0.0.1"
        with socket.create_connection((host, int(port))) as waiting:
            waiting.sendall(b"\x00")
            process.send_signal(number)
            stdout, stderr = process.communicate(timeout=TIMEOUT_SECONDS)
        assert process.returncode == 0, stderr
    assert stdout == ""
    assert "Traceback" not in stderr
    assert f"broker 1 serves {address}" in stderr


def test_without_data_it_uses_a_temporary_directory_and_removes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with started() as process:
        create_topic(ready_line(process), "kept-for-now")
        assert list(tmp_path.glob("broker_ref-*/broker-1/*"))
        process.terminate()
        assert process.wait(TIMEOUT_SECONDS) == 0
    assert list(tmp_path.iterdir()) == []


def test_clients_are_told_the_advertised_host(tmp_path: Path) -> None:
    arguments = ["--data", str(tmp_path), "--host", "0.0.0.0", "--advertised-host", "localhost"]
    with started(*arguments) as process:
        address = ready_line(process)
        assert address.startswith("localhost:")
        admin = AdminClient({"bootstrap.servers": address})
        brokers = admin.list_topics(timeout=TIMEOUT_SECONDS).brokers
        assert [f"{broker.host}:{broker.port}" for broker in brokers.values()] == [address]
        process.terminate()
        assert process.wait(TIMEOUT_SECONDS) == 0
