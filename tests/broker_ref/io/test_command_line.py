"""Tests of `python -m broker_ref`: output, errors and exit codes."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from kio.schema.errors import ErrorCode

from broker_ref.__main__ import main
from broker_ref.io.admin import CreateTopicError, create_topic, send_request
from broker_ref.io.operations import live_brokers
from broker_ref.io.process import BrokerProcess
from integration.clusters.features import finalized
from tests.broker_ref.node.requests import batch, produce, produced
from tests.conformance.eventually import eventually

pytestmark = pytest.mark.slow  # Most tests start processes.

COMMAND = [sys.executable, "-m", "broker_ref"]
TIMEOUT_SECONDS = 30


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
    )


@contextlib.contextmanager
def started(*arguments: str, command: str = "") -> Iterator[subprocess.Popen[str]]:
    """Start a command that runs until it is stopped, and kill it if the test fails."""
    with subprocess.Popen(
        [*COMMAND, *command.split(), "--port", "0", *arguments],
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
    (["--brokers", "0"], "--brokers.*'0'"),
    (["--brokers", "some"], "--brokers.*'some'"),
    (["node", "--id", "1"], "--controller"),
    (["node", "--id", "one"], "--id.*'one'"),
    (["node", "--id", "1", "--controller", "9093"], "--controller.*'9093'.*HOST:PORT"),
    (["controller", "--brokers", "3"], "--brokers 3"),
    (["--port", "70000"], "--port.*'70000'"),
    (["--port", "kafka"], "--port.*'kafka'"),
    (["--config", "num.partitions"], "--config.*'num.partitions'.*NAME=VALUE"),
    (["--log-level", "loud"], "--log-level.*'loud'"),
    (["--feature", "transaction.version"], "--feature.*'transaction.version'.*FEATURE=VERSION"),
    (["--feature", "transaction.version=3"], r"--feature.*transaction.version\b.*\b3\b.*\b2\b"),
    (["controller", "--feature", "share.version=1"], "--feature.*share.version"),
    (["--add-scram", "SCRAM-SHA-256=[name=a]"], "--add-scram.*'password'"),
    (["--config-file", "/no/such/file"], "--config-file.*'/no/such/file'"),
    (["--nonsense"], "--nonsense"),
]


@pytest.mark.parametrize(("arguments", "facts"), REFUSED)
def test_invalid_arguments_are_one_line_and_exit_code_2(
    arguments: list[str], facts: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    output, error = capsys.readouterr()
    assert output == ""
    assert re.search(facts, error), error
    assert error.count("\n") == 1


def failure(*arguments: str) -> str:
    """Run a command that must fail with exit code 1, and return its only line on stderr."""
    ended = run("--port", "0", "--log-level", "error", *arguments)
    assert ended.returncode == 1, ended.stderr
    assert ended.stdout == ""
    assert ended.stderr.startswith("python -m broker_ref: ")
    assert ended.stderr.count("\n") == 1, ended.stderr
    return ended.stderr


def test_an_invalid_config_value_is_named() -> None:
    line = failure("--config", "num.partitions=many")
    assert "'many'" in line
    assert "num.partitions" in line


def test_an_invalid_listener_is_named() -> None:
    assert "listener X" in failure("--config", "listeners=X://127.0.0.1:0")


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = failure("--port", str(port))
    assert f"127.0.0.1:{port}" in line
    assert "Address already in use" in line


def test_a_host_that_does_not_resolve_is_named() -> None:
    assert "'no.such.host.invalid'" in failure("--host", "no.such.host.invalid")


def test_listening_on_all_interfaces_requires_an_advertised_host() -> None:
    line = failure("--host", "0.0.0.0")
    assert "'0.0.0.0'" in line
    assert "--advertised-host" in line


def test_a_directory_that_cannot_be_created_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    line = failure("--data", str(tmp_path / "file" / "data"))
    assert str(tmp_path / "file" / "data") in line
    assert "Not a directory" in line


def test_a_directory_in_use_is_named(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path):
        line = failure("--data", str(tmp_path))
    assert str(tmp_path) in line


def only_line(process: subprocess.Popen[str]) -> str:
    """Return the error line, without the log, of a process that ended with exit code 1."""
    _, stderr = process.communicate(timeout=TIMEOUT_SECONDS)
    assert process.returncode == 1, stderr
    assert "Traceback" not in stderr
    lines = [line for line in stderr.splitlines() if line.startswith("python -m broker_ref: ")]
    assert len(lines) == 1, stderr
    return lines[0]


def test_a_full_disk_is_one_line_at_stop_and_start(
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
        line = only_line(process)
    assert "cluster-metadata.journal" in line
    assert "File too large" in line
    with started("--data", str(tmp_path)) as process:
        assert ready_line(process)


def test_the_open_files_limit_is_raised(tmp_path: Path) -> None:
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
def test_a_cluster_prints_its_bootstrap_servers_and_stops_on_a_signal(
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
    assert address in stderr


def test_the_default_data_directory_is_temporary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with started() as process:
        create_topic(ready_line(process), "kept-for-now")
        assert list(tmp_path.glob("broker_ref-*/broker-1/*"))
        process.terminate()
        assert process.wait(TIMEOUT_SECONDS) == 0
    assert list(tmp_path.iterdir()) == []


def test_the_advertised_host_is_returned_to_clients(tmp_path: Path) -> None:
    arguments = ["--data", str(tmp_path), "--host", "0.0.0.0", "--advertised-host", "localhost"]
    with started(*arguments) as process:
        address = ready_line(process)
        assert address.startswith("localhost:")
        admin = AdminClient({"bootstrap.servers": address, "log_level": 2})
        brokers = admin.list_topics(timeout=TIMEOUT_SECONDS).brokers
        assert [f"{broker.host}:{broker.port}" for broker in brokers.values()] == [address]
        process.terminate()
        assert process.wait(TIMEOUT_SECONDS) == 0


SHORT_TIMEOUTS = [
    "--config", "broker.session.timeout.ms=1000", "--config", "broker.heartbeat.interval.ms=100",
]  # fmt: skip


def racks(bootstrap_servers: str) -> dict[int, str | None]:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 2})
    nodes = admin.describe_cluster().result(timeout=TIMEOUT_SECONDS).nodes
    return {node.id: node.rack for node in nodes}


@pytest.mark.parametrize("processes", [[], ["--processes"]])
def test_three_brokers_are_one_cluster(tmp_path: Path, processes: list[str]) -> None:
    with started("--brokers", "3", "--data", str(tmp_path), *processes) as process:
        addresses = ready_line(process)
        assert len(set(addresses.split(","))) == 3
        create_topic(addresses.split(",")[2], "t", replication_factor=3)
        assert racks(addresses).keys() == {1, 2, 3}
        children = children_of(process.pid)
        assert len(children) == (3 if processes else 0)
        process.terminate()
        _, stderr = process.communicate(timeout=TIMEOUT_SECONDS)
        assert process.returncode == 0, stderr
        assert "Traceback" not in stderr
    assert not any(is_alive(child) for child in children)
    for broker_id in (1, 2, 3):
        assert (tmp_path / f"broker-{broker_id}" / ".kafka_cleanshutdown").exists()
        assert (tmp_path / f"broker-{broker_id}" / "t-0").is_dir()


@pytest.mark.parametrize("processes", [[], ["--processes"]])
def test_a_new_cluster_keeps_its_finalized_features(tmp_path: Path, processes: list[str]) -> None:
    for feature in ("transaction.version=1", "transaction.version=0"):
        with started("--data", str(tmp_path), "--feature", feature, *processes) as process:
            assert finalized(ready_line(process))["transaction.version"] == 1
            process.terminate()
            process.wait(TIMEOUT_SECONDS)


def test_a_killed_broker_process_is_logged(tmp_path: Path) -> None:
    arguments = ["--brokers", "3", "--data", str(tmp_path), "--processes", *SHORT_TIMEOUTS]
    with started(*arguments) as process:
        addresses = ready_line(process)
        victim, *others = children_of(process.pid)
        os.kill(victim, signal.SIGKILL)
        eventually(lambda: len(live_brokers(addresses)) == 2)
        process.terminate()
        _, stderr = process.communicate(timeout=TIMEOUT_SECONDS)
        assert process.returncode == 0, stderr
    assert re.search(rf"\b{victim}\b.*-9\b", stderr), stderr
    assert not any(is_alive(child) for child in others)


def test_broker_processes_end_with_a_failed_controller(tmp_path: Path) -> None:
    with started("--data", str(tmp_path), "--processes", *SHORT_TIMEOUTS) as process:
        address = ready_line(process)
        children = children_of(process.pid)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, 0))
        with pytest.raises(CreateTopicError):
            create_topic(address, "t")
        assert "File too large" in only_line(process)
    assert children
    assert not any(is_alive(child) for child in children)


def test_broker_processes_end_when_the_parent_is_killed(tmp_path: Path) -> None:
    with started("--brokers", "2", "--data", str(tmp_path), "--processes") as process:
        assert ready_line(process)
        children = children_of(process.pid)
        assert len(children) == 2
        process.kill()
        eventually(lambda: not any(is_alive(child) for child in children))
    assert (tmp_path / "broker-1" / ".kafka_cleanshutdown").exists()


def test_separately_started_nodes_form_a_cluster(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        data = str(tmp_path / "controller")
        controller = stack.enter_context(
            started("--data", data, *SHORT_TIMEOUTS, command="controller")
        )
        controller_address = ready_line(controller)
        nodes = []
        for broker_id, rack in ((7, "here"), (8, "there")):
            arguments = ["--id", str(broker_id), "--rack", rack]
            arguments += ["--data", str(tmp_path / rack), "--controller", controller_address]
            nodes.append(stack.enter_context(started(*arguments, *SHORT_TIMEOUTS, command="node")))
        addresses = [ready_line(node) for node in nodes]
        assert racks(addresses[0]) == {7: "here", 8: "there"}
        create_topic(addresses[1], "t", replication_factor=2)
        nodes[0].terminate()
        assert nodes[0].wait(TIMEOUT_SECONDS) == 0
        eventually(lambda: live_brokers(addresses[1]) == {8})
        meta_properties = next((tmp_path / "here").rglob("meta.properties")).read_text()
        cluster_id = meta_properties.partition("cluster.id=")[2].split()[0]
        with started("--data", str(tmp_path / "another"), command="controller") as other:
            wrong = ["--id", "7", "--data", str(tmp_path / "here"), "--port", "0"]
            address = ready_line(other)
            ended = run("node", *wrong, "--controller", address, "--log-level", "error")
        assert ended.returncode == 1
        assert address in ended.stderr
        assert cluster_id in ended.stderr
        assert ended.stderr.count("\n") == 1, ended.stderr


def test_a_broker_with_a_full_disk_ends_with_one_line(tmp_path: Path) -> None:
    with started("--data", str(tmp_path)) as process:
        address = ready_line(process)
        create_topic(address, "t")
        eventually(lambda: write(address, "kept") is ErrorCode.none)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, 0))
        with contextlib.suppress(
            ConnectionError
        ):  # The broker may end before it sends the response.
            assert write(address, "lost") is ErrorCode.kafka_storage_error
        line = only_line(process)
    assert f"{tmp_path}/broker-1/t-0/" in line
    assert "File too large" in line


def write(address: str, value: str) -> ErrorCode:
    """Produce a record to partition 0 of topic t and return the error code."""
    code: ErrorCode = produced(send_request(address, produce(batch(value)))).error_code
    return code


def children_of(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def test_a_secured_cluster_of_processes(tmp_path: Path) -> None:
    """A restart with the same port keeps the settings of clients valid."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    arguments = ("--secure", "--processes", "--data", str(tmp_path), "--port", str(port))
    clients = tmp_path / "clients"
    written: list[dict[str, str]] = []
    for _ in range(2):
        with started(*arguments) as process:
            assert ready_line(process) == f"127.0.0.1:{port}"
            written.append({path.name: path.read_text() for path in clients.iterdir()})
            lines = (clients / "librdkafka.properties").read_text().splitlines()
            settings: dict[str, Any] = dict(line.split("=", 1) for line in lines)
            assert len(AdminClient(settings).list_topics(timeout=TIMEOUT_SECONDS).brokers) == 1
            processes = subprocess.run(
                ["ps", "-A", "-ww", "-o", "args"], capture_output=True, text=True, check=True
            ).stdout
            process.send_signal(signal.SIGTERM)
            _, stderr = process.communicate(timeout=TIMEOUT_SECONDS)
        assert str(clients) in stderr
        assert str(tmp_path / "broker-1") in processes
        assert settings["sasl.password"] not in stderr + processes
    assert written[0] == written[1]
    assert sorted(written[0]) == [
        "admin.properties",
        "java.properties",
        "librdkafka.properties",
        "pyspark_kafka.json",
    ]
    for path in (*clients.iterdir(), tmp_path / "broker-1.properties"):
        assert path.stat().st_mode & 0o777 == 0o600
