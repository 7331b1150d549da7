"""The security of a development cluster: the broker configs and the client settings.

Clients and brokers connect to the same listener of a broker. Brokers also connect to the listener
of the controller, which is secured in the same way. There are two users: `admin` (which the brokers
also use) and `client`. With TLS client authentication, the common name of a certificate is the name
of the user. `ClientSettings` contains a password, but its `repr` does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Final, Literal

from broker_ref.frozen import dataclass
from broker_ref.security.configs import listener_config
from broker_ref.security.listeners import (
    ADVERTISED,
    CONTROLLER_NAMES,
    INTER_BROKER_NAME,
    LISTENERS,
    PROTOCOL_MAP,
    Endpoint,
    SecurityProtocol,
)
from broker_ref.security.settings import (
    CONTROLLER_MECHANISM,
    INTER_BROKER_MECHANISM,
    PLAIN,
    SCRAM_SHA_256,
    SCRAM_SHA_512,
    login_module,
)

ADMIN: Final = "admin"
"""The brokers' user, which is a super user if an authorizer is configured."""

CLIENT: Final = "client"
"""The user in the client settings."""

USERS: Final = (ADMIN, CLIENT)

_CONTROLLER: Final = "CONTROLLER"
_AUTHORIZER: Final = "authorizer.class.name"
_SUPER_USERS: Final = "super.users"
_COMMON_NAME_RULE: Final = "RULE:^CN=([^,]+).*$/$1/,DEFAULT"


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """The security settings of a development cluster.

    - `protocol`: the security protocol of the listener.
    - `mechanisms`: the SASL mechanisms; clients and brokers use the first mechanism by default.
    - `requires_certificate`: whether clients need a certificate (`ssl.client.auth=required`).

    Raises: ValueError if the values cannot be combined.
    """

    protocol: Literal["SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "SASL_SSL"
    mechanisms: tuple[str, ...] = (SCRAM_SHA_512, SCRAM_SHA_256, PLAIN)
    requires_certificate: bool = False

    def __post_init__(self) -> None:
        supported = (SCRAM_SHA_512, SCRAM_SHA_256, PLAIN)
        unknown = [each for each in self.mechanisms if each not in supported]
        if unknown or not self.mechanisms:
            raise ValueError(
                f"Invalid mechanisms {self.mechanisms}. Use one or more of {', '.join(supported)}."
            )
        if self.requires_certificate and not self.uses_tls:
            raise ValueError(
                f"requires_certificate cannot be combined with protocol {self.protocol}, which "
                "does not use TLS. Use SSL or SASL_SSL."
            )

    @property
    def uses_tls(self) -> bool:
        """Return whether connections are encrypted."""
        return SecurityProtocol[self.protocol].uses_tls

    @property
    def uses_sasl(self) -> bool:
        """Return whether clients log in with SASL."""
        return SecurityProtocol[self.protocol].uses_sasl


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """The settings that a client needs to connect to a cluster as `user`.

    `ca` is the path of the CA's certificate, and `certificate` is the path of a file with the
    client's private key and certificate. Both are PEM files. Fields that do not apply are empty.
    """

    bootstrap_servers: str
    protocol: str = "PLAINTEXT"
    mechanism: str = ""
    user: str = ""
    password: str = field(default="", repr=False)
    ca: str = ""
    certificate: str = ""

    def java(self) -> dict[str, str]:
        """Return the settings for Kafka's Java clients and command-line tools."""
        settings = {
            "bootstrap.servers": self.bootstrap_servers,
            "security.protocol": self.protocol,
        }
        if self.ca:
            settings |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": self.ca}
        if self.certificate:
            settings |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": self.certificate}
        if self.mechanism:
            settings |= {
                "sasl.mechanism": self.mechanism,
                "sasl.jaas.config": _jaas(self.mechanism, self.user, self.password),
            }
        return settings

    def librdkafka(self) -> dict[str, str]:
        """Return the settings for confluent-kafka and other clients that use librdkafka."""
        settings = {
            "bootstrap.servers": self.bootstrap_servers,
            "security.protocol": self.protocol,
        }
        if self.ca:
            settings["ssl.ca.location"] = self.ca
        if self.certificate:
            settings |= {
                "ssl.certificate.location": self.certificate,
                "ssl.key.location": self.certificate,
            }
        if self.mechanism:
            settings |= {
                "sasl.mechanism": self.mechanism,
                "sasl.username": self.user,
                "sasl.password": self.password,
            }
        return settings

    def data_source(self) -> dict[str, str]:
        """Return the options for the Spark data source `pyspark_kafka`."""
        return {f"kafka.{name}": value for name, value in self.java().items()}


def broker_configs(
    security: Security,
    configs: Mapping[str, str],
    *,
    bound: tuple[str, int],
    advertised_host: str,
    key_store: str,
    trust_store: str,
    passwords: Mapping[str, str],
) -> dict[str, str]:
    """Return `configs` and the security configs for the first broker in a cluster.

    `bound` is the address to which the listener is bound. The values in `configs` take precedence
    over the security configs. `key_store` and `trust_store` are paths that are used only with TLS.
    If `configs` contains an authorizer, the brokers' user is added to the super users.

    Raises: ValueError if an authorizer is configured but brokers do not authenticate.
    """
    listener = security.protocol
    host, port = bound
    secured = {
        LISTENERS: str(Endpoint(listener=listener, host=host, port=port)),
        ADVERTISED: str(Endpoint(listener=listener, host=advertised_host, port=port)),
        INTER_BROKER_NAME: listener,
        CONTROLLER_NAMES: _CONTROLLER,
        PROTOCOL_MAP: f"{listener}:{listener},{_CONTROLLER}:{listener}",
    }
    if security.uses_tls:
        secured |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": key_store,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": trust_store,
        }
    if security.requires_certificate:
        secured["ssl.principal.mapping.rules"] = _COMMON_NAME_RULE
        for name in (listener, _CONTROLLER):
            secured[listener_config("ssl.client.auth", name)] = "required"
    if security.uses_sasl:
        secured |= {
            "sasl.enabled.mechanisms": ",".join(security.mechanisms),
            INTER_BROKER_MECHANISM: security.mechanisms[0],
            CONTROLLER_MECHANISM: security.mechanisms[0],
        }
        users = "".join(f' user_{name}="{password}"' for name, password in passwords.items())
        for mechanism in security.mechanisms:
            plain_users = users if mechanism == PLAIN else ""
            for name in (listener, _CONTROLLER):
                config = listener_config("sasl.jaas.config", name, mechanism)
                secured[config] = _jaas(mechanism, ADMIN, passwords[ADMIN], plain_users)
    found = {**secured, **configs}
    if found.get(_AUTHORIZER):
        if not (security.uses_sasl or security.requires_certificate):
            raise ValueError(
                f"{_AUTHORIZER} cannot be combined with Security(protocol={security.protocol!r}), "
                "because brokers would connect as User:ANONYMOUS. Add requires_certificate=True, "
                "or use a protocol with SASL."
            )
        found[_SUPER_USERS] = f"{configs.get(_SUPER_USERS, '')};User:{ADMIN}".lstrip(";")
    return found


def _jaas(mechanism: str, user: str, password: str, others: str = "") -> str:
    return f'{login_module(mechanism)} required username="{user}" password="{password}"{others};'
