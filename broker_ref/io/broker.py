"""One broker put together: configuration, storage on disk, node, clock and server.

Purpose: start and stop those in the right order, and turn what can go wrong at the start into one
error with one line. Invariant: a failed start leaves nothing open, and `stop` closes everything
even where a part fails; a node that cannot go on is stopped at once. Must not know: whether it
runs in a process of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from broker_ref.config import BrokerConfig, InvalidBrokerConfigError
from broker_ref.faults import Faults
from broker_ref.io.clock import SystemClock
from broker_ref.io.disk import DiskStorage
from broker_ref.io.server import ListenError, Server, ServerLimits, listen
from broker_ref.log.errors import LogError
from broker_ref.log.log_dir import DiskSpace, LogDir
from broker_ref.log.storage import StorageError
from broker_ref.node.broker import BrokerNode
from broker_ref.node.registration import BrokerState
from broker_ref.protocol.errors import ApiError

logger = logging.getLogger(__name__)

REGISTRATION_TIMEOUT_SECONDS: Final = 60.0
"""Kafka's default of `initial.broker.registration.timeout.ms`."""

CONTROLLED_SHUTDOWN_TIMEOUT_SECONDS: Final = 10.0

_ANY_ADDRESS = ("", "0.0.0.0", "::")  # noqa: S104 (these are recognised, not bound)


class BrokerStartError(Exception):
    """The broker cannot start: one line that says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """Where one broker runs. `configs` are Kafka's broker configs; port 0 is a free one.

    `controller` is the controller's host and port. `advertised_host` and `advertised_port` None:
    clients are told the address it listens on.
    """

    node_id: int = 1
    data: Path
    controller: tuple[str, int]
    host: str = "127.0.0.1"
    port: int = 0
    advertised_host: str | None = None
    advertised_port: int | None = None
    rack: str | None = None
    configs: Mapping[str, str] = field(default_factory=dict)

    def parsed_configs(self) -> BrokerConfig:
        """Check everything that can be checked before anything starts: `BrokerStartError`."""
        check_host(self.host, self.advertised_host)
        return parse_configs({"node.id": str(self.node_id), **self.configs}, rack=self.rack)


def check_host(host: str, advertised_host: str | None) -> None:
    """Refuse to tell clients an address that none can connect to: `BrokerStartError`."""
    if advertised_host is None and host in _ANY_ADDRESS:
        raise BrokerStartError(
            f"host '{host}' listens on every interface, which is no address that clients "
            "can connect to: give the advertised host too (--advertised-host NAME)"
        )


def parse_configs(configs: Mapping[str, str], *, rack: str | None = None) -> BrokerConfig:
    """Broker configs by Kafka's names; `BrokerStartError` names one that is wrong."""
    try:
        fields = {} if rack is None else {"rack": rack}
        return BrokerConfig.from_mapping(configs, **fields)
    except InvalidBrokerConfigError as error:
        raise BrokerStartError(str(error)) from error


def server_limits(config: BrokerConfig) -> ServerLimits:
    """The bounds that the broker's configuration sets on its clients."""
    return ServerLimits(
        request_bytes_max=config.socket_request_max_bytes,
        connection_idle_ms_max=config.connections_max_idle_ms,
    )


def log_dir(path: Path) -> LogDir:
    """The directory as DescribeLogDirs tells of it."""

    def space() -> DiskSpace:
        try:
            usage = shutil.disk_usage(path)
        except OSError:
            return DiskSpace()
        return DiskSpace(total_bytes=usage.total, usable_bytes=usage.free)

    return LogDir(path=str(path.absolute()), space=space)


def address_text(host: str, port: int) -> str:
    """`host:port`, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Broker:
    """A running broker; made by `Broker.start`, within one event loop.

    `ended` is done when it has stopped, with a `BrokerStartError` where it had to.
    """

    def __init__(
        self,
        *,
        storage: DiskStorage,
        node: BrokerNode,
        clock: SystemClock,
        settings: BrokerSettings,
        address: str,
        faults: Faults,
    ) -> None:
        self.address = address
        self.node_id = settings.node_id
        self.node = node
        self.server = Server(
            node,
            now_ms=clock.now_ms,
            limits=server_limits(settings.parsed_configs()),
            on_step=self._stepped,
            is_cut=lambda channel: faults.link_is_cut(settings.node_id, channel.node_id),
            is_deaf=lambda channel: faults.link_is_cut(channel.node_id, settings.node_id),
        )
        loop = asyncio.get_running_loop()

        def faults_changed() -> None:
            loop.call_soon_threadsafe(self._faults_changed)

        self._stop_listening = faults.listen(faults_changed)
        self.ended: asyncio.Future[None] = loop.create_future()
        self._storage = storage
        self._clock = clock
        self._settings = settings
        self._state_reached = asyncio.Event()

    @classmethod
    async def start(cls, settings: BrokerSettings, *, faults: Faults | None = None) -> Broker:
        """Recover the log, join the cluster, listen, serve. Raises `BrokerStartError`."""
        config = settings.parsed_configs()
        try:
            storage = DiskStorage(settings.data)
        except StorageError as error:
            raise BrokerStartError(str(error)) from error
        try:
            return await cls._start_on(storage, settings, config, faults or Faults())
        except (ApiError, ListenError, LogError, StorageError) as error:
            storage.close()
            raise BrokerStartError(str(error)) from error
        except BaseException:
            storage.close()
            raise

    @classmethod
    async def _start_on(
        cls,
        storage: DiskStorage,
        settings: BrokerSettings,
        config: BrokerConfig,
        faults: Faults,
    ) -> Broker:
        # Bound before the log is recovered: a port in use is found out at once.
        listener = listen(settings.host, settings.port)
        try:
            clock = SystemClock()
            node = BrokerNode(
                config,
                storage=storage,
                controller=settings.controller,
                now_ms=clock.now_ms(),
                random_bytes=os.urandom,
                faults=faults,
                log_dir=log_dir(settings.data),
            )
            host = settings.advertised_host or settings.host
            port: int = settings.advertised_port or listener.getsockname()[1]
            broker = cls(
                storage=storage,
                node=node,
                clock=clock,
                settings=settings,
                address=address_text(host, port),
                faults=faults,
            )
            try:
                node.start(host, port)
                broker.server.poke()
                await broker._until_running()
                await broker.server.start(listener)
            except BaseException:
                broker.server.abort()
                broker._end(None)
                raise
        except BaseException:
            listener.close()
            raise
        logger.info("broker %d serves %s from %s", settings.node_id, broker.address, settings.data)
        return broker

    async def stop(self, *, controlled: bool = True) -> None:
        """Let leaderships move, stop accepting, flush and close the log, unlock the directory.

        Without `controlled` the others find out when its session ends. Raises `LogError` or
        `StorageError` where a log could not be flushed; all is closed nevertheless.
        """
        if controlled:
            self.node.begin_shutdown()
            self.server.poke()
            with contextlib.suppress(TimeoutError, BrokerStartError):
                await self._until(BrokerState.SHUTTING_DOWN, CONTROLLED_SHUTDOWN_TIMEOUT_SECONDS)
        try:
            await self.server.stop()
        finally:
            try:
                self.node.close(self._clock.now_ms())
            finally:
                self._storage.close()
                self._end(None)
        logger.info("broker %d at %s has stopped", self.node_id, self.address)

    def kill(self) -> None:
        """Stop as kill -9 does: nothing is flushed, nobody is told."""
        self.server.abort()
        self._storage.close()
        self._end(None)

    async def _until_running(self) -> None:
        try:
            await self._until(BrokerState.RUNNING, REGISTRATION_TIMEOUT_SECONDS)
        except TimeoutError:
            host, port = self._settings.controller
            raise BrokerStartError(
                f"broker {self.node_id} was not let into the cluster within "
                f"{REGISTRATION_TIMEOUT_SECONDS:.0f} s by the controller at "
                f"{address_text(host, port)}: is that running, and is it the right one?"
            ) from None

    async def _until(self, state: BrokerState, timeout_seconds: float) -> None:
        async with asyncio.timeout(timeout_seconds):
            while self.node.state is not state:
                if self.node.failure is not None:
                    raise BrokerStartError(self.node.failure)
                self._state_reached.clear()
                await self._state_reached.wait()

    def _stepped(self) -> None:
        self._state_reached.set()
        if self.node.failure is not None and self.node.state is BrokerState.RUNNING:
            logger.error("broker %d stops: %s", self.node_id, self.node.failure)
            self.server.abort()
            self._storage.close()
            self._end(BrokerStartError(self.node.failure))

    def _faults_changed(self) -> None:
        if not self.ended.done():
            self.server.peers.cut()
            self.server.poke()

    def _end(self, error: Exception | None) -> None:
        self._stop_listening()
        if self.ended.done():
            return
        if error is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(error)
            self.ended.exception()  # Whoever wants to know of it asks; nobody has to.
