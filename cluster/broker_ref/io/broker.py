"""A running broker: configuration, storage on disk, node, clock and server.

Starts and stops these components in the correct order, and reports each startup error in one line.
Invariants: after a failed start, no files or sockets remain open. `stop` closes all components,
even if one of them raises an exception. A node that cannot continue is stopped immediately.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from broker_ref.config import BrokerConfig, InvalidBrokerConfigError
from broker_ref.controller.client import CONTROLLER_ID
from broker_ref.events import Channel
from broker_ref.faults import Faults
from broker_ref.frozen import dataclass
from broker_ref.io.admin import Credentials
from broker_ref.io.clock import SystemClock
from broker_ref.io.disk import DiskStorage
from broker_ref.io.running import RunningNode, starting
from broker_ref.io.server import ServerListener
from broker_ref.io.settings import (
    BrokerSettings,
    BrokerStartError,
    address_text,
    server_limits,
)
from broker_ref.io.signed_tokens import SignedTokens
from broker_ref.io.tls import TlsSettingsError, client_context, server_context
from broker_ref.log.log_dir import DiskSpace, LogDir
from broker_ref.node.broker import BrokerNode
from broker_ref.node.registration import BrokerState
from broker_ref.security.listeners import Listeners, controller_listener
from broker_ref.security.sasl_client_authenticator import SaslClientAuthenticator, sasl_client
from broker_ref.security.settings import (
    CONTROLLER_MECHANISM,
    INTER_BROKER_MECHANISM,
    ListenerSettings,
    listener_settings,
    node_settings,
)

logger = logging.getLogger(__name__)

REGISTRATION_TIMEOUT_SECONDS: Final = 60.0
"""Kafka's default for `initial.broker.registration.timeout.ms`."""

CONTROLLED_SHUTDOWN_TIMEOUT_SECONDS: Final = 10.0


def log_dir(path: Path) -> LogDir:
    """Return the log directory for DescribeLogDirs."""

    def space() -> DiskSpace:
        try:
            usage = shutil.disk_usage(path)
        except OSError:
            return DiskSpace()
        return DiskSpace(total_bytes=usage.total, usable_bytes=usage.free)

    return LogDir(path=str(path.absolute()), space=space)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConnections:
    """The settings for the connections from a broker to other nodes.

    `tls` is None if the connections do not use TLS. `new_login` returns the authenticator for a new
    connection, or None if the connections do not use SASL.
    """

    tls: ssl.SSLContext | None
    new_login: Callable[[], SaslClientAuthenticator | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSecurity:
    """The listeners of a broker, with their settings and TLS contexts.

    `brokers` contains the settings for connections to other brokers. `controller` contains the
    settings for connections to the controller.
    """

    listeners: Listeners
    settings: Mapping[str, ListenerSettings]
    server_contexts: Mapping[str, ssl.SSLContext]
    brokers: NodeConnections
    controller: NodeConnections


def broker_security(
    config: BrokerConfig, listeners: Listeners, controller: tuple[str, int]
) -> BrokerSecurity:
    """Validate the settings of the listeners and load their TLS keys. Raises: BrokerStartError."""
    configs = config.security
    try:
        settings = {
            endpoint.listener: listener_settings(configs, endpoint) for endpoint in listeners.bound
        }
        contexts = {
            name: server_context(each.tls, listener=name)
            for name, each in settings.items()
            if each.tls is not None
        }
        host, port = controller
        of_controller = listener_settings(
            configs, controller_listener(configs, host=host, port=port)
        )
        return BrokerSecurity(
            listeners=listeners,
            settings=settings,
            server_contexts=contexts,
            brokers=_connections(config, settings[listeners.inter_broker], INTER_BROKER_MECHANISM),
            controller=_connections(config, of_controller, CONTROLLER_MECHANISM),
        )
    except (InvalidBrokerConfigError, TlsSettingsError) as error:
        raise BrokerStartError(str(error)) from error


def _connections(
    config: BrokerConfig, listener: ListenerSettings, mechanism_config: str
) -> NodeConnections:
    """Return the settings for connections from this node to `listener` on other nodes.

    Raises: InvalidBrokerConfigError, TlsSettingsError.
    """
    settings = node_settings(config.security, listener, mechanism_config)

    def new_login() -> SaslClientAuthenticator | None:
        if settings.mechanism is None or settings.jaas is None:
            return None
        return SaslClientAuthenticator(
            sasl_client(
                settings.mechanism,
                settings.jaas,
                random_bytes=os.urandom,
                now_ms=SystemClock().now_ms,
            ),
            client_id=f"broker-{config.node_id}",
        )

    name = listener.endpoint.listener
    tls = None if settings.tls is None else client_context(settings.tls, listener=name)
    return NodeConnections(tls=tls, new_login=new_login)


class Broker(RunningNode):
    """A running broker, created by `Broker.start` and bound to one event loop."""

    def __init__(
        self,
        settings: BrokerSettings,
        config: BrokerConfig,
        *,
        storage: DiskStorage,
        sockets: Sequence[socket.socket],
        security: BrokerSecurity,
        tokens: SignedTokens,
        faults: Faults,
    ) -> None:
        """Create a broker that has not yet joined its cluster. Raises: ApiError, LogError."""
        clock = SystemClock()
        self.node_id = settings.node_id
        listeners = security.listeners
        ports: dict[str, int] = {
            endpoint.listener: listening.getsockname()[1]
            for endpoint, listening in zip(listeners.bound, sockets, strict=True)
        }
        self.endpoints: Final = listeners.advertised_with_ports(ports)
        first = next(
            each for each in self.endpoints if each.listener == listeners.advertised[0].listener
        )
        self.address = address_text(first.host, first.port)
        self.inter_broker_address = address_text(self.endpoints[0].host, self.endpoints[0].port)
        self.listeners: Final = [
            ServerListener(
                socket=listening,
                name=endpoint.listener,
                tls=security.server_contexts.get(endpoint.listener),
            )
            for endpoint, listening in zip(listeners.bound, sockets, strict=True)
        ]
        self.node = BrokerNode(
            config,
            storage=storage,
            controller=settings.controller,
            now_ms=clock.now_ms(),
            random_bytes=os.urandom,
            faults=faults,
            log_dir=log_dir(settings.data),
            listeners=security.settings,
            token_validators=tokens.validators,
        )
        self._security = security
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
            peer_tls=lambda channel: self._connections_to(channel).tls,
            peer_login=lambda channel: self._connections_to(channel).new_login(),
        )

    def _connections_to(self, channel: Channel) -> NodeConnections:
        is_controller = channel.node_id == CONTROLLER_ID
        return self._security.controller if is_controller else self._security.brokers

    @classmethod
    async def start(cls, settings: BrokerSettings, *, faults: Faults | None = None) -> Broker:
        """Recover the logs, join the cluster and serve clients. Raises: BrokerStartError."""
        config = settings.parsed_configs()
        faults = faults or Faults()
        security = broker_security(config, settings.listeners(config), settings.controller)
        addresses = [(each.host, each.port) for each in security.listeners.bound]
        tokens = SignedTokens(security.settings)
        with starting(settings.data, addresses) as (storage, sockets):
            broker = cls(
                settings,
                config,
                storage=storage,
                sockets=sockets,
                security=security,
                tokens=tokens,
                faults=faults,
            )
            broker.ended.add_done_callback(lambda _: tokens.stop())
            try:
                await tokens.start()
                broker.node.start(broker.endpoints)
                broker.server.run_due_work()
                await broker._until_running()
                await broker.server.start(broker.listeners)
            except BaseException:
                broker.kill()
                raise
        logger.info(
            "Broker %d listens on %s. Its data directory is %s",
            broker.node_id,
            ", ".join(str(endpoint) for endpoint in broker.endpoints),
            settings.data,
        )
        return broker

    def credentials(self) -> Credentials:
        """Return the credentials that this broker uses for inter-broker listeners."""
        brokers = self._security.brokers
        return Credentials(tls=brokers.tls, login=brokers.new_login())

    async def stop(self, *, controlled: bool = True) -> None:
        """Stop the broker.

        If `controlled` is True, the broker first transfers the leadership of its partitions to
        other brokers. If `controlled` is False, the controller fences the broker when its session
        expires. Raises: see `RunningNode.stop`.
        """
        if controlled:
            self.node.begin_shutdown()
            self.server.run_due_work()
            with contextlib.suppress(TimeoutError, BrokerStartError):
                await self._until(BrokerState.SHUTTING_DOWN, CONTROLLED_SHUTDOWN_TIMEOUT_SECONDS)
        await super().stop()

    async def _until_running(self) -> None:
        try:
            await self._until(BrokerState.RUNNING, REGISTRATION_TIMEOUT_SECONDS)
        except TimeoutError:
            raise BrokerStartError(
                f"The controller at {address_text(*self._controller)} did not unfence broker "
                f"{self.node_id} within {REGISTRATION_TIMEOUT_SECONDS:.0f} s. Check that the "
                "controller is running and that its address is correct."
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
        # In other states, the caller that starts or stops the broker handles a failure.
        return self.node.state is BrokerState.RUNNING and super()._ends_on_failure()
