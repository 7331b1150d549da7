"""A cluster of brokers inside this process, for Python tests.

Purpose: `with broker_ref.Cluster(brokers=3) as cluster:` provides a cluster for any Kafka client.
The controller and the brokers share one event loop in a daemon thread and communicate over the
network, as processes do. Invariant: after `close`, or a failed start, no thread, socket, file or
temporary directory of the cluster remains; a node keeps its port from the first start to `close`.
Must not know: the wire protocol.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from broker_ref.controller.client import CONTROLLER_ID
from broker_ref.faults import Faults
from broker_ref.io import admin
from broker_ref.io.broker import Broker
from broker_ref.io.controller import ControllerServer
from broker_ref.io.port import PortReservation
from broker_ref.io.settings import BrokerSettings, BrokerStartError, ControllerSettings

_Result = TypeVar("_Result")

_HOST: Final = "127.0.0.1"
_CALL_TIMEOUT_SECONDS: Final = 90.0
INTERNAL_REPLICATION_FACTOR_MAX: Final = 3
INTERNAL_MIN_ISR_MAX: Final = 2


class ClusterError(Exception):
    """The operation is not possible in the cluster's current state."""


class Cluster:
    """A controller and brokers on 127.0.0.1, numbered from 1.

    `brokers` is the number of brokers, `data` their data directory (None: a temporary one, removed
    by `close`), `port` the port of the first broker (0: a free port). `configs` are Kafka's broker
    configs, such as `{"auto.create.topics.enable": "false"}`, `racks` the racks by broker id,
    `features` the finalized feature versions of a new cluster, such as `{"transaction.version": 1}`
    (an existing data directory keeps its versions). `faults` injects faults.
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
    ) -> None:
        if brokers < 1:
            raise ClusterError(f"A cluster needs at least one broker, not {brokers}.")
        self.faults: Final = Faults()
        self.broker_ids: Final = tuple(range(1, brokers + 1))
        self._data = None if data is None else Path(data)
        self._port = port
        self._configs = cluster_configs(brokers, configs or {})
        self._racks = dict(racks or {})
        self._features = dict(features or {})
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._controller_port: PortReservation | None = None
        self._controller: ControllerServer | None = None
        self._reservations: dict[int, PortReservation] = {}
        self._brokers: dict[int, Broker] = {}

    @property
    def bootstrap_servers(self) -> str:
        """`127.0.0.1:PORT[,...]`; constant from start to `close`, whether brokers run or not."""
        self._require_started()
        return ",".join(self.address(broker_id) for broker_id in self._reservations)

    def address(self, broker_id: int) -> str:
        """Return `127.0.0.1:PORT` of a broker."""
        self._require_known(broker_id)
        return f"{_HOST}:{self._reservations[broker_id].port}"

    def data_directory(self, broker_id: int) -> Path:
        """Return the data directory of a broker."""
        self._require_known(broker_id)
        return broker_directory(self._root(), broker_id)

    def start(self) -> Self:
        """Start all brokers and return when they serve clients.

        Raises: ClusterError if the cluster is already started, BrokerStartError if a broker cannot
        start: an invalid config, or a port or directory in use.
        """
        if self._loop is not None:
            raise ClusterError("The cluster is already started; close it first.")
        try:
            for broker_id in self.broker_ids:
                is_first = broker_id == self.broker_ids[0]
                self._reservations[broker_id] = _reserve(self._port if is_first else 0)
            self._controller_port = _reserve(0)
            if self._data is None:
                self._temporary = tempfile.TemporaryDirectory(prefix="broker_ref-")
            self._start_loop()
            self.start_controller()
            settings = [self._settings(each) for each in self.broker_ids]
            started = self._call(start_all(settings, faults=self.faults))
            self._brokers = {broker.node_id: broker for broker in started}
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Stop the brokers and remove temporary files; has no effect if already closed."""
        try:
            if self._loop is not None:
                brokers, self._brokers = list(self._brokers.values()), {}
                controller, self._controller = self._controller, None
                self._resume_all()
                self._call(stop_all(brokers, controller, controlled=self._data is not None))
        finally:
            self._stop_loop()
            for reservation in self._reservations.values():
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
        """Create a topic and wait for its leaders. Raises: CreateTopicError.

        `configs` are topic configs, such as `{"retention.ms": "60000"}`. A `replication_factor` of
        -1 uses `default.replication.factor`.
        """
        self._require_started()
        serving = [broker for each, broker in self._brokers.items() if not self._is_paused(each)]
        if not serving:
            raise ClusterError(
                f"Cannot create topic '{name}': no broker is running; start one first."
            )
        admin.create_topic(
            serving[0].address,
            name,
            partitions=partitions,
            replication_factor=replication_factor,
            configs=configs,
        )

    def stop_broker(self, broker_id: int) -> None:
        """Stop a broker cleanly: it moves its leaderships and flushes its logs.

        A paused broker is resumed first.
        """
        broker = self._take(broker_id)
        self.faults.resume(broker_id)
        self._call(broker.stop())

    def kill_broker(self, broker_id: int) -> None:
        """Stop a broker as kill -9 does: nothing is flushed and nobody is notified."""
        broker = self._take(broker_id)

        async def kill() -> None:
            broker.kill()

        self._call(kill())
        self.faults.resume(broker_id)

    def pause_broker(self, broker_id: int) -> None:
        """Pause a broker as SIGSTOP does: its connections stay open and it does not respond."""
        self._require_known(broker_id)
        if not self._is_running(broker_id):
            raise ClusterError(f"Broker {broker_id} is not running.")
        self.faults.pause(broker_id)

    def resume_broker(self, broker_id: int) -> None:
        """Resume a broker as SIGCONT does; it first handles what arrived during the pause."""
        self._require_known(broker_id)
        self.faults.resume(broker_id)

    def start_broker(self, broker_id: int) -> None:
        """Start a broker again on the same port and directory; returns when it serves clients."""
        self._require_known(broker_id)
        if self._is_running(broker_id):
            raise ClusterError(f"Broker {broker_id} is already running.")
        self._brokers[broker_id] = self._call(
            Broker.start(self._settings(broker_id), faults=self.faults)
        )

    def stop_controller(self) -> None:
        """Stop the controller: current leaders continue to serve, but nothing can change."""
        if self._controller is None:
            raise ClusterError("The controller is not running.")
        controller, self._controller = self._controller, None
        self._call(controller.stop())

    def kill_controller(self) -> None:
        """Stop the controller as kill -9 does."""
        if self._controller is None:
            raise ClusterError("The controller is not running.")
        controller, self._controller = self._controller, None

        async def kill() -> None:
            controller.kill()

        self._call(kill())

    def start_controller(self) -> None:
        """Start the controller again on the same port and directory."""
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

    def _settings(self, broker_id: int) -> BrokerSettings:
        assert self._controller_port is not None
        return BrokerSettings(
            node_id=broker_id,
            data=broker_directory(self._root(), broker_id),
            controller=(_HOST, self._controller_port.port),
            host=_HOST,
            port=self._reservations[broker_id].port,
            rack=self._racks.get(broker_id),
            configs=self._configs,
        )

    def _take(self, broker_id: int) -> Broker:
        """Remove a running broker from the running ones and return it."""
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
        if self._loop is None:
            raise ClusterError(
                "The cluster is not running: use `with broker_ref.Cluster() as cluster:`, or call "
                "start()."
            )

    def _require_known(self, broker_id: int) -> None:
        self._require_started()
        if broker_id not in self._reservations:
            known = ", ".join(str(known_id) for known_id in self._reservations)
            raise ClusterError(f"There is no broker {broker_id} in this cluster; it has {known}.")

    def _start_loop(self) -> None:
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, name="broker_ref.Cluster", daemon=True)
        self._loop, self._thread = loop, thread
        thread.start()

    def _stop_loop(self) -> None:
        loop, thread = self._loop, self._thread
        self._loop = self._thread = None
        if loop is None or thread is None:
            return
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    def _call(self, coroutine: Coroutine[Any, Any, _Result]) -> _Result:
        assert self._loop is not None
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result(_CALL_TIMEOUT_SECONDS)
        except BaseException:
            future.cancel()
            raise


def cluster_configs(brokers: int, configs: Mapping[str, str]) -> dict[str, str]:
    """Add the replication factors of internal topics that fit this number of brokers."""
    factor = min(brokers, INTERNAL_REPLICATION_FACTOR_MAX)
    return {
        "offsets.topic.replication.factor": str(factor),
        "transaction.state.log.replication.factor": str(factor),
        "transaction.state.log.min.isr": str(min(factor, INTERNAL_MIN_ISR_MAX)),
        **configs,
    }


def broker_directory(root: Path, broker_id: int) -> Path:
    """Return the data directory of a broker in a cluster."""
    return root / f"broker-{broker_id}"


def controller_directory(root: Path) -> Path:
    """Return the directory of a cluster's controller."""
    return root / "controller"


def _reserve(port: int) -> PortReservation:
    try:
        return PortReservation(_HOST, port)
    except (OSError, OverflowError) as error:
        raise BrokerStartError(f"Cannot listen on {_HOST}:{port}: {error}") from error


async def start_all(
    settings: Sequence[BrokerSettings], *, faults: Faults | None = None
) -> list[Broker]:
    """Start brokers concurrently; if one fails, kill the others and raise its error."""
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
    """Stop brokers concurrently and then the controller; raises the first error at the end."""
    running = [broker for broker in brokers if not broker.ended.done()]
    results = await asyncio.gather(
        *(broker.stop(controlled=controlled) for broker in running), return_exceptions=True
    )
    if controller is not None and not controller.ended.done():
        await controller.stop()
    for result in results:
        if isinstance(result, BaseException):
            raise result
