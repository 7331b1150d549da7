"""An in-process cluster of brokers for tests in Python.

`with broker_ref.Cluster(brokers=3) as cluster:` starts a cluster for any Kafka client. The
controller and the brokers run in one event loop in a daemon thread, and communicate over the
network. Invariants: after `close` or a failed start, no thread, socket, open file or temporary
directory of the cluster remains. A node keeps its port from its first start until `close`.
"""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from broker_ref.config import InvalidBrokerConfigError
from broker_ref.controller.client import CONTROLLER_ID
from broker_ref.controller.records import UserScramCredentialRecord
from broker_ref.faults import Faults
from broker_ref.io import admin
from broker_ref.io.broker import Broker
from broker_ref.io.controller import ControllerServer
from broker_ref.io.development_security import DevelopmentSecurity
from broker_ref.io.event_loop import EventLoopThread
from broker_ref.io.port import PortReservation
from broker_ref.io.settings import BrokerSettings, BrokerStartError, ControllerSettings
from broker_ref.security.development import CLIENT, ClientSettings, Security
from broker_ref.security.listeners import ADVERTISED, LISTENERS, ports_of, with_ports

_Result = TypeVar("_Result")

_HOST: Final = "127.0.0.1"
_CALL_TIMEOUT_SECONDS: Final = 90.0
INTERNAL_REPLICATION_FACTOR_MAX: Final = 3
INTERNAL_MIN_ISR_MAX: Final = 2


class ClusterError(Exception):
    """The operation is not possible in the current state of the cluster."""


class Cluster:
    """A controller and brokers on 127.0.0.1. Broker ids start at 1.

    - `brokers`: the number of brokers.
    - `data`: the data directory of the cluster. The default is a temporary directory that `close`
      removes.
    - `port`: the port of the first broker. The default 0 selects a free port.
    - `configs`: Kafka's broker configs, such as `{"auto.create.topics.enable": "false"}`.
    - `racks`: the rack of each broker, by broker id.
    - `features`: finalized feature versions of a new cluster, such as `{"transaction.version": 1}`.
      An existing data directory keeps its versions.
    - `scram_credentials`: SCRAM credentials of a new cluster, from `parse_scram_argument`.
    - `security`: secures the cluster with its own certificates and passwords, for example
      `Security()` for SASL_SSL. `client_settings` returns the settings that clients need.

    The `faults` attribute injects faults into the cluster.
    """

    def __init__(
        self,
        brokers: int = 1,
        *,
        data: str | Path | None = None,
        port: int = 0,
        configs: Mapping[str, str] | None = None,
        racks: Mapping[int, str] | None = None,
        features: Mapping[str, int] | None = None,
        scram_credentials: Sequence[UserScramCredentialRecord] = (),
        security: Security | None = None,
    ) -> None:
        if brokers < 1:
            raise ClusterError(f"A cluster must have at least one broker, not {brokers}.")
        self.faults: Final = Faults()
        self.broker_ids: Final = tuple(range(1, brokers + 1))
        self._data = None if data is None else Path(data)
        self._port = port
        self._given_configs = self._configs = cluster_configs(brokers, configs or {})
        self._racks = dict(racks or {})
        self._features = dict(features or {})
        self._scram_credentials = tuple(scram_credentials)
        self._security = security
        self._secured: DevelopmentSecurity | None = None
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._loop_thread: EventLoopThread | None = None
        self._controller_port: PortReservation | None = None
        self._controller: ControllerServer | None = None
        self._reservations: dict[int, list[PortReservation]] = {}
        self._brokers: dict[int, Broker] = {}

    @property
    def bootstrap_servers(self) -> str:
        """Return `127.0.0.1:PORT[,...]` with the addresses of all brokers.

        The value is constant until `close`, even while brokers are stopped.
        """
        self._require_started()
        return ",".join(self.address(broker_id) for broker_id in self._reservations)

    def address(self, broker_id: int, listener: int = 0) -> str:
        """Return the address of a broker in the form `127.0.0.1:PORT`.

        If the config `listeners` is set, `listener` is the index of a listener in this config.
        """
        self._require_known(broker_id)
        return f"{_HOST}:{self._reservations[broker_id][listener].port}"

    def client_settings(
        self, *, user: str = CLIENT, mechanism: str | None = None
    ) -> ClientSettings:
        """Return the settings that a client needs to connect.

        The methods of `ClientSettings` return the settings in the format of each client library.
        `user` is `client` or `admin`. `mechanism` is a SASL mechanism of the cluster's `security`.
        The default is the first mechanism. If the cluster was created without `security`, clients
        connect to a PLAINTEXT listener. Raises: ClusterError if the user or the mechanism does not
        exist.
        """
        if self._secured is None:
            return ClientSettings(bootstrap_servers=self.bootstrap_servers)
        try:
            return self._secured.client_settings(
                self.bootstrap_servers, user=user, mechanism=mechanism
            )
        except ValueError as error:
            raise ClusterError(str(error)) from error

    def data_directory(self, broker_id: int) -> Path:
        """Return the data directory of a broker."""
        self._require_known(broker_id)
        return broker_directory(self._root(), broker_id)

    def start(self) -> Self:
        """Start the controller and all brokers, and wait until they accept requests from clients.

        Raises: ClusterError if the cluster has already been started, or BrokerStartError if a node
        cannot start, for example because of an invalid config or because a port or directory is in
        use.
        """
        if self._loop_thread is not None:
            raise ClusterError("The cluster has already been started. Close it first.")
        try:
            if self._data is None:
                self._temporary = tempfile.TemporaryDirectory(prefix="broker_ref-")
            if self._security is not None:
                self._secure(self._security)
            for broker_id in self.broker_ids:
                is_first = broker_id == self.broker_ids[0]
                first_port = self._port if is_first else 0
                self._reservations[broker_id] = []
                for port in _listener_ports(self._configs, broker_id, default=first_port):
                    self._reservations[broker_id].append(_reserve(port))
            self._controller_port = _reserve(0)
            self._loop_thread = EventLoopThread(
                "broker_ref.Cluster", call_timeout_seconds=_CALL_TIMEOUT_SECONDS
            )
            self.start_controller()
            settings = [self._settings(each) for each in self.broker_ids]
            started = self._call(start_all(settings, faults=self.faults))
            self._brokers = {broker.node_id: broker for broker in started}
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Stop the cluster and remove temporary files. Do nothing if it is already closed."""
        try:
            if self._loop_thread is not None:
                brokers, self._brokers = list(self._brokers.values()), {}
                controller, self._controller = self._controller, None
                self._resume_all()
                self._call(stop_all(brokers, controller, controlled=self._data is not None))
        finally:
            if self._loop_thread is not None:
                self._loop_thread.close()
                self._loop_thread = None
            for reservation in itertools.chain.from_iterable(self._reservations.values()):
                reservation.close()
            self._reservations.clear()
            if self._controller_port is not None:
                self._controller_port.close()
                self._controller_port = None
            if self._temporary is not None:
                self._temporary.cleanup()
                self._temporary = None

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        configs: Mapping[str, str] | None = None,
        *,
        replication_factor: int = -1,
    ) -> None:
        """Create a topic and wait until it has leaders. Raises: CreateTopicError, ClusterError.

        `configs` are topic configs, such as `{"retention.ms": "60000"}`. If `replication_factor` is
        -1, the broker uses `default.replication.factor`.
        """
        self._require_started()
        serving = [broker for each, broker in self._brokers.items() if not self._is_paused(each)]
        if not serving:
            raise ClusterError(
                f"Cannot create topic '{name}': no broker is running. Start a broker first."
            )
        admin.create_topic(
            serving[0].inter_broker_address,
            name,
            partitions=partitions,
            replication_factor=replication_factor,
            configs=configs,
            credentials=serving[0].credentials(),
        )

    def stop_broker(self, broker_id: int) -> None:
        """Stop a broker cleanly.

        The broker moves its partition leadership to other brokers and flushes its logs. A paused
        broker is resumed first.
        """
        broker = self._take(broker_id)
        self.faults.resume(broker_id)
        self._call(broker.stop())

    def kill_broker(self, broker_id: int) -> None:
        """Stop a broker as SIGKILL would: nothing is flushed, and other nodes are not notified."""
        broker = self._take(broker_id)

        async def kill() -> None:
            broker.kill()

        self._call(kill())
        self.faults.resume(broker_id)

    def pause_broker(self, broker_id: int) -> None:
        """Pause a broker as SIGSTOP would: its connections stay open, but it does not respond."""
        self._require_known(broker_id)
        if not self._is_running(broker_id):
            raise ClusterError(f"Broker {broker_id} is not running.")
        self.faults.pause(broker_id)

    def resume_broker(self, broker_id: int) -> None:
        """Resume a broker as SIGCONT would.

        The broker first handles everything that arrived during the pause.
        """
        self._require_known(broker_id)
        self.faults.resume(broker_id)

    def start_broker(self, broker_id: int) -> None:
        """Start a stopped broker with the same port and directory.

        Returns once the broker is ready to serve clients.
        """
        self._require_known(broker_id)
        if self._is_running(broker_id):
            raise ClusterError(f"Broker {broker_id} is already running.")
        self._brokers[broker_id] = self._call(
            Broker.start(self._settings(broker_id), faults=self.faults)
        )

    def stop_controller(self) -> None:
        """Stop the controller cleanly.

        Leaders continue to serve clients, but the metadata of the cluster cannot change.
        """
        if self._controller is None:
            raise ClusterError("The controller is not running.")
        controller, self._controller = self._controller, None
        self._call(controller.stop())

    def kill_controller(self) -> None:
        """Stop the controller as SIGKILL would."""
        if self._controller is None:
            raise ClusterError("The controller is not running.")
        controller, self._controller = self._controller, None

        async def kill() -> None:
            controller.kill()

        self._call(kill())

    def start_controller(self) -> None:
        """Start a stopped controller with the same port and directory."""
        self._require_started()
        if self._controller is not None:
            raise ClusterError("The controller is already running.")
        assert self._controller_port is not None
        settings = ControllerSettings(
            data=controller_directory(self._root()),
            host=_HOST,
            port=self._controller_port.port,
            configs=self._configs,
            features=self._features,
            scram_credentials=[*self._scram_credentials, *self._development_users()],
        )
        self._controller = self._call(ControllerServer.start(settings, faults=self.faults))

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _secure(self, security: Security) -> None:
        root = self._root()
        self._secured = DevelopmentSecurity(
            root, security, is_new=not controller_directory(root).exists()
        )
        self._configs = self._secured.broker_configs(
            self._given_configs, host=_HOST, port=self._port
        )

    def _development_users(self) -> Sequence[UserScramCredentialRecord]:
        return () if self._secured is None else self._secured.scram_credentials

    def _settings(self, broker_id: int) -> BrokerSettings:
        assert self._controller_port is not None
        return BrokerSettings(
            node_id=broker_id,
            data=broker_directory(self._root(), broker_id),
            controller=(_HOST, self._controller_port.port),
            host=_HOST,
            port=self._reservations[broker_id][0].port,
            rack=self._racks.get(broker_id),
            configs=listener_configs(
                self._configs, broker_id, [each.port for each in self._reservations[broker_id]]
            ),
        )

    def _take(self, broker_id: int) -> Broker:
        """Remove a broker from the running brokers and return it."""
        self._require_known(broker_id)
        if not self._is_running(broker_id):
            raise ClusterError(f"Broker {broker_id} is not running.")
        return self._brokers.pop(broker_id)

    def _is_paused(self, broker_id: int) -> bool:
        return self.faults.is_paused(broker_id)

    def _resume_all(self) -> None:
        for node_id in (CONTROLLER_ID, *self.broker_ids):
            self.faults.resume(node_id)

    def _is_running(self, broker_id: int) -> bool:
        broker = self._brokers.get(broker_id)
        return broker is not None and not broker.ended.done()

    def _root(self) -> Path:
        if self._data is not None:
            return self._data
        assert self._temporary is not None
        return Path(self._temporary.name)

    def _require_started(self) -> None:
        if self._loop_thread is None:
            raise ClusterError(
                "The cluster is not running. Use `with broker_ref.Cluster() as cluster:`, or call "
                "start()."
            )

    def _require_known(self, broker_id: int) -> None:
        self._require_started()
        if broker_id not in self._reservations:
            known = ", ".join(str(known_id) for known_id in self._reservations)
            raise ClusterError(f"Broker {broker_id} does not exist. The broker ids are {known}.")

    def _call(self, coroutine: Coroutine[Any, Any, _Result]) -> _Result:
        assert self._loop_thread is not None
        return self._loop_thread.call(coroutine)


def cluster_configs(brokers: int, configs: Mapping[str, str]) -> dict[str, str]:
    """Return `configs` with default replication settings for internal topics.

    The defaults depend on the number of brokers.
    """
    factor = min(brokers, INTERNAL_REPLICATION_FACTOR_MAX)
    return {
        "offsets.topic.replication.factor": str(factor),
        "transaction.state.log.replication.factor": str(factor),
        "transaction.state.log.min.isr": str(min(factor, INTERNAL_MIN_ISR_MAX)),
        **configs,
    }


def listener_configs(
    configs: Mapping[str, str], broker_id: int, ports: Sequence[int] | None = None
) -> dict[str, str]:
    """Return the configs of one broker of a cluster.

    `listeners` in `configs` contains the ports of the first broker. The other brokers use the ports
    that follow. If `ports` is not None, the listeners of this broker use `ports` instead. Raises:
    BrokerStartError.
    """
    changed = dict(configs)
    try:
        for name in (LISTENERS, ADVERTISED):
            text = configs.get(name)
            if text and ports is not None and name == LISTENERS:
                changed[name] = with_ports(text, ports)
            elif text:
                shifted = [port and port + broker_id - 1 for port in ports_of(text)]
                changed[name] = with_ports(text, shifted)
    except InvalidBrokerConfigError as error:
        raise BrokerStartError(str(error)) from error
    return changed


def _listener_ports(configs: Mapping[str, str], broker_id: int, *, default: int) -> Sequence[int]:
    text = listener_configs(configs, broker_id).get(LISTENERS)
    return ports_of(text) if text else [default]


def broker_directory(root: Path, broker_id: int) -> Path:
    """Return the data directory of a broker in a cluster."""
    return root / f"broker-{broker_id}"


def controller_directory(root: Path) -> Path:
    """Return the data directory of a cluster's controller."""
    return root / "controller"


def _reserve(port: int) -> PortReservation:
    try:
        return PortReservation(_HOST, port)
    except (OSError, OverflowError) as error:
        raise BrokerStartError(f"Cannot listen on {_HOST}:{port}: {error}") from error


async def start_all(
    settings: Sequence[BrokerSettings], *, faults: Faults | None = None
) -> list[Broker]:
    """Start brokers concurrently. If one broker fails, kill the others and raise the error."""
    started: list[Broker] = []

    async def start(each: BrokerSettings) -> None:
        started.append(await Broker.start(each, faults=faults))

    try:
        async with asyncio.TaskGroup() as group:
            for each in settings:
                group.create_task(start(each))
    except BaseException as error:
        for broker in started:
            broker.kill()
        if isinstance(error, ExceptionGroup):
            raise error.exceptions[0] from None
        raise
    return sorted(started, key=lambda broker: broker.node_id)


async def stop_all(
    brokers: Sequence[Broker],
    controller: ControllerServer | None = None,
    *,
    controlled: bool = True,
) -> None:
    """Stop the brokers concurrently, and then the controller. Raises: the first error."""
    running = [broker for broker in brokers if not broker.ended.done()]
    results = await asyncio.gather(
        *(broker.stop(controlled=controlled) for broker in running), return_exceptions=True
    )
    if controller is not None and not controller.ended.done():
        await controller.stop()
    for result in results:
        if isinstance(result, BaseException):
            raise result
