"""A cluster of brokers inside this process, for Python tests.

Purpose: `with broker_ref.Cluster() as cluster:` gives any Kafka client something to connect to.
The brokers share one event loop in one daemon thread. Invariant: after `close`, or a failed
start, no thread, socket, file or temporary directory of the cluster is left; a broker keeps its
port from the first start to `close`. Must not know: the wire protocol.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import Coroutine, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from broker_ref.io import admin
from broker_ref.io.broker import Broker, BrokerSettings, BrokerStartError, stop_all
from broker_ref.io.port import PortReservation

_Result = TypeVar("_Result")

_HOST = "127.0.0.1"
_CALL_TIMEOUT_SECONDS = 60.0


class ClusterError(Exception):
    """The cluster cannot do what was asked in the state it is in; says what to do."""


class Cluster:
    """`brokers` brokers on 127.0.0.1, numbered from 1.

    `data` is a directory to keep them in (None: a temporary one, removed on `close`), `port` the
    port of the first (0: a free one), `configs` Kafka's broker configs, such as
    `{"auto.create.topics.enable": "false"}`.
    """

    def __init__(
        self,
        brokers: int = 1,
        *,
        data: str | Path | None = None,
        port: int = 0,
        configs: Mapping[str, str] | None = None,
    ) -> None:
        if brokers != 1:
            raise ClusterError(f"this version runs one broker, and {brokers} were asked for")
        self._data = None if data is None else Path(data)
        self._port = port
        self._configs = dict(configs or {})
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._reservations: dict[int, PortReservation] = {}
        self._brokers: dict[int, Broker] = {}

    @property
    def bootstrap_servers(self) -> str:
        """`127.0.0.1:PORT[,...]`, the same from start to `close` whether brokers run or not."""
        self._require_started()
        return ",".join(f"{_HOST}:{held.port}" for held in self._reservations.values())

    def start(self) -> Self:
        """Start every broker and return when all serve.

        Raises `ClusterError` where it is started already, `BrokerStartError` where a broker
        cannot start: a config that is unknown or invalid, a port or a directory in use.
        """
        if self._loop is not None:
            raise ClusterError("this cluster is started already; close it first")
        try:
            self._reservations[1] = _reserve(self._port)
            if self._data is None:
                self._temporary = tempfile.TemporaryDirectory(prefix="broker_ref-")
            self._start_loop()
            for broker_id in self._reservations:
                self.start_broker(broker_id)
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Stop the brokers and remove what is temporary; nothing happens the second time."""
        try:
            if self._loop is not None:
                brokers = list(self._brokers.values())
                self._brokers.clear()
                self._call(stop_all(brokers))
        finally:
            self._stop_loop()
            for reservation in self._reservations.values():
                reservation.close()
            self._reservations.clear()
            if self._temporary is not None:
                self._temporary.cleanup()
                self._temporary = None

    def create_topic(
        self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic, as an admin client would. Raises `broker_ref.io.admin.CreateTopicError`.

        `configs` are topic configs, such as `{"retention.ms": "60000"}`.
        """
        self._require_started()
        if not self._brokers:
            raise ClusterError(f"cannot create topic '{name}': no broker runs; start one first")
        address = next(iter(self._brokers.values())).address
        admin.create_topic(address, name, partitions=partitions, configs=configs)

    def stop_broker(self, broker_id: int) -> None:
        """Stop it in good order: connections are closed, its log is flushed."""
        self._require_known(broker_id)
        if broker_id not in self._brokers:
            raise ClusterError(f"broker {broker_id} is not running")
        self._call(self._brokers.pop(broker_id).stop())

    def start_broker(self, broker_id: int) -> None:
        """Start it again on the same port and directory; returns when it serves."""
        self._require_known(broker_id)
        if broker_id in self._brokers:
            raise ClusterError(f"broker {broker_id} is running already")
        settings = BrokerSettings(
            node_id=broker_id,
            data=broker_directory(self._root(), broker_id),
            host=_HOST,
            port=self._reservations[broker_id].port,
            configs=self._configs,
        )
        self._brokers[broker_id] = self._call(Broker.start(settings))

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

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
        return future.result(_CALL_TIMEOUT_SECONDS)


def broker_directory(root: Path, broker_id: int) -> Path:
    """Where a broker of a cluster keeps its data; the same from Python and the command line."""
    return root / f"broker-{broker_id}"


def _reserve(port: int) -> PortReservation:
    try:
        return PortReservation(_HOST, port)
    except (OSError, OverflowError) as error:
        raise BrokerStartError(f"cannot listen on {_HOST}:{port}: {error}") from error
