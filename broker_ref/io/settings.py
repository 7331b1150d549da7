"""Where a node runs: its addresses, directory and configs, checked before anything starts.

Purpose: one line, in a `BrokerStartError`, for each thing that can be wrong with them. Must not
know: what runs there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from broker_ref.config import BrokerConfig, InvalidBrokerConfigError
from broker_ref.io.server import ServerLimits

_ANY_ADDRESS = ("", "0.0.0.0", "::")  # noqa: S104 (these are recognised, not bound)


class BrokerStartError(Exception):
    """A node cannot start, or not go on: one line that says why and what to do."""


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
        if self.configs.get("node.id", str(self.node_id)) != str(self.node_id):
            raise BrokerStartError(
                f"config 'node.id' is {self.configs['node.id']} where broker {self.node_id} is to "
                "start: leave it out, ids are given with the broker"
            )
        return parse_configs({"node.id": str(self.node_id), **self.configs}, rack=self.rack)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """Where the controller runs. `configs` are Kafka's broker configs; port 0 is a free one.

    `features` are the versions that a new cluster finalizes, where they are not the defaults; a
    directory that is in use keeps its own.
    """

    data: Path
    host: str = "127.0.0.1"
    port: int = 0
    configs: Mapping[str, str] = field(default_factory=dict)
    features: Mapping[str, int] = field(default_factory=dict)


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


def address_text(host: str, port: int) -> str:
    """`host:port`, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
