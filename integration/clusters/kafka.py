"""The backend `kafka`: Apache Kafka itself (KRaft), one JVM per broker and one for the controller.

Purpose: the cluster whose behaviour is the reference. The controller is a separate node (isolated
mode), so that any node can be killed. Invariant: it listens on loopback only, keeps all files in
one temporary directory, and ends only its own processes, by their ids. Configs are Kafka's
defaults, except those that few nodes or a small machine require; its JVMs optimize for a fast start
unless they are measured.
"""

from __future__ import annotations

import base64
import os
import subprocess
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path

from integration.clusters.base import ClusterStartError, Links
from integration.clusters.coordinates import CACHE, KAFKA_VERSION, apache_kafka, locked, resolve
from integration.clusters.java import java_command, java_version
from integration.clusters.kafka_jvm import JvmOptions, archives_classes, starts_soon
from integration.clusters.node_cluster import (
    CONTROLLER_ID,
    START_TIMEOUT_S,
    NodeCluster,
    Nodes,
    Plan,
)
from integration.clusters.node_process import NodeProcess

_SETTINGS_OF_A_SMALL_MACHINE = {
    "offsets.topic.num.partitions": "5",
    "transaction.state.log.num.partitions": "5",
    "share.coordinator.state.topic.num.partitions": "5",
    "group.initial.rebalance.delay.ms": "0",
    "log.cleaner.dedupe.buffer.size": str(16 * 1024 * 1024),
    # Tests read records with old timestamps, so retention is off.
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


def settings(brokers: int) -> dict[str, str]:
    """Return the configs that a test cluster of this size needs."""
    replicas = str(min(3, brokers))
    in_sync = str(min(2, brokers))
    return {
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync,
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": in_sync,
        **_SETTINGS_OF_A_SMALL_MACHINE,
    }


class KafkaCluster(NodeCluster):
    """A `Cluster` of Apache Kafka; starts in its constructor.

    `jvm_options` are the JVM options by role (default: for a fast start). Raise
    `ClusterUnavailableError` if Java or the artifacts are missing, `ClusterStartError` with the end
    of its logs if a node does not start.
    """

    def __init__(
        self,
        *,
        brokers: int = 1,
        version: str = KAFKA_VERSION,
        configs: Mapping[str, str] | None = None,
        racks: Mapping[int, str] | None = None,
        features: Mapping[str, int] | None = None,
        links: Links | None = None,
        heap_megabytes: int = 512,
        jvm_options: JvmOptions | None = None,
    ) -> None:
        self._version = version
        self._settings = {**settings(brokers), **(configs or {})}
        self._racks = dict(racks or {})
        self._features = dict(features or {})
        self._java = java_command()
        self._class_path = os.pathsep.join(str(jar) for jar in resolve(apache_kafka(version)))
        self._jvm_options = jvm_options or starts_soon(class_archives(version))
        self._heap_megabytes = heap_megabytes
        self._cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        super().__init__(brokers=brokers, links=links, prefix="kafka-")

    @property
    def backend(self) -> str:
        return "kafka"

    @property
    def version(self) -> str:
        return f"Apache Kafka {self._version}"

    def data_directory(self, broker_id: int) -> Path:
        """Return the only directory of the broker's `log.dirs`."""
        self._check_id(broker_id)
        return self._directory / f"broker-{broker_id}"

    def _make_nodes(self, plan: Plan) -> Nodes:
        """Write each node's properties, and format its directory if it is new."""
        self._log4j.write_text(_LOGGING)
        controller = self._write_controller(plan)
        if not (self._directory / "controller" / "meta.properties").exists():
            self._format(controller)
        return Nodes(
            controller=self._node("controller", "controller", controller),
            brokers={
                i: self._node(f"broker {i}", "broker", self._write_broker(i, plan))
                for i in self.broker_ids
            },
        )

    def _write_controller(self, plan: Plan) -> Path:
        return self._write_properties(
            "controller",
            {
                "process.roles": "controller",
                "node.id": str(CONTROLLER_ID),
                "controller.quorum.voters": f"{CONTROLLER_ID}@{plan.controller}",
                "listeners": f"CONTROLLER://{plan.controller}",
            },
        )

    def _write_broker(self, broker_id: int, plan: Plan) -> Path:
        controller = plan.controller_as_seen_by[broker_id]
        properties = {
            "process.roles": "broker",
            "node.id": str(broker_id),
            "controller.quorum.voters": f"{CONTROLLER_ID}@{controller}",
            "listeners": f"PLAINTEXT://{plan.listeners[broker_id]}",
            "advertised.listeners": f"PLAINTEXT://{plan.advertised[broker_id]}",
            "inter.broker.listener.name": "PLAINTEXT",
        }
        if broker_id in self._racks:
            properties["broker.rack"] = self._racks[broker_id]
        name = f"broker-{broker_id}"
        # Write what formatting a broker writes; a JVM for each would take seconds.
        (self._directory / name).mkdir(exist_ok=True)
        (self._directory / name / "meta.properties").write_text(
            f"version=1\ncluster.id={self._cluster_id}\nnode.id={broker_id}\n"
        )
        return self._write_properties(name, properties)

    def _write_properties(self, name: str, properties: Mapping[str, str]) -> Path:
        path = self._directory / f"{name}.properties"
        everything = {
            **properties,
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self._directory / name),
            **self._settings,
        }
        path.write_text("".join(f"{key}={value}\n" for key, value in everything.items()))
        return path

    def _format(self, properties: Path) -> None:
        """Format the controller's directory with the features of this version."""
        arguments = ["format", f"--cluster-id={self._cluster_id}", "--config", str(properties)]
        for name, version in self._features.items():
            arguments += ["--feature", f"{name}={version}"]
        done = subprocess.run(
            self._command("kafka.tools.StorageTool", *self._jvm_options("controller"), *arguments),
            capture_output=True,
            text=True,
            timeout=START_TIMEOUT_S,
            check=False,
            cwd=self._directory,
        )
        if done.returncode != 0:
            raise ClusterStartError(
                f"{self.version} could not format its directory:\n{done.stdout}{done.stderr}"
            )

    def _node(self, name: str, role: str, properties: Path) -> NodeProcess:
        heap = [f"-Xmx{self._heap_megabytes}m", f"-Xms{self._heap_megabytes // 4}m"]
        command = self._command("kafka.Kafka", *heap, *self._jvm_options(role), str(properties))
        return NodeProcess(name, command, directory=self._directory)

    def _command(self, main_class: str, *rest: str) -> list[str]:
        """Start a class; `rest` is JVM options, which begin with `-X`, then the program's
        arguments.
        """
        options = [word for word in rest if word.startswith("-X")]
        arguments = [word for word in rest if not word.startswith("-X")]
        return [
            self._java,
            *options,
            "-Djava.awt.headless=true",
            f"-Dlog4j2.configurationFile={self._log4j}",
            "-cp",
            self._class_path,
            main_class,
            *arguments,
        ]

    @property
    def _log4j(self) -> Path:
        return self._directory / "log4j2.properties"


def class_archives(version: str = KAFKA_VERSION) -> Path:
    """Return the directory of the class archives for this Java and Kafka; create
    them if missing.
    """
    name = apache_kafka(version).name
    # Next to the JARs, since archives of other JARs are rejected.
    directory = CACHE / name / f"classes-java-{java_version(java_command())}"
    with locked(CACHE / f"{name}.lock"):
        if not directory.exists():
            with tempfile.TemporaryDirectory(dir=directory.parent) as scratch:
                made = Path(scratch, "made")
                made.mkdir()
                KafkaCluster(version=version, jvm_options=archives_classes(made)).close()
                made.rename(directory)
    return directory
