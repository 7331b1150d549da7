"""A running controller: configuration, storage on disk, node, clock and server.

Invariant: after a failed start, no files or sockets remain open.
"""

from __future__ import annotations

import logging
import os
import socket
import ssl

from broker_ref.config import BrokerConfig, InvalidBrokerConfigError
from broker_ref.controller.client import CONTROLLER_ID
from broker_ref.faults import Faults
from broker_ref.io.clock import SystemClock
from broker_ref.io.disk import DiskStorage
from broker_ref.io.running import RunningNode, starting
from broker_ref.io.server import ServerListener
from broker_ref.io.settings import (
    BrokerStartError,
    ControllerSettings,
    address_text,
    parse_configs,
    server_limits,
)
from broker_ref.io.tls import TlsSettingsError, server_context
from broker_ref.node.controller import ControllerNode
from broker_ref.security.listeners import (
    SecurityProtocol,
    controller_listener,
    has_secured_listener,
)
from broker_ref.security.settings import ListenerSettings, listener_settings

logger = logging.getLogger(__name__)


def controller_security(
    config: BrokerConfig, settings: ControllerSettings
) -> tuple[ListenerSettings, ssl.SSLContext | None]:
    """Return the settings of the controller listener, and its TLS context.

    Log a warning if the brokers are secured but the controller listener is not.

    Raises: BrokerStartError.
    """
    try:
        endpoint = controller_listener(config.security, host=settings.host, port=settings.port)
        found = listener_settings(config.security, endpoint)
        tls = None if found.tls is None else server_context(found.tls, listener=endpoint.listener)
    except (InvalidBrokerConfigError, TlsSettingsError) as error:
        raise BrokerStartError(str(error)) from error
    is_guarded = config.authorizer_class_name or has_secured_listener(config.security)
    if is_guarded and endpoint.protocol is SecurityProtocol.PLAINTEXT:
        logger.warning(
            "Controller listener %s is not secured. Any client that can connect to the listener "
            "can control the cluster. In listener.security.protocol.map, assign a secure protocol "
            "to the first listener in controller.listener.names. Otherwise, make sure that only "
            "brokers can connect to the listener.",
            endpoint,
        )
    mechanisms = {} if found.sasl is None else found.sasl.mechanisms
    if any(mechanism.tokens is not None for mechanism in mechanisms.values()):
        raise BrokerStartError(
            f"Controller listener {endpoint.listener} does not support OAUTHBEARER with signed "
            "tokens. Remove OAUTHBEARER from sasl.enabled.mechanisms of this listener."
        )
    return found, tls


class ControllerServer(RunningNode):
    """A running controller, created by `ControllerServer.start` and bound to one event loop."""

    def __init__(
        self,
        settings: ControllerSettings,
        config: BrokerConfig,
        *,
        storage: DiskStorage,
        listener: socket.socket,
        security: ListenerSettings,
        faults: Faults,
    ) -> None:
        """Create a controller that does not yet serve requests. Raises: ApiError, LogError."""
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
            scram_credentials=settings.scram_credentials,
            listener=security,
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
        """Read the metadata journal and serve requests. Raises: BrokerStartError."""
        config = parse_configs(settings.configs)
        faults = faults or Faults()
        security, tls = controller_security(config, settings)
        with starting(settings.data, [(settings.host, settings.port)]) as (storage, (listener,)):
            controller = cls(
                settings,
                config,
                storage=storage,
                listener=listener,
                security=security,
                faults=faults,
            )
            name = security.endpoint.listener
            try:
                await controller.server.start([ServerListener(socket=listener, name=name, tls=tls)])
            except BaseException:
                controller.kill()
                raise
        logger.info(
            "The controller listens on %s. Its data directory is %s",
            controller.address,
            settings.data,
        )
        return controller
