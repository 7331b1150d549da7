"""The settings of a node: addresses, directory and configs, validated before anything starts.

Purpose: report each invalid setting as one line, in a `BrokerStartError`. Must not know: what the
node does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from broker_ref.config import BrokerConfig, InvalidBrokerConfigError
from broker_ref.io.server import ServerLimits

_ANY_ADDRESS = ("", "0.0.0.0", "::")  # noqa: S104 (these are recognised, not bound)


class BrokerStartError(Exception):
    """A node cannot start or continue; the message is one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """The settings of one broker. `configs` are Kafka's broker configs; port 0 selects a free port.

    `controller` is the controller's host and port. If `advertised_host` or `advertised_port` is
    None, the listening address is advertised.
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
        check_host(self.host, self.advertised_host)
        if self.configs.get("node.id", str(self.node_id)) != str(self.node_id):
            raise BrokerStartError(
                f"Config 'node.id' is {self.configs['node.id']}, but the id of this broker is "
                f"{self.node_id}. Remove the config."
            )
        return parse_configs({"node.id": str(self.node_id), **self.configs}, rack=self.rack)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """The settings of the controller. `configs` are Kafka's broker configs; port 0 is a free port.

    `features` are the finalized feature versions of a new cluster, if not the defaults; an existing
    directory keeps its versions.
    """

    data: Path
    host: str = "127.0.0.1"
    port: int = 0
    configs: Mapping[str, str] = field(default_factory=dict)
    features: Mapping[str, int] = field(default_factory=dict)


def check_host(host: str, advertised_host: str | None) -> None:
    """Reject an advertised address that clients cannot connect to. Raises: BrokerStartError."""
    if advertised_host is None and host in _ANY_ADDRESS:
        raise BrokerStartError(
            f"Host '{host}' listens on every interface and cannot be advertised to clients. Set "
            "the advertised host too (--advertised-host NAME)."
        )


def parse_configs(configs: Mapping[str, str], *, rack: str | None = None) -> BrokerConfig:
    """Parse broker configs by Kafka's names. Raises: BrokerStartError."""
    try:
        fields = {} if rack is None else {"rack": rack}
        return BrokerConfig.from_mapping(configs, **fields)
    except InvalidBrokerConfigError as error:
        raise BrokerStartError(str(error)) from error


def server_limits(config: BrokerConfig) -> ServerLimits:
    """Return the limits for clients from a broker's config."""
    return ServerLimits(
        request_bytes_max=config.socket_request_max_bytes,
        connection_idle_ms_max=config.connections_max_idle_ms,
    )


def address_text(host: str, port: int) -> str:
    """Return `host:port`, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
