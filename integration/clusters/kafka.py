"""Apache Kafka itself: one node, broker and controller in one (KRaft), as a JVM process.

Purpose: the cluster that says what Kafka does. Invariant: it listens on loopback only, keeps
everything in one temporary directory, and ends only the process it started, by its id. Kafka's
settings stay as they ship, but for those that one node or a small machine forces.
"""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from integration.clusters import topics
from integration.clusters.base import ClusterFailed
from integration.clusters.coordinates import KAFKA_VERSION, apache_kafka, resolve
from integration.clusters.java import java_command
from integration.clusters.ports import free_ports
from integration.clusters.watchdog import Watchdog

BROKER_ID = 1
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 30.0
START_ATTEMPTS = 5
LOG_TAIL_BYTES = 64 * 1024

_SETTINGS_OF_ONE_SMALL_NODE = {
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "5",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "5",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "log.cleaner.dedupe.buffer.size": str(16 * 1024 * 1024),
    # Tests write records with timestamps of long ago, and mean to read them: no retention meanwhile.
    "log.initial.task.delay.ms": str(6 * 60 * 60 * 1000),
}

_LOGGING = """\
status = error
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{ISO8601} %p %c{1}: %m%n
rootLogger.level = info
rootLogger.appenderRef.console.ref = console
"""


class KafkaCluster:
    """A `Cluster` of one Apache Kafka node; starts in its constructor.

    Raises `ClusterUnavailable` where Java or the artifacts are missing, `ClusterFailed` with the
    end of its log where the broker does not come up.
    """

    def __init__(
        self,
        *,
        version: str = KAFKA_VERSION,
        configs: Mapping[str, str] | None = None,
        heap_megabytes: int = 512,
    ) -> None:
        self._version = version
        self._configs = dict(configs or {})
        self._java = java_command()
        self._class_path = os.pathsep.join(str(jar) for jar in resolve(apache_kafka(version)))
        self._heap_megabytes = heap_megabytes
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: Watchdog | None = None
        self._port = 0
        self._temporary = tempfile.TemporaryDirectory(prefix="kafka-")
        self._directory = Path(self._temporary.name)
        self._log = self._directory / "broker.log"
        try:
            self._first_start()
        except BaseException:
            self.close()
            raise

    @property
    def backend(self) -> str:
        return "kafka"

    @property
    def version(self) -> str:
        return f"Apache Kafka {self._version}"

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self._port}"

    def create_topic(
        self, name: str, *, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic and wait until its partitions have leaders."""
        topics.create_topic(self.bootstrap_servers, name, partitions=partitions, configs=configs)

    def stop_broker(self, broker_id: int) -> None:
        """Stop it in good order (SIGTERM), or by SIGKILL where that takes too long."""
        process = self._running(broker_id)
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_TIMEOUT_S)
        self._end(process)

    def kill_broker(self, broker_id: int) -> None:
        """SIGKILL: it has no time to write or say anything."""
        self._end(self._running(broker_id))

    def start_broker(self, broker_id: int) -> None:
        """Start it again on the same port and directory; returns when it serves."""
        self._check_id(broker_id)
        if self._process is not None:
            raise ValueError(f"broker {broker_id} runs already")
        self._launch()
        self._await_ready()

    def logs(self) -> str:
        """The end of what the broker has printed."""
        try:
            with self._log.open("rb") as log:
                log.seek(max(0, self._log.stat().st_size - LOG_TAIL_BYTES))
                return log.read().decode(errors="replace")
        except FileNotFoundError:
            return ""

    def close(self) -> None:
        if self._process is not None:
            self.stop_broker(BROKER_ID)
        self._temporary.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _first_start(self) -> None:
        """Format the directory and start; with new ports where another process took ours."""
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        (self._directory / "log4j2.properties").write_text(_LOGGING)
        for attempt in range(1, START_ATTEMPTS + 1):
            broker_port, controller_port = free_ports(2)
            self._port = broker_port
            self._write_properties(broker_port, controller_port)
            if attempt == 1:
                self._format(cluster_id)
            self._launch()
            try:
                self._await_ready()
                return
            except ClusterFailed:
                if attempt == START_ATTEMPTS or "Address already in use" not in self.logs():
                    raise
                self._log.unlink()

    def _write_properties(self, broker_port: int, controller_port: int) -> None:
        properties = {
            "process.roles": "broker,controller",
            "node.id": str(BROKER_ID),
            "controller.quorum.voters": f"{BROKER_ID}@127.0.0.1:{controller_port}",
            "listeners": (
                f"PLAINTEXT://127.0.0.1:{broker_port},CONTROLLER://127.0.0.1:{controller_port}"
            ),
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{broker_port}",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "log.dirs": str(self._directory / "data"),
            **_SETTINGS_OF_ONE_SMALL_NODE,
            **self._configs,
        }
        text = "".join(f"{name}={value}\n" for name, value in properties.items())
        (self._directory / "server.properties").write_text(text)

    def _format(self, cluster_id: str) -> None:
        arguments = ["format", "--cluster-id", cluster_id, "--config", self._properties]
        done = subprocess.run(
            self._command("kafka.tools.StorageTool", "-XX:TieredStopAtLevel=1", *arguments),
            capture_output=True,
            text=True,
            timeout=START_TIMEOUT_S,
            check=False,
            cwd=self._directory,
        )
        if done.returncode != 0:
            raise ClusterFailed(
                f"{self.version} could not format its directory:\n{done.stdout}{done.stderr}"
            )

    def _launch(self) -> None:
        options = [f"-Xmx{self._heap_megabytes}m", f"-Xms{self._heap_megabytes // 2}m"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command("kafka.Kafka", *options, self._properties),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._directory,
                # An interrupt from the keyboard is for the test run, which then stops the broker.
                start_new_session=True,
            )
        self._watchdog = Watchdog(self._process.pid)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """Kill it where it still runs, and wait until it is gone."""
        if self._watchdog is not None:
            self._watchdog.close()
        process.kill()
        process.wait()
        self._process = self._watchdog = None

    def _await_ready(self) -> None:
        process = self._running(BROKER_ID)

        def exited() -> str | None:
            code = process.poll()
            return None if code is None else f"it exited with {code}"

        try:
            topics.await_brokers(
                self.bootstrap_servers,
                count=1,
                deadline_s=time.monotonic() + START_TIMEOUT_S,
                give_up=exited,
            )
        except TimeoutError as error:
            self.kill_broker(BROKER_ID)
            raise ClusterFailed(f"{self.version}: {error}. Its log ends:\n{self.logs()}") from None

    def _command(self, main_class: str, *rest: str) -> list[str]:
        """`rest` is JVM options, which begin with a dash, then the program's arguments."""
        options = [word for word in rest if word.startswith("-X")]
        arguments = [word for word in rest if not word.startswith("-X")]
        return [
            self._java,
            *options,
            "-Djava.awt.headless=true",
            f"-Dlog4j2.configurationFile={self._directory / 'log4j2.properties'}",
            "-cp",
            self._class_path,
            main_class,
            *arguments,
        ]

    @property
    def _properties(self) -> str:
        return str(self._directory / "server.properties")

    def _running(self, broker_id: int) -> subprocess.Popen[bytes]:
        self._check_id(broker_id)
        if self._process is None:
            raise ValueError(f"broker {broker_id} does not run")
        return self._process

    def _check_id(self, broker_id: int) -> None:
        if broker_id != BROKER_ID:
            raise ValueError(f"there is no broker {broker_id}, only broker {BROKER_ID}")
