"""The configs for listeners, TLS and SASL. They have the same names as in Kafka.

With the prefix `listener.name.<name>.`, most of these configs apply to one listener. With the
prefix `listener.name.<name>.<mechanism>.`, some of them apply to one SASL mechanism of a listener.
Invariant: `SecurityConfigs` contains only valid values. Sources: `BrokerSecurityConfigs`,
`SslConfigs` and `ListenerName` in Apache Kafka.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import field
from types import MappingProxyType
from typing import Final

from broker_ref.config_keys import INT64_MAX, ConfigKey, UpdateMode
from broker_ref.frozen import dataclass
from broker_ref.topic_configs import ConfigType

LISTENER_PREFIX: Final = "listener.name."

DEFAULT_PROTOCOL_MAP: Final = (
    "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT"
)


_DYNAMIC: Final = frozenset(
    {
        "listeners",
        "listener.security.protocol.map",
        "sasl.enabled.mechanisms",
        "sasl.jaas.config",
        "sasl.mechanism.inter.broker.protocol",
        "ssl.client.auth",
        "ssl.enabled.protocols",
        "ssl.endpoint.identification.algorithm",
        "ssl.key.password",
        "ssl.keystore.certificate.chain",
        "ssl.keystore.key",
        "ssl.keystore.location",
        "ssl.keystore.password",
        "ssl.keystore.type",
        "ssl.truststore.certificates",
        "ssl.truststore.location",
        "ssl.truststore.password",
        "ssl.truststore.type",
    }
)
"""The configs that Kafka can update dynamically, for one broker."""


def _key_of(
    name: str, kind: ConfigType, default: str, doc: str, choices: tuple[str, ...] = ()
) -> ConfigKey:
    return ConfigKey(
        name=name,
        type=kind,
        default=default,
        doc=doc,
        choices=choices,
        empty_is_null=name != "sasl.oauthbearer.expected.audience",
        update_mode=UpdateMode.PER_BROKER if name in _DYNAMIC else UpdateMode.READ_ONLY,
    )


def _text(name: str, default: str, doc: str, *choices: str) -> ConfigKey:
    return _key_of(name, ConfigType.STRING, default, doc, choices)


def _secret(name: str, doc: str) -> ConfigKey:
    return _key_of(name, ConfigType.PASSWORD, "", doc)


def _list(name: str, default: str, doc: str) -> ConfigKey:
    return _key_of(name, ConfigType.LIST, default, doc)


def _milliseconds(name: str, default: int, doc: str) -> ConfigKey:
    return ConfigKey(
        name=f"sasl.oauthbearer.{name}.ms",
        type=ConfigType.LONG,
        default=default,
        minimum=1,
        maximum=INT64_MAX,
        doc=doc,
    )


SECURITY_CONFIGS: Final = (
    _list(
        "listeners",
        "",
        "Addresses on which the broker listens, for example SASL_SSL://0.0.0.0:9093. If empty, the "
        "broker has one PLAINTEXT listener.",
    ),
    _list(
        "advertised.listeners",
        "",
        "Addresses that the broker advertises to clients; if empty, those in listeners.",
    ),
    _text(
        "listener.security.protocol.map",
        DEFAULT_PROTOCOL_MAP,
        "Mapping of listener names to security protocols.",
    ),
    _text("inter.broker.listener.name", "", "Listener for communication between brokers."),
    _text(
        "security.inter.broker.protocol",
        "PLAINTEXT",
        "Security protocol for communication between brokers; used only if "
        "inter.broker.listener.name is not set.",
    ),
    _list("controller.listener.names", "", "Listener name of the controller; if empty, PLAINTEXT."),
    _text(
        "sasl.mechanism.controller.protocol",
        "GSSAPI",
        "SASL mechanism that brokers use as clients of the controller.",
    ),
    ConfigKey(
        name="connection.failed.authentication.delay.ms",
        type=ConfigType.INT,
        default=100,
        doc="Delay before a connection is closed after a failed authentication.",
    ),
    _text(
        "ssl.client.auth",
        "none",
        "Whether the broker requires or requests a certificate from clients.",
        "required",
        "requested",
        "none",
    ),
    _list("ssl.enabled.protocols", "TLSv1.2,TLSv1.3", "Enabled versions of TLS."),
    _text(
        "ssl.endpoint.identification.algorithm",
        "https",
        "Whether a broker verifies the host name of another broker; empty disables the check.",
        "https",
        "",
    ),
    _text("ssl.keystore.type", "JKS", "Format of the key store; only PEM is supported."),
    _text("ssl.keystore.location", "", "File that contains a private key and its certificates."),
    _secret("ssl.keystore.password", "Password of the key store; not supported for PEM."),
    _secret("ssl.key.password", "Password of the private key."),
    _secret("ssl.keystore.key", "Private key."),
    _secret("ssl.keystore.certificate.chain", "Certificate chain of the private key."),
    _text("ssl.truststore.type", "JKS", "Format of the trust store; only PEM is supported."),
    _text("ssl.truststore.location", "", "File that contains trusted certificates."),
    _secret("ssl.truststore.password", "Password of the trust store; not supported for PEM."),
    _secret("ssl.truststore.certificates", "Trusted certificates."),
    _text(
        "ssl.principal.mapping.rules",
        "DEFAULT",
        "Rules that map the distinguished name of a client's certificate to a principal name.",
    ),
    _list("sasl.enabled.mechanisms", "GSSAPI", "SASL mechanisms for clients."),
    _text(
        "sasl.mechanism.inter.broker.protocol",
        "GSSAPI",
        "SASL mechanism that brokers use as clients of other brokers.",
    ),
    _secret("sasl.jaas.config", "JAAS login module with the users or options of a mechanism."),
    _key_of(
        "sasl.server.callback.handler.class",
        ConfigType.CLASS,
        "",
        "Class that validates OAUTHBEARER tokens; if empty, tokens are unsecured.",
    ),
    _text("sasl.oauthbearer.jwks.endpoint.url", "", "URL of the JWKS for signed tokens."),
    _milliseconds("jwks.endpoint.refresh", 3_600_000, "Interval between refreshes of the JWKS."),
    _milliseconds("jwks.endpoint.retry.backoff", 100, "Initial backoff after a failed refresh."),
    _milliseconds(
        "jwks.endpoint.retry.backoff.max", 10_000, "Maximum backoff after failed refreshes."
    ),
    ConfigKey(
        name="sasl.oauthbearer.clock.skew.seconds",
        type=ConfigType.INT,
        default=30,
        doc="Allowed difference between the clocks of the broker and of the token issuer.",
    ),
    _list(
        "sasl.oauthbearer.expected.audience",
        "",
        "Expected audiences; a token must have at least one of them.",
    ),
    _text("sasl.oauthbearer.expected.issuer", "", "Expected issuer of tokens."),
    _text(
        "sasl.oauthbearer.scope.claim.name", "scope", "Claim that contains the scopes of a token."
    ),
    _text(
        "sasl.oauthbearer.sub.claim.name", "sub", "Claim that contains the principal of a token."
    ),
    ConfigKey(
        name="sasl.server.max.receive.size",
        type=ConfigType.INT,
        default=524288,
        doc="Maximum size of a request before the client is authenticated, in bytes.",
    ),
    ConfigKey(
        name="connections.max.reauth.ms",
        type=ConfigType.LONG,
        default=0,
        maximum=INT64_MAX,
        doc="Time after which clients must authenticate again (KIP-368); 0 means never.",
    ),
)

SECURITY_KEYS: Final = MappingProxyType({key.name: key for key in SECURITY_CONFIGS})

_OF_LISTENERS: Final = tuple(
    name for name in SECURITY_KEYS if name.startswith(("ssl.", "sasl.", "connections."))
)


@dataclass(frozen=True, slots=True)
class SecurityConfigs:
    """The security configs that are set, keyed by full name. The values may be sensitive."""

    values: Mapping[str, int | bool | str] = field(default_factory=dict, repr=False)

    @classmethod
    def from_mapping(cls, configs: Mapping[str, str]) -> SecurityConfigs:
        """Parse configs that satisfy `is_security_config`. Raises: InvalidBrokerConfigError."""
        return cls({name: _key(name).parse(text) for name, text in configs.items()})

    def value(
        self, name: str, *, listener: str | None = None, mechanism: str | None = None
    ) -> int | bool | str:
        """Return the most specific value of a config, or its default."""
        names = [name]
        if listener is not None:
            names.insert(0, listener_config(name, listener))
            if mechanism is not None:
                names.insert(0, listener_config(name, listener, mechanism))
        for each in names:
            if each in self.values:
                return self.values[each]
        return SECURITY_KEYS[name].default

    def text(self, name: str, *, listener: str | None = None) -> str:
        """Return the value of a config as text."""
        return str(self.value(name, listener=listener))


def listener_config(name: str, listener: str, mechanism: str | None = None) -> str:
    """Return the full name of a config for a listener, or for one of its SASL mechanisms."""
    prefix = f"{LISTENER_PREFIX}{listener.lower()}."
    return f"{prefix}{name}" if mechanism is None else f"{prefix}{mechanism.lower()}.{name}"


def is_security_config(name: str) -> bool:
    """Return whether `name` is a security config, with or without the prefix of a listener."""
    return name in SECURITY_KEYS or base_name(name) is not None


def split_list(text: str) -> tuple[str, ...]:
    """Return the elements of a config of type LIST."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _key(name: str) -> ConfigKey:
    key = SECURITY_KEYS[name if name in SECURITY_KEYS else base_name(name) or ""]
    if name != key.name:
        return dataclasses.replace(key, name=name)  # An error must contain the full name.
    return key


def base_name(name: str) -> str | None:
    """Remove the listener prefix from the name of a security config.

    Return None if `name` is not the name of a security config with a listener prefix.
    """
    if not name.startswith(LISTENER_PREFIX):
        return None
    return next((each for each in _OF_LISTENERS if name.endswith(f".{each}")), None)
