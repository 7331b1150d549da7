"""A running controller: configuration, storage on disk, node, clock and server.

Purpose: as `broker`, for the controller. Invariant: a failed start leaves nothing open. Must not
know: whether it runs in a separate process.
"""

from __future__ import annotations

import logging
import os
import socket

from broker_ref.config import BrokerConfig
from broker_ref.controller.client import CONTROLLER_ID
from broker_ref.faults import Faults
from broker_ref.io.clock import SystemClock
from broker_ref.io.disk import DiskStorage
from broker_ref.io.running import RunningNode, starting
from broker_ref.io.settings import ControllerSettings, address_text, parse_configs, server_limits
from broker_ref.node.controller import ControllerNode

logger = logging.getLogger(__name__)


class ControllerServer(RunningNode):
    """A running controller; created by `ControllerServer.start`, within one event loop."""

    def __init__(
        self,
        settings: ControllerSettings,
        config: BrokerConfig,
        *,
        storage: DiskStorage,
        listener: socket.socket,
        faults: Faults,
    ) -> None:
        """Create a controller that does not serve yet. Raises: ApiError, LogError."""
        clock = SystemClock()
        self.host = settings.host
        self.port: int = listener.getsockname()[1]
        self.address = address_text(self.host, self.port)
        node = ControllerNode(
            config,
            storage=storage,
            now_ms=clock.now_ms(),
            random_bytes=os.urandom,
            faults=faults,
            features=settings.features,
        )
        super().__init__(
            node,
            name=f"Controller at {self.address}",
            node_id=CONTROLLER_ID,
            storage=storage,
            clock=clock,
            limits=server_limits(config),
            faults=faults,
        )

    @classmethod
    async def start(
        cls, settings: ControllerSettings, *, faults: Faults | None = None
    ) -> ControllerServer:
        """Read the journal, then serve. Raises: BrokerStartError."""
        config = parse_configs(settings.configs)
        faults = faults or Faults()
        with starting(settings.data, settings.host, settings.port) as (storage, listener):
            controller = cls(settings, config, storage=storage, listener=listener, faults=faults)
            try:
                await controller.server.start(listener)
            except BaseException:
                controller.kill()
                raise
        logger.info("The controller serves %s from %s", controller.address, settings.data)
        return controller
