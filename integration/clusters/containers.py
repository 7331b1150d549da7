"""The `testcontainers` backend, which runs Apache Kafka's Docker image.

Provides the same cluster as the `kafka` backend on machines that have Docker but no Java. The
brokers and the controller communicate over a Docker network, and clients connect to ports on the
loopback interface. Invariant: `close` removes the containers and the network. If this process is
killed, testcontainers' reaper removes them. Only `DockerContainers` depends on Docker's API, so
tests can replace that class.
"""

from __future__ import annotations

import base64
import gc
import uuid
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from integration.clusters import features as features_of
from integration.clusters import kafka
from integration.clusters.base import ClusterUnavailableError, Links, UnsupportedByBackendError
from integration.clusters.maven import KAFKA_VERSION
from integration.clusters.node_cluster import CONTROLLER_ID, NodeCluster, Nodes, Plan

CLIENT_PORT, BROKER_PORT, CONTROLLER_PORT = 9092, 19092, 9093
STOP_TIMEOUT_S = 30
LOG_TAIL_CHARACTERS = 16 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSpec:
    """The settings of a container. `ports` maps container ports to loopback ports."""

    image: str
    hostname: str
    environment: Mapping[str, str]
    ports: Mapping[int, int]


class Container(Protocol):
    """A container. Its operations have the same names as in Docker."""

    def start(self) -> None: ...

    def signal(self, name: str) -> None:
        """Send a signal such as SIGTERM and return immediately."""

    def stop(self, timeout_s: int) -> None: ...

    def pause(self) -> None: ...

    def unpause(self) -> None: ...

    def status(self) -> str:
        """Return the status in Docker's terms, such as `running`, `paused` or `exited`."""

    def logs(self) -> str: ...

    def remove(self) -> None: ...


class Containers(Protocol):
    """A factory for containers on one network."""

    def create(self, spec: ContainerSpec) -> Container: ...

    def close(self) -> None:
        """Remove the network."""


class ContainerNode:
    """A node that runs in a container."""

    def __init__(self, name: str, container: Container) -> None:
        self._name = name
        self._container = container
        self._was_started = self._is_started = self._is_paused = False

    @property
    def name(self) -> str:
        return self._name

    @property
    def is_started(self) -> bool:
        return self._is_started

    @property
    def is_active(self) -> bool:
        return self._is_started and not self._is_paused

    def failure(self) -> str | None:
        """Return why the node cannot become ready, or None."""
        self._require_started()
        status = self._container.status()
        return f"its container is {status}" if status in ("exited", "dead") else None

    def start(self) -> None:
        """Start the node and return immediately. Raise `ValueError` if it is running."""
        if self._is_started:
            raise ValueError(f"{self._name} is already running")
        self._was_started = self._is_started = True
        self._container.start()

    def terminate(self) -> None:
        """Send SIGTERM. The caller must call `stop` or `kill` afterwards."""
        self._require_started()
        if self._is_paused:
            self.resume()
        if self.failure() is None:
            self._container.signal("SIGTERM")

    def stop(self) -> None:
        """Stop the node cleanly, or with SIGKILL after a timeout."""
        self._require_started()
        if self._is_paused:
            self.resume()
        self._container.stop(STOP_TIMEOUT_S)
        self._is_started = False

    def kill(self) -> None:
        """Send SIGKILL and wait until the container has stopped."""
        self._require_started()
        if self._is_paused:
            # Docker cannot kill a paused container. If it were resumed first, it would run before
            # the kill.
            raise UnsupportedByBackendError(
                f"{self._name} is paused. Resume it before you kill it."
            )
        if self.failure() is None:
            self._container.signal("SIGKILL")
        self._container.stop(STOP_TIMEOUT_S)
        self._is_started = False

    def pause(self) -> None:
        """Pause all processes of the container with Docker's cgroup freezer."""
        self._require_started()
        self._container.pause()
        self._is_paused = True

    def resume(self) -> None:
        """Resume the node. Raise `ValueError` if it is not paused."""
        self._require_started()
        if not self._is_paused:
            raise ValueError(f"{self._name} is not paused")
        self._container.unpause()
        self._is_paused = False

    def log_tail(self) -> str:
        return self._container.logs()[-LOG_TAIL_CHARACTERS:] if self._was_started else ""

    def close(self) -> None:
        """Stop and remove the container."""
        if self._is_started:
            self.stop()
        if self._was_started:
            self._container.remove()

    def _require_started(self) -> None:
        if not self._is_started:
            raise ValueError(f"{self._name} is not running")


class TestcontainersCluster(NodeCluster):
    """A cluster of Apache Kafka containers. The constructor starts it.

    Raises `ClusterUnavailableError` if Docker or the `testcontainers` package is missing. Raises
    `ClusterStartError` with the end of the logs if a node does not start. The addresses that
    `Links.to_controller` returns are ignored.
    """

    __test__ = False  # The class name begins with "Test", so pytest would collect it.

    def __init__(
        self,
        *,
        brokers: int = 1,
        version: str = KAFKA_VERSION,
        configs: Mapping[str, str] | None = None,
        racks: Mapping[int, str] | None = None,
        features: Mapping[str, int] | None = None,
        links: Links | None = None,
        containers: Containers | None = None,
        heap_megabytes: int = 512,
    ) -> None:
        self._version = version
        self._settings = {**kafka.settings(brokers), **(configs or {})}
        self._racks = dict(racks or {})
        self._heap = f"-Xmx{heap_megabytes}m -Xms{heap_megabytes // 4}m"
        self._cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        self._containers = DockerContainers() if containers is None else containers
        super().__init__(brokers=brokers, links=links, prefix="kafka-containers-")
        if features:
            self._finalize(features)

    @property
    def backend(self) -> str:
        return "testcontainers"

    @property
    def version(self) -> str:
        return f"Apache Kafka {self._version}"

    def data_directory(self, broker_id: int) -> Path:
        """Raise `UnsupportedByBackendError`, because the directory is inside the container."""
        self._check_id(broker_id)
        raise UnsupportedByBackendError(
            f"the logs of broker {broker_id} are inside its container. Use the kafka backend "
            "to read logs."
        )

    def close(self) -> None:
        super().close()
        self._containers.close()

    def _finalize(self, versions: Mapping[str, int]) -> None:
        """Update the features through a broker.

        This is necessary because the image formats its directories with default features.
        """
        try:
            features_of.finalize([self.address(i) for i in self.broker_ids], versions)
        except BaseException:
            self.close()
            raise

    def _make_nodes(self, plan: Plan) -> Nodes:
        for earlier in [] if self._nodes is None else self._nodes.all():
            earlier.close()
        return Nodes(
            controller=self._controller(),
            brokers={i: self._broker_node(i, plan) for i in self.broker_ids},
        )

    def _controller(self) -> ContainerNode:
        properties = {
            "process.roles": "controller",
            "node.id": str(CONTROLLER_ID),
            "listeners": f"CONTROLLER://:{CONTROLLER_PORT}",
        }
        return self._node("controller", "controller", properties, ports={})

    def _broker_node(self, broker_id: int, plan: Plan) -> ContainerNode:
        hostname = f"broker-{broker_id}"
        properties = {
            "process.roles": "broker",
            "node.id": str(broker_id),
            "listeners": f"CLIENT://:{CLIENT_PORT},BROKER://:{BROKER_PORT}",
            "advertised.listeners": (
                f"CLIENT://{plan.advertised[broker_id]},BROKER://{hostname}:{BROKER_PORT}"
            ),
            "inter.broker.listener.name": "BROKER",
        }
        if broker_id in self._racks:
            properties["broker.rack"] = self._racks[broker_id]
        port = int(plan.listeners[broker_id].rpartition(":")[2])
        return self._node(f"broker {broker_id}", hostname, properties, ports={CLIENT_PORT: port})

    def _node(
        self, name: str, hostname: str, properties: Mapping[str, str], *, ports: Mapping[int, int]
    ) -> ContainerNode:
        everything = {
            **properties,
            "controller.quorum.voters": f"{CONTROLLER_ID}@controller:{CONTROLLER_PORT}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": (
                "CLIENT:PLAINTEXT,BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT"
            ),
            "log.dirs": "/var/lib/kafka/data",
            **self._settings,
        }
        environment = {environment_name(key): value for key, value in everything.items()}
        environment |= {"CLUSTER_ID": self._cluster_id, "KAFKA_HEAP_OPTS": self._heap}
        spec = ContainerSpec(
            image=f"apache/kafka:{self._version}",
            hostname=hostname,
            environment=environment,
            ports=ports,
        )
        return ContainerNode(name, self._containers.create(spec))


def environment_name(config: str) -> str:
    """Return the image's environment variable for a config (KIP-975).

    The variable for `log.dirs` is `KAFKA_LOG_DIRS`.
    """
    return "KAFKA_" + config.replace("_", "__").replace("-", "___").replace(".", "_").upper()


def require_docker() -> None:
    """Raise `ClusterUnavailableError` if the package is missing or Docker does not respond."""
    try:
        import docker  # noqa: PLC0415
        import testcontainers.core.container  # noqa: F401, PLC0415
    except ImportError as missing:
        raise ClusterUnavailableError(
            f"The testcontainers backend requires the testcontainers package, which cannot be "
            f"imported ({missing}). Install the package."
        ) from None
    reason = None
    try:
        client = docker.from_env()
        try:
            client.ping()
        finally:
            client.close()
    except docker.errors.DockerException as error:
        reason = str(error)
    if reason is not None:
        with warnings.catch_warnings():
            # The Docker client does not close its socket if the connection is refused.
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()
        raise ClusterUnavailableError(
            f"The testcontainers backend requires Docker, which is not responding ({reason}). "
            "Start Docker, or set DOCKER_HOST to its address."
        )


class DockerContainers:
    """Containers on the Docker daemon that the environment variables of this process specify."""

    def __init__(self) -> None:
        require_docker()
        from testcontainers.core.network import Network  # noqa: PLC0415

        self._network = Network().create()

    def create(self, spec: ContainerSpec) -> Container:
        from testcontainers.core.container import DockerContainer  # noqa: PLC0415

        container = (
            DockerContainer(spec.image)
            .with_envs(**spec.environment)
            .with_network(self._network)
            .with_network_aliases(spec.hostname)
        )
        for port, host_port in spec.ports.items():
            # docker-py binds to the loopback interface only if it gets a (host, port) pair.
            bound: Any = container.ports
            bound[port] = ("127.0.0.1", host_port)
        return _DockerContainer(container)

    def close(self) -> None:
        self._network.remove()


class _DockerContainer:
    def __init__(self, container: Any) -> None:
        self._container = container
        self._was_started = False

    def start(self) -> None:
        if self._was_started:
            self._docker.start()
        else:
            self._container.start()
        self._was_started = True

    def signal(self, name: str) -> None:
        self._docker.kill(signal=name)

    def stop(self, timeout_s: int) -> None:
        self._docker.stop(timeout=timeout_s)

    def pause(self) -> None:
        self._docker.pause()

    def unpause(self) -> None:
        self._docker.unpause()

    def status(self) -> str:
        docker = self._docker
        docker.reload()
        return str(docker.status)

    def logs(self) -> str:
        return str(self._docker.logs().decode(errors="replace"))

    def remove(self) -> None:
        self._container.stop()

    @property
    def _docker(self) -> Any:
        return self._container.get_wrapped_container()
