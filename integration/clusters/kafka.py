"""The `kafka` backend, which runs Apache Kafka (KRaft) with one JVM per node.

The behavior of this cluster is the reference for the other backends. The controller is a separate
node (isolated mode), so any node can be killed. Invariant: the cluster listens only on the loopback
interface, stores all files in one temporary directory, and stops only its own processes, by process
id. All configs have Kafka's default values, unless a small cluster or a small machine requires
other values. The JVMs are optimized for a fast start, except in benchmarks.
"""

from __future__ import annotations

import base64
import os
import subprocess
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from integration.clusters.base import ClusterStartError, Links
from integration.clusters.java import java_command, java_version
from integration.clusters.kafka_jvm import (
    JvmOptions,
    class_archiving_jvm_options,
    fast_start_jvm_options,
)
from integration.clusters.maven import CACHE, KAFKA_VERSION, apache_kafka, locked, resolve
from integration.clusters.node_cluster import (
    CONTROLLER_ID,
    START_TIMEOUT_S,
    NodeCluster,
    Nodes,
    Plan,
)
from integration.clusters.node_process import NodeProcess

if TYPE_CHECKING:
    from integration.clusters.security import Security

_SETTINGS_OF_A_SMALL_MACHINE = {
    "offsets.topic.num.partitions": "5",
    "transaction.state.log.num.partitions": "5",
    "share.coordinator.state.topic.num.partitions": "5",
    "group.initial.rebalance.delay.ms": "0",
    "log.cleaner.dedupe.buffer.size": str(16 * 1024 * 1024),
    # Tests read records with old timestamps, so retention must not run during a test.
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
    """Return the configs that a test cluster with this number of brokers requires."""
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
    """A cluster of Apache Kafka processes. The constructor starts it.

    `jvm_options` returns the JVM options for a role. By default, these options make the JVM start
    fast. `security` adds secured listeners. Raises `ClusterUnavailableError` if Java or Kafka's
    JARs are missing. Raises `ClusterStartError` with the end of the logs if a node does not start.
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
        security: Security | None = None,
    ) -> None:
        self._version = version
        self._settings = {**settings(brokers), **(configs or {})}
        self._racks = dict(racks or {})
        self._features = dict(features or {})
        self._java = java_command()
        self._class_path = os.pathsep.join(str(jar) for jar in resolve(apache_kafka(version)))
        self._jvm_options = jvm_options or fast_start_jvm_options(class_archives(version))
        self._heap_megabytes = heap_megabytes
        self._cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        super().__init__(brokers=brokers, links=links, prefix="kafka-", security=security)

    @property
    def backend(self) -> str:
        return "kafka"

    @property
    def version(self) -> str:
        return f"Apache Kafka {self._version}"

    def data_directory(self, broker_id: int) -> Path:
        """Return the directory in the broker's `log.dirs`."""
        self._check_id(broker_id)
        return self._directory / f"broker-{broker_id}"

    def _make_nodes(self, plan: Plan) -> Nodes:
        """Write the properties of each node, and format the controller's directory if it is new."""
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
        controller = plan.controller_addresses[broker_id]
        properties = {
            "process.roles": "broker",
            "node.id": str(broker_id),
            "controller.quorum.voters": f"{CONTROLLER_ID}@{controller}",
            "listeners": f"PLAINTEXT://{plan.listeners[broker_id]}",
            "advertised.listeners": f"PLAINTEXT://{plan.advertised[broker_id]}",
            "inter.broker.listener.name": "PLAINTEXT",
        }
        if self._secured is not None:
            properties |= self._secured.broker_configs(
                broker_id,
                plan.listeners[broker_id],
                advertised=plan.advertised[broker_id],
                links=self._links,
            )
        if broker_id in self._racks:
            properties["broker.rack"] = self._racks[broker_id]
        name = f"broker-{broker_id}"
        # Write the file that formatting would create. Formatting starts a JVM, which takes seconds.
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
        """Format the controller's directory with the requested features."""
        arguments = ["format", f"--cluster-id={self._cluster_id}", "--config", str(properties)]
        for name, version in self._features.items():
            arguments += ["--feature", f"{name}={version}"]
        for credential in self._secured.scram_arguments() if self._secured is not None else ():
            arguments += ["--add-scram", credential]
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
                f"{self.version} could not format the controller's directory:\n"
                f"{done.stdout}{done.stderr}"
            )

    def _node(self, name: str, role: str, properties: Path) -> NodeProcess:
        heap = [f"-Xmx{self._heap_megabytes}m", f"-Xms{self._heap_megabytes // 4}m"]
        command = self._command("kafka.Kafka", *heap, *self._jvm_options(role), str(properties))
        return NodeProcess(name, command, directory=self._directory)

    def _command(self, main_class: str, *rest: str) -> list[str]:
        """Return the command that runs a Java class.

        Elements of `rest` that begin with `-X` are passed to the JVM as options. The other elements
        are passed to the Java class as arguments.
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
    """Return the directory of the CDS archives for the installed Java and a version of Kafka.

    CDS (class-data sharing) archives reduce the startup time of the JVM. They are created if
    necessary.
    """
    name = apache_kafka(version).name
    # The archives are next to the JARs, because Java rejects archives created from other JARs.
    directory = CACHE / name / f"classes-java-{java_version(java_command())}"
    with locked(CACHE / f"{name}.lock"):
        if not directory.exists():
            with tempfile.TemporaryDirectory(dir=directory.parent) as scratch:
                made = Path(scratch, "made")
                made.mkdir()
                KafkaCluster(version=version, jvm_options=class_archiving_jvm_options(made)).close()
                made.rename(directory)
    return directory
