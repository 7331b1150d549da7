"""The controller put together: configuration, storage on disk, node, clock and server.

Purpose: as `broker`, for the controller. Invariant: a failed start leaves nothing open. Must not
know: whether it runs in a process of its own.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from broker_ref.faults import Faults
from broker_ref.io.broker import BrokerStartError, address_text, parse_configs, server_limits
from broker_ref.io.clock import SystemClock
from broker_ref.io.disk import DiskStorage
from broker_ref.io.server import ListenError, Server, listen
from broker_ref.log.errors import LogError
from broker_ref.log.storage import StorageError
from broker_ref.node.controller import ControllerNode
from broker_ref.protocol.errors import ApiError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """Where the controller runs. `configs` are Kafka's broker configs; port 0 is a free one."""

    data: Path
    host: str = "127.0.0.1"
    port: int = 0
    configs: Mapping[str, str] = field(default_factory=dict)


class ControllerServer:
    """A running controller; made by `ControllerServer.start`, within one event loop."""

    def __init__(
        self,
        *,
        storage: DiskStorage,
        node: ControllerNode,
        clock: SystemClock,
        host: str,
        port: int,
        settings: ControllerSettings,
        faults: Faults,
    ) -> None:
        self.host = host
        self.port = port
        self.server = Server(
            node,
            now_ms=clock.now_ms,
            limits=server_limits(parse_configs(settings.configs)),
            on_step=self._stepped,
        )
        loop = asyncio.get_running_loop()

        def faults_changed() -> None:
            loop.call_soon_threadsafe(self._faults_changed)

        self._stop_listening = faults.listen(faults_changed)
        self.ended: asyncio.Future[None] = loop.create_future()
        self._node = node
        self._storage = storage
        self._clock = clock

    @property
    def address(self) -> str:
        """`host:port`."""
        return address_text(self.host, self.port)

    @classmethod
    async def start(
        cls, settings: ControllerSettings, *, faults: Faults | None = None
    ) -> ControllerServer:
        """Read the journal, listen, serve. Raises `BrokerStartError`."""
        faults = faults or Faults()
        config = parse_configs(settings.configs)
        try:
            storage = DiskStorage(settings.data)
        except StorageError as error:
            raise BrokerStartError(str(error)) from error
        try:
            listener = listen(settings.host, settings.port)
            try:
                clock = SystemClock()
                node = ControllerNode(
                    config,
                    storage=storage,
                    now_ms=clock.now_ms(),
                    random_bytes=os.urandom,
                    faults=faults,
                )
                controller = cls(
                    storage=storage,
                    node=node,
                    clock=clock,
                    host=settings.host,
                    port=listener.getsockname()[1],
                    settings=settings,
                    faults=faults,
                )
                await controller.server.start(listener)
            except BaseException:
                listener.close()
                raise
        except (ApiError, ListenError, LogError, StorageError) as error:
            storage.close()
            raise BrokerStartError(str(error)) from error
        except BaseException:
            storage.close()
            raise
        logger.info("the controller serves %s from %s", controller.address, settings.data)
        return controller

    async def stop(self) -> None:
        """Stop accepting, close the journal, unlock the directory."""
        try:
            await self.server.stop()
        finally:
            try:
                self._node.close(self._clock.now_ms())
            finally:
                self._storage.close()
                self._end(None)

    def kill(self) -> None:
        """Stop as kill -9 does."""
        self.server.abort()
        self._storage.close()
        self._end(None)

    def _stepped(self) -> None:
        if self._node.failure is not None and not self.ended.done():
            logger.error("the controller stops: %s", self._node.failure)
            self.server.abort()
            self._storage.close()
            self._end(BrokerStartError(self._node.failure))

    def _faults_changed(self) -> None:
        if not self.ended.done():
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
