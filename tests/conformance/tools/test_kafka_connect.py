"""Kafka Connect with an exactly-once source, while a worker is killed.

Two distributed workers run two file source connectors. A task writes its records and its source
offsets in one transaction, and a new task fences the previous one (KIP-618).
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from integration.clusters import Cluster
from integration.clusters.maven import KAFKA_CONNECT
from integration.clusters.node_process import NodeProcess
from integration.clusters.ports import free_ports
from integration.java_programs import java_program, write_properties
from tests.conformance.eventually import eventually
from tests.conformance.tools.committed import PROGRAM_TIMEOUT_S, await_count, read

pytestmark = [
    pytest.mark.slow,
    pytest.mark.full,
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("java_programs"),
]

WORKER = "org.apache.kafka.connect.cli.ConnectDistributed"
CONNECTORS = ("file-1", "file-2")
LINES = 1000
LINES_OF_TRANSACTION = 20


class Rest:
    """The REST API of a worker."""

    def __init__(self, port: int) -> None:
        self.address = f"127.0.0.1:{port}"

    def put_connector(self, name: str, config: dict[str, str]) -> None:
        self._call(f"connectors/{name}/config", config)

    def worker_of_task(self, connector: str) -> str:
        """Return the address of the worker that runs the only task of a connector."""
        (task,) = self._call(f"connectors/{connector}/status")["tasks"]
        return str(task["worker_id"])

    def is_ready(self) -> bool:
        try:
            self._call("connectors")
        except OSError:
            return False
        return True

    def _call(self, path: str, body: object = None) -> Any:
        """Send a PUT request if there is a body, otherwise a GET request."""
        request = urllib.request.Request(
            f"http://{self.address}/{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
            method="GET" if body is None else "PUT",
        )
        with urllib.request.urlopen(request, timeout=90) as response:
            return json.load(response)


@contextmanager
def two_workers(cluster: Cluster, directory: Path) -> Iterator[dict[Rest, NodeProcess]]:
    """Start two workers, and return them by their REST APIs."""
    replicas = str(len(cluster.broker_ids))
    with ExitStack() as stack:
        workers = {}
        for number, port in enumerate(free_ports(2), start=1):
            name, rest = f"worker-{number}", Rest(port)
            settings = {
                "bootstrap.servers": cluster.bootstrap_servers,
                "group.id": "connect",
                "exactly.once.source.support": "enabled",
                "config.storage.topic": "connect.configs",
                "config.storage.replication.factor": replicas,
                "offset.storage.topic": "connect.offsets",
                "offset.storage.partitions": "5",
                "offset.storage.replication.factor": replicas,
                "status.storage.topic": "connect.status",
                "status.storage.partitions": "1",
                "status.storage.replication.factor": replicas,
                "key.converter": "org.apache.kafka.connect.storage.StringConverter",
                "value.converter": "org.apache.kafka.connect.storage.StringConverter",
                "listeners": f"http://{rest.address}",
                "rest.advertised.host.name": "127.0.0.1",
                "plugin.discovery": "service_load",
                # The tasks of a killed worker are reassigned quickly.
                "session.timeout.ms": "6000",
                "heartbeat.interval.ms": "1500",
                "scheduled.rebalance.max.delay.ms": "0",
            }
            properties = write_properties(directory / f"{name}.properties", settings)
            program = java_program(
                name, WORKER, str(properties), artifacts=(KAFKA_CONNECT,), directory=directory
            )
            workers[rest] = stack.enter_context(program)
        yield workers


def lines_of(connector: str) -> list[str]:
    """Return lines of 1024 characters with their line breaks.

    The connector reads 1024 characters at a time. At the end of a file, it keeps the lines that it
    has read but not returned, so it must not read more than one line at a time.
    """
    return [f"{connector} {number}".ljust(1023, ".") for number in range(LINES)]


def append(file: Path, lines: list[str]) -> None:
    with file.open("a") as opened:
        opened.writelines(f"{line}\n" for line in lines)


def committed_lines(cluster: Cluster, topic: str, connector: str) -> list[str]:
    lines = read(cluster, topic, partitions=1).get(0, [])
    return [line for line in lines if line.startswith(f"{connector} ")]


def test_lines_are_written_exactly_once_while_a_worker_is_killed(
    processes: Cluster, unique_name: Callable[[], str], tmp_path: Path
) -> None:
    topic = unique_name()
    processes.create_topic(topic, replication_factor=len(processes.broker_ids))
    with two_workers(processes, tmp_path) as workers:
        rest, _ = workers
        eventually(lambda: all(each.is_ready() for each in workers), timeout_s=PROGRAM_TIMEOUT_S)
        for connector in CONNECTORS:
            append(tmp_path / connector, lines_of(connector)[:LINES_OF_TRANSACTION])
            config = {
                "connector.class": "FileStreamSource",
                "file": str(tmp_path / connector),
                "topic": topic,
                "batch.size": str(LINES_OF_TRANSACTION),
            }
            rest.put_connector(connector, config)
        # A task fails permanently if the Connect leader is killed before it fences the
        # producers of the task.
        started = len(CONNECTORS) * LINES_OF_TRANSACTION
        await_count(processes, topic, started, partitions=1)

        victim, survivor = CONNECTORS
        worker = rest.worker_of_task(victim)
        (program,) = (program for each, program in workers.items() if each.address == worker)
        append(tmp_path / victim, lines_of(victim)[LINES_OF_TRANSACTION:])
        await_count(processes, topic, started + 1, partitions=1)
        program.kill()
        assert len(committed_lines(processes, topic, victim)) < LINES
        program.start()
        append(tmp_path / survivor, lines_of(survivor)[LINES_OF_TRANSACTION:])
        await_count(processes, topic, len(CONNECTORS) * LINES, partitions=1)
        for connector in CONNECTORS:
            assert committed_lines(processes, topic, connector) == lines_of(connector)
