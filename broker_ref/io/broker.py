"""One broker put together: configuration, storage on disk, node, clock and server.

Purpose: start and stop those in the right order, and turn what can go wrong at the start into one
error with one line. Invariant: a failed start leaves nothing open, and `stop` closes everything
even where a part fails. Must not know: whether it runs in a process of its own.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from broker_ref.config import BrokerConfig, InvalidBrokerConfigError
from broker_ref.io.clock import SystemClock
from broker_ref.io.disk import DiskStorage
from broker_ref.io.server import ListenError, Server, ServerLimits, listen
from broker_ref.log.errors import LogError
from broker_ref.log.storage import StorageError
from broker_ref.node import Node
from broker_ref.protocol.errors import ApiError

logger = logging.getLogger(__name__)

_ANY_ADDRESS = ("", "0.0.0.0", "::")  # noqa: S104 (these are recognised, not bound)


class BrokerStartError(Exception):
    """The broker cannot start: one line that says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """Where one broker runs. `configs` are Kafka's broker configs; port 0 is a free one.

    `advertised_host` None: clients are told the host it listens on.
    """

    node_id: int = 1
    data: Path
    host: str = "127.0.0.1"
    port: int = 0
    advertised_host: str | None = None
    configs: Mapping[str, str] = field(default_factory=dict)

    def parsed_configs(self) -> BrokerConfig:
        """Check everything that can be checked before anything starts: `BrokerStartError`."""
        if self.advertised_host is None and self.host in _ANY_ADDRESS:
            raise BrokerStartError(
                f"host '{self.host}' listens on every interface, which is no address that clients "
                "can connect to: give the advertised host too (--advertised-host NAME)"
            )
        try:
            return BrokerConfig.from_mapping({"node.id": str(self.node_id), **self.configs})
        except InvalidBrokerConfigError as error:
            raise BrokerStartError(str(error)) from error


def server_limits(config: BrokerConfig) -> ServerLimits:
    """The bounds that the broker's configuration sets on its clients."""
    return ServerLimits(
        request_bytes_max=config.socket_request_max_bytes,
        connection_idle_ms_max=config.connections_max_idle_ms,
    )


class Broker:
    """A running broker; made by `Broker.start`, within one event loop."""

    def __init__(
        self, *, storage: DiskStorage, node: Node, server: Server, clock: SystemClock, address: str
    ) -> None:
        self.address = address
        self._storage = storage
        self._node = node
        self._server = server
        self._clock = clock

    @classmethod
    async def start(cls, settings: BrokerSettings) -> Broker:
        """Recover the log, listen, serve. Raises `BrokerStartError`."""
        config = settings.parsed_configs()
        try:
            storage = DiskStorage(settings.data)
        except StorageError as error:
            raise BrokerStartError(str(error)) from error
        try:
            return await cls._start_on(storage, settings, config)
        except (ApiError, ListenError, LogError, StorageError) as error:
            storage.close()
            raise BrokerStartError(str(error)) from error
        except BaseException:
            storage.close()
            raise

    @classmethod
    async def _start_on(
        cls, storage: DiskStorage, settings: BrokerSettings, config: BrokerConfig
    ) -> Broker:
        # Bound before the log is recovered: a port in use is found out at once.
        listener = listen(settings.host, settings.port)
        try:
            clock = SystemClock()
            node = Node(config, storage=storage, now_ms=clock.now_ms(), random_bytes=os.urandom)
            port: int = listener.getsockname()[1]
            host = settings.advertised_host or settings.host
            node.advertise(host, port)
            server = Server(node, now_ms=clock.now_ms, limits=server_limits(config))
        except BaseException:
            listener.close()
            raise
        await server.start(listener)
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        logger.info("broker %d serves %s from %s", settings.node_id, address, settings.data)
        return cls(storage=storage, node=node, server=server, clock=clock, address=address)

    async def stop(self) -> None:
        """Stop accepting, flush and close the log, close every connection, unlock the directory.

        Raises `LogError` or `StorageError` where a log could not be flushed; all is closed
        nevertheless.
        """
        try:
            await self._server.stop()
        finally:
            try:
                self._node.close(self._clock.now_ms())
            finally:
                self._storage.close()
        logger.info("broker at %s has stopped", self.address)


async def stop_all(brokers: list[Broker]) -> None:
    """Stop them together; the first error is raised once all have stopped."""
    results = await asyncio.gather(*(broker.stop() for broker in brokers), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
