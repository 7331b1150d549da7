"""A cluster of brokers inside this process, for Python tests.

Purpose: `with broker_ref.Cluster(brokers=3) as cluster:` gives any Kafka client something to
connect to. The controller and the brokers share one event loop in one daemon thread; between them
is the network, as between processes. Invariant: after `close`, or a failed start, no thread,
socket, file or temporary directory of the cluster is left; a node keeps its port from the first
start to `close`. Must not know: the wire protocol.
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
    """The cluster cannot do what was asked in the state it is in; says what to do."""


class Cluster:
    """`brokers` brokers on 127.0.0.1, numbered from 1, and a controller.

    `data` is a directory to keep them in (None: a temporary one, removed on `close`), `port` the
    port of the first (0: a free one), `configs` Kafka's broker configs, such as
    `{"auto.create.topics.enable": "false"}`, `racks` the
    rack of each broker that has one, `features` the versions of Kafka's features that a new cluster
    finalizes, such as `{"transaction.version": 1}` (a `data` directory that is in use keeps its
    own). `faults` is what goes wrong in it, on purpose.
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
            raise ClusterError(f"a cluster has at least one broker, and {brokers} were asked for")
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
        """`127.0.0.1:PORT[,...]`, the same from start to `close` whether brokers run or not."""
        self._require_started()
        return ",".join(self.address(broker_id) for broker_id in self._reservations)

    def address(self, broker_id: int) -> str:
        """`127.0.0.1:PORT` of one broker."""
        self._require_known(broker_id)
        return f"{_HOST}:{self._reservations[broker_id].port}"

    def data_directory(self, broker_id: int) -> Path:
        """Where a broker keeps its logs."""
        self._require_known(broker_id)
        return broker_directory(self._root(), broker_id)

    def start(self) -> Self:
        """Start every broker and return when all serve.

        Raises `ClusterError` where it is started already, `BrokerStartError` where a broker
        cannot start: a config that is unknown or invalid, a port or a directory in use.
        """
        if self._loop is not None:
            raise ClusterError("this cluster is started already; close it first")
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
        """Stop the brokers and remove what is temporary; nothing happens the second time."""
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
        """Create a topic, as an admin client would. Raises `broker_ref.io.admin.CreateTopicError`.

        `configs` are topic configs, such as `{"retention.ms": "60000"}`; a `replication_factor` of
        -1 is the brokers' `default.replication.factor`. Returns when the partitions have leaders.
        """
        self._require_started()
        serving = [broker for each, broker in self._brokers.items() if not self._is_paused(each)]
        if not serving:
            raise ClusterError(f"cannot create topic '{name}': no broker runs; start one first")
        admin.create_topic(
            serving[0].address,
            name,
            partitions=partitions,
            replication_factor=replication_factor,
            configs=configs,
        )

    def stop_broker(self, broker_id: int) -> None:
        """Stop it in good order: leaderships move, connections are closed, its log is flushed.

        One that is paused goes on for that.
        """
        broker = self._take(broker_id)
        self.faults.resume(broker_id)
        self._call(broker.stop())

    def kill_broker(self, broker_id: int) -> None:
        """Stop it as kill -9 does: nothing is flushed, nobody is told."""
        broker = self._take(broker_id)

        async def kill() -> None:
            broker.kill()

        self._call(kill())
        self.faults.resume(broker_id)

    def pause_broker(self, broker_id: int) -> None:
        """Hold it where it is, as SIGSTOP does: connections stay open and nothing answers."""
        self._require_known(broker_id)
        if not self._is_running(broker_id):
            raise ClusterError(f"broker {broker_id} is not running")
        self.faults.pause(broker_id)

    def resume_broker(self, broker_id: int) -> None:
        """Let it go on, as SIGCONT does: first with what has come to it meanwhile."""
        self._require_known(broker_id)
        self.faults.resume(broker_id)

    def start_broker(self, broker_id: int) -> None:
        """Start it again on the same port and directory; returns when it serves."""
        self._require_known(broker_id)
        if self._is_running(broker_id):
            raise ClusterError(f"broker {broker_id} is running already")
        self._brokers[broker_id] = self._call(
            Broker.start(self._settings(broker_id), faults=self.faults)
        )

    def stop_controller(self) -> None:
        """Stop the controller: what is led goes on being served, but nothing can change."""
        if self._controller is None:
            raise ClusterError("the controller is not running")
        controller, self._controller = self._controller, None
        self._call(controller.stop())

    def kill_controller(self) -> None:
        """Stop the controller as kill -9 does."""
        if self._controller is None:
            raise ClusterError("the controller is not running")
        controller, self._controller = self._controller, None

        async def kill() -> None:
            controller.kill()

        self._call(kill())

    def start_controller(self) -> None:
        """Start the controller again on the same port and directory."""
        self._require_started()
        if self._controller is not None:
            raise ClusterError("the controller is running already")
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
        """A running broker, which is not counted as one any more."""
        self._require_known(broker_id)
        if not self._is_running(broker_id):
            raise ClusterError(f"broker {broker_id} is not running")
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
                "this cluster is not running: use it as `with broker_ref.Cluster() as cluster:`, "
                "or call start()"
            )

    def _require_known(self, broker_id: int) -> None:
        self._require_started()
        if broker_id not in self._reservations:
            known = ", ".join(str(known_id) for known_id in self._reservations)
            raise ClusterError(f"there is no broker {broker_id} in this cluster; it has {known}")

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
    """Configs of a cluster of so many brokers: internal topics on as many as Kafka would use."""
    factor = min(brokers, INTERNAL_REPLICATION_FACTOR_MAX)
    return {
        "offsets.topic.replication.factor": str(factor),
        "transaction.state.log.replication.factor": str(factor),
        "transaction.state.log.min.isr": str(min(factor, INTERNAL_MIN_ISR_MAX)),
        **configs,
    }


def broker_directory(root: Path, broker_id: int) -> Path:
    """Where a broker of a cluster keeps its data; the same from Python and the command line."""
    return root / f"broker-{broker_id}"


def controller_directory(root: Path) -> Path:
    """Where the controller of a cluster keeps its journal."""
    return root / "controller"


def _reserve(port: int) -> PortReservation:
    try:
        return PortReservation(_HOST, port)
    except (OSError, OverflowError) as error:
        raise BrokerStartError(f"cannot listen on {_HOST}:{port}: {error}") from error


async def start_all(
    settings: Sequence[BrokerSettings], *, faults: Faults | None = None
) -> list[Broker]:
    """Start brokers together; where one cannot start, end the others and raise its error."""
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
    """Stop what runs, brokers together and the controller last; then raise the first error."""
    running = [broker for broker in brokers if not broker.ended.done()]
    results = await asyncio.gather(
        *(broker.stop(controlled=controlled) for broker in running), return_exceptions=True
    )
    if controller is not None and not controller.ended.done():
        await controller.stop()
    for result in results:
        if isinstance(result, BaseException):
            raise result
