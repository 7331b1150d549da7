"""A running broker: configuration, storage on disk, node, clock and server.

Purpose: start and stop these in the right order, and report any startup error as one line.
Invariant: a failed start leaves nothing open, and `stop` closes everything even if a part fails; a
node that cannot continue is stopped immediately. Must not know: whether it runs in a separate
process.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import socket
from pathlib import Path
from typing import Final

from broker_ref.config import BrokerConfig
from broker_ref.faults import Faults
from broker_ref.io.clock import SystemClock
from broker_ref.io.disk import DiskStorage
from broker_ref.io.running import RunningNode, starting
from broker_ref.io.settings import (
    BrokerSettings,
    BrokerStartError,
    address_text,
    server_limits,
)
from broker_ref.log.log_dir import DiskSpace, LogDir
from broker_ref.node.broker import BrokerNode
from broker_ref.node.registration import BrokerState

logger = logging.getLogger(__name__)

REGISTRATION_TIMEOUT_SECONDS: Final = 60.0
"""Kafka's default of `initial.broker.registration.timeout.ms`."""

CONTROLLED_SHUTDOWN_TIMEOUT_SECONDS: Final = 10.0


def log_dir(path: Path) -> LogDir:
    """Return the directory for DescribeLogDirs."""

    def space() -> DiskSpace:
        try:
            usage = shutil.disk_usage(path)
        except OSError:
            return DiskSpace()
        return DiskSpace(total_bytes=usage.total, usable_bytes=usage.free)

    return LogDir(path=str(path.absolute()), space=space)


class Broker(RunningNode):
    """A running broker; created by `Broker.start`, within one event loop."""

    def __init__(
        self,
        settings: BrokerSettings,
        config: BrokerConfig,
        *,
        storage: DiskStorage,
        listener: socket.socket,
        faults: Faults,
    ) -> None:
        """Create a broker that has not joined its cluster. Raises: ApiError, LogError."""
        clock = SystemClock()
        self.node_id = settings.node_id
        self.host = settings.advertised_host or settings.host
        self.port: int = settings.advertised_port or listener.getsockname()[1]
        self.address = address_text(self.host, self.port)
        self.node = BrokerNode(
            config,
            storage=storage,
            controller=settings.controller,
            now_ms=clock.now_ms(),
            random_bytes=os.urandom,
            faults=faults,
            log_dir=log_dir(settings.data),
        )
        self._controller = settings.controller
        self._state_reached = asyncio.Event()
        super().__init__(
            self.node,
            name=f"Broker {settings.node_id} at {self.address}",
            node_id=settings.node_id,
            storage=storage,
            clock=clock,
            limits=server_limits(config),
            faults=faults,
        )

    @classmethod
    async def start(cls, settings: BrokerSettings, *, faults: Faults | None = None) -> Broker:
        """Recover the logs, join the cluster and serve clients. Raises: BrokerStartError."""
        config = settings.parsed_configs()
        faults = faults or Faults()
        with starting(settings.data, settings.host, settings.port) as (storage, listener):
            broker = cls(settings, config, storage=storage, listener=listener, faults=faults)
            try:
                broker.node.start(broker.host, broker.port)
                broker.server.poke()
                await broker._until_running()
                await broker.server.start(listener)
            except BaseException:
                broker.kill()
                raise
        logger.info("Broker %d serves %s from %s", broker.node_id, broker.address, settings.data)
        return broker

    async def stop(self, *, controlled: bool = True) -> None:
        """Stop the broker; with `controlled`, after moving its leaderships.

        Otherwise the others notice when its session expires. Raises: as `RunningNode.stop`.
        """
        if controlled:
            self.node.begin_shutdown()
            self.server.poke()
            with contextlib.suppress(TimeoutError, BrokerStartError):
                await self._until(BrokerState.SHUTTING_DOWN, CONTROLLED_SHUTDOWN_TIMEOUT_SECONDS)
        await super().stop()

    async def _until_running(self) -> None:
        try:
            await self._until(BrokerState.RUNNING, REGISTRATION_TIMEOUT_SECONDS)
        except TimeoutError:
            raise BrokerStartError(
                f"Broker {self.node_id} was not unfenced within "
                f"{REGISTRATION_TIMEOUT_SECONDS:.0f} s by the controller at "
                f"{address_text(*self._controller)}. Check that this controller is running and is "
                "the right one."
            ) from None

    async def _until(self, state: BrokerState, timeout_seconds: float) -> None:
        async with asyncio.timeout(timeout_seconds):
            while self.node.state is not state:
                if self.node.failure is not None:
                    raise BrokerStartError(self.node.failure)
                self._state_reached.clear()
                await self._state_reached.wait()

    def _on_step(self) -> None:
        self._state_reached.set()
        super()._on_step()

    def _ends_on_failure(self) -> bool:
        # Before and after RUNNING, the caller that starts or stops the broker handles its failure.
        return self.node.state is BrokerState.RUNNING and super()._ends_on_failure()
