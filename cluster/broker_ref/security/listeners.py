"""The listeners of a broker: `listeners`, `advertised.listeners` and their security protocols.

Invariants: listener names are in upper case and unique, and the inter-broker listener is one of the
advertised listeners. Sources: `KafkaConfig.validateValues`, `CoreUtils.listenerListToEndPoints`
and `SocketServerConfigs` in Apache Kafka.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import re
from collections.abc import Sequence
from enum import IntEnum
from typing import Final

from broker_ref.config_keys import InvalidBrokerConfigError
from broker_ref.frozen import dataclass
from broker_ref.security.configs import SecurityConfigs, split_list

LISTENERS: Final = "listeners"
ADVERTISED: Final = "advertised.listeners"
PROTOCOL_MAP: Final = "listener.security.protocol.map"
INTER_BROKER_NAME: Final = "inter.broker.listener.name"
INTER_BROKER_PROTOCOL: Final = "security.inter.broker.protocol"
CONTROLLER_NAMES: Final = "controller.listener.names"
PORT_MAX: Final = 65_535

_ADDRESS: Final = re.compile(r"(.*)://\[?([0-9a-zA-Z\-%._:]*)\]?:(-?[0-9]+)")


class SecurityProtocol(IntEnum):
    """The security protocols and their numbers in broker registrations."""

    PLAINTEXT = 0
    SSL = 1
    SASL_PLAINTEXT = 2
    SASL_SSL = 3

    @property
    def uses_tls(self) -> bool:
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def uses_sasl(self) -> bool:
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """The address of a listener. An empty host means all interfaces."""

    listener: str
    host: str
    port: int
    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.listener}://{host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Listeners:
    """The listeners of a broker. A broker can advertise fewer listeners than it has."""

    bound: tuple[Endpoint, ...]
    advertised: tuple[Endpoint, ...]
    inter_broker: str

    def advertised_with_ports(self, ports: dict[str, int]) -> tuple[Endpoint, ...]:
        """Return the advertised endpoints, with the inter-broker endpoint first.

        `ports` contains the ports to which the listeners are bound, keyed by listener name. These
        ports replace port 0.
        """
        resolved = [
            dataclasses.replace(each, port=each.port or ports[each.listener])
            for each in self.advertised
        ]
        return tuple(sorted(resolved, key=lambda each: each.listener != self.inter_broker))


def parse_listeners(configs: SecurityConfigs, *, default: Endpoint) -> Listeners:
    """Parse and validate the listeners. If `listeners` is not set, `default` is used.

    Raises: InvalidBrokerConfigError.
    """
    protocols = _protocol_map(configs)
    text = configs.text(LISTENERS)
    bound = _endpoints(LISTENERS, text, protocols) if text else (default,)
    _check_distinct(LISTENERS, text, bound)
    _check_ports(text, bound)
    text = configs.text(ADVERTISED)
    advertised = _endpoints(ADVERTISED, text, protocols) if text else bound
    _check_distinct(ADVERTISED, text, advertised)
    inter_broker = _inter_broker_listener(configs, protocols)
    names = [each.listener for each in advertised]
    if inter_broker not in names:
        raise InvalidBrokerConfigError(
            INTER_BROKER_NAME,
            f"{INTER_BROKER_NAME} must be a listener name defined in {ADVERTISED}. The valid "
            f"options based on currently configured listeners are {','.join(names)}.",
        )
    bound_names = [each.listener for each in bound]
    if not all(name in bound_names for name in names):
        raise InvalidBrokerConfigError(
            ADVERTISED,
            f"{ADVERTISED} listener names must be equal to or a subset of the ones defined in "
            f"{LISTENERS}. Found {','.join(names)}. The valid options based on the current "
            f"configuration are {','.join(bound_names)}.",
        )
    _check_routable(advertised)
    return Listeners(bound=bound, advertised=advertised, inter_broker=inter_broker)


def controller_listener(configs: SecurityConfigs, *, host: str, port: int) -> Endpoint:
    """Return the controller's listener at the given address. Raises: InvalidBrokerConfigError.

    Brokers connect to this listener as clients. The name of the listener is the first name in
    `controller.listener.names`.
    """
    names = split_list(configs.text(CONTROLLER_NAMES))
    name = names[0].upper() if names else "PLAINTEXT"
    protocols = _protocol_map(configs)
    if name not in protocols and PROTOCOL_MAP in configs.values:
        raise InvalidBrokerConfigError(
            CONTROLLER_NAMES,
            f"Controller listener with name {name} defined in {CONTROLLER_NAMES} not found in "
            f"{PROTOCOL_MAP}.",
        )
    protocol = (
        protocols.get(name, SecurityProtocol.PLAINTEXT) if names else (SecurityProtocol.PLAINTEXT)
    )
    return Endpoint(listener=name, host=host, port=port, protocol=protocol)


def has_secured_listener(configs: SecurityConfigs) -> bool:
    """Return whether `listeners` contains a listener that does not use PLAINTEXT."""
    protocols = _protocol_map(configs)
    names = (entry.partition("://")[0].upper() for entry in split_list(configs.text(LISTENERS)))
    return any(protocols.get(name, SecurityProtocol.PLAINTEXT) for name in names)


def with_ports(text: str, ports: Sequence[int]) -> str:
    """Replace the ports in a value of `listeners` or `advertised.listeners`, and return the result.

    Raises: InvalidBrokerConfigError if the text cannot be parsed.
    """
    entries = split_list(text)
    return ",".join(
        f"{entry[: _parsed(LISTENERS, text, entry).start(3)]}{port}"
        for entry, port in zip(entries, ports, strict=True)
    )


def ports_of(text: str) -> list[int]:
    """Return the ports in the value of `listeners` or `advertised.listeners`.

    Raises: InvalidBrokerConfigError if the value cannot be parsed.
    """
    return [int(_parsed(LISTENERS, text, entry).group(3)) for entry in split_list(text)]


def _protocol_map(configs: SecurityConfigs) -> dict[str, SecurityProtocol]:
    protocols = {}
    for entry in split_list(configs.text(PROTOCOL_MAP)):
        name, separator, protocol = entry.rpartition(":")
        if not separator or not name.strip():
            raise InvalidBrokerConfigError(
                PROTOCOL_MAP,
                f"Error parsing {PROTOCOL_MAP}: '{entry}' is not in the form LISTENER:PROTOCOL.",
            )
        protocols[name.strip().upper()] = _protocol(protocol.strip(), PROTOCOL_MAP)
    return protocols


def _protocol(name: str, config: str) -> SecurityProtocol:
    try:
        return SecurityProtocol[name.upper()]
    except KeyError:
        raise InvalidBrokerConfigError(
            config, f"Invalid security protocol `{name}` defined in {config}."
        ) from None


def _inter_broker_listener(configs: SecurityConfigs, protocols: dict[str, SecurityProtocol]) -> str:
    name = configs.text(INTER_BROKER_NAME).upper()
    if not name:
        return _protocol(configs.text(INTER_BROKER_PROTOCOL), INTER_BROKER_PROTOCOL).name
    if INTER_BROKER_PROTOCOL in configs.values:
        raise InvalidBrokerConfigError(
            INTER_BROKER_NAME,
            f"Only one of {INTER_BROKER_NAME} and {INTER_BROKER_PROTOCOL} should be set.",
        )
    if name not in protocols:
        raise InvalidBrokerConfigError(
            INTER_BROKER_NAME,
            f"Listener with name {name} defined in {INTER_BROKER_NAME} not found in "
            f"{PROTOCOL_MAP}.",
        )
    return name


def _parsed(config: str, text: str, entry: str) -> re.Match[str]:
    match = _ADDRESS.fullmatch(entry)
    if match is None:
        raise _invalid(config, text, f"Unable to parse {entry} to a broker endpoint")
    return match


def _endpoints(
    config: str, text: str, protocols: dict[str, SecurityProtocol]
) -> tuple[Endpoint, ...]:
    endpoints = []
    for entry in split_list(text):
        listener, host, port = _parsed(config, text, entry).groups()
        name = listener.upper()
        if not name.strip():
            raise _invalid(config, text, "The provided listener name is null or empty string")
        if name not in protocols:
            raise _invalid(config, text, f"No security protocol defined for listener {name}")
        if not 0 <= int(port) <= PORT_MAX:
            raise _invalid(config, text, f"The port {port} is not between 0 and {PORT_MAX}")
        endpoints.append(
            Endpoint(listener=name, host=host, port=int(port), protocol=protocols[name])
        )
    return tuple(endpoints)


def _check_distinct(config: str, text: str, endpoints: Sequence[Endpoint]) -> None:
    if len({each.listener for each in endpoints}) != len(endpoints):
        raise InvalidBrokerConfigError(
            config, f"Each listener must have a different name, {config}: {text}."
        )


def _check_ports(text: str, endpoints: Sequence[Endpoint]) -> None:
    """Check that two listeners share a port only if one uses IPv4 and the other uses IPv6."""
    for endpoint in endpoints:
        versions = [_ip_version(each.host) for each in endpoints if each.port == endpoint.port]
        if endpoint.port and len(versions) > 1 and sorted(versions) != [4, 6]:
            raise InvalidBrokerConfigError(
                LISTENERS,
                "Each listener must have a different port unless exactly one listener has an IPv4 "
                f"address and the other IPv6 address, listeners: {text}, port: {endpoint.port}.",
            )


def _ip_version(host: str) -> int:
    try:
        return ipaddress.ip_address(host).version
    except ValueError:
        return 0


def _check_routable(advertised: Sequence[Endpoint]) -> None:
    for endpoint in advertised:
        if endpoint.host == "0.0.0.0":  # noqa: S104 (this address is rejected, not bound)
            raise InvalidBrokerConfigError(
                ADVERTISED,
                f"{ADVERTISED} cannot use the nonroutable meta-address 0.0.0.0. Use a routable IP "
                "address.",
            )
        if endpoint.host in ("", "::"):
            raise InvalidBrokerConfigError(
                ADVERTISED,
                f"Listener {endpoint.listener} listens on all interfaces, so its address cannot be "
                f"advertised to clients. Also set {ADVERTISED}.",
            )


def _invalid(config: str, text: str, reason: str) -> InvalidBrokerConfigError:
    return InvalidBrokerConfigError(
        config, f"Error creating broker listeners from '{text}': {reason}."
    )
