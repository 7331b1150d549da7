"""The settings of a node: addresses, directory and configs.

Settings are validated before the node is started. An invalid setting causes a `BrokerStartError`
with a one-line message.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Final

from broker_ref.config import BrokerConfig, InvalidBrokerConfigError
from broker_ref.config_keys import INT64_MAX
from broker_ref.controller.records import UserScramCredentialRecord
from broker_ref.frozen import dataclass
from broker_ref.io.server import ServerLimits
from broker_ref.security.listeners import LISTENERS, Endpoint, Listeners, parse_listeners

ANY_ADDRESS: Final = ("", "0.0.0.0", "::")  # noqa: S104 (these are recognized, not bound)


class BrokerStartError(Exception):
    """A node cannot start or continue. The message has one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """The settings of one broker.

    `configs` contains Kafka's broker configs. Port 0 selects a free port. `controller` is the host
    and port of the controller. If `advertised_host` or `advertised_port` is None, the listening
    address is advertised. The config `listeners` takes precedence over these addresses.
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
        """Validate the settings and return the config. Raises: BrokerStartError."""
        if not self.configs.get(LISTENERS):
            check_host(self.host, self.advertised_host)
        if self.configs.get("node.id", str(self.node_id)) != str(self.node_id):
            raise BrokerStartError(
                f"Config 'node.id' is {self.configs['node.id']}, but the node id of this broker is "
                f"{self.node_id}. Remove the config."
            )
        return parse_configs({"node.id": str(self.node_id), **self.configs}, rack=self.rack)

    def listeners(self, config: BrokerConfig) -> Listeners:
        """Return the listeners of the broker. Raises: BrokerStartError."""
        default = Endpoint(
            listener="PLAINTEXT",
            host=self.advertised_host or self.host,
            port=self.advertised_port or 0,
        )
        try:
            listeners = parse_listeners(config.security, default=default)
        except InvalidBrokerConfigError as error:
            raise BrokerStartError(str(error)) from error
        if config.security.text(LISTENERS):
            return listeners
        bound = dataclasses.replace(default, host=self.host, port=self.port)
        return dataclasses.replace(listeners, bound=(bound,))


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """The settings of the controller.

    `configs` contains Kafka's broker configs. Port 0 selects a free port. `features` contains the
    finalized feature versions that differ from the defaults. `scram_credentials` contains the
    initial SCRAM credentials. If `data` already contains a cluster, `features` and
    `scram_credentials` are ignored.
    """

    data: Path
    host: str = "127.0.0.1"
    port: int = 0
    configs: Mapping[str, str] = field(default_factory=dict)
    features: Mapping[str, int] = field(default_factory=dict)
    scram_credentials: Sequence[UserScramCredentialRecord] = ()


def check_host(host: str, advertised_host: str | None) -> None:
    """Reject an advertised host to which clients cannot connect. Raises: BrokerStartError."""
    if advertised_host is None and host in ANY_ADDRESS:
        raise BrokerStartError(
            f"Host '{host}' represents all interfaces and cannot be advertised to clients. Also "
            "set the advertised host (--advertised-host NAME)."
        )


def missing_cryptography(what: str) -> str:
    """Return the error message for a feature that needs the optional `cryptography` package."""
    return (
        f"{what} require the package 'cryptography', which is not installed. Run: "
        "pip install 'broker-ref[secure]'"
    )


def parse_configs(configs: Mapping[str, str], *, rack: str | None = None) -> BrokerConfig:
    """Parse broker configs with Kafka's names. Raises: BrokerStartError."""
    try:
        fields = {} if rack is None else {"rack": rack}
        return BrokerConfig.from_mapping(configs, **fields)
    except InvalidBrokerConfigError as error:
        raise BrokerStartError(str(error)) from error


def server_limits(config: BrokerConfig) -> ServerLimits:
    """Return the limits for clients, as configured in the broker's config."""
    return ServerLimits(
        request_bytes_max=config.socket_request_max_bytes,
        connection_idle_ms_max=(
            INT64_MAX if config.connections_max_idle_ms < 0 else config.connections_max_idle_ms
        ),
        failed_handshake_delay_ms=config.failed_authentication_delay_ms,
    )


def address_text(host: str, port: int) -> str:
    """Return `host:port`, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
