"""The TLS and SASL settings of one listener.

Invariant: the settings are complete and consistent. This module does not read or check files.
Sources: `DefaultSslEngineFactory`, `SaslChannelBuilder` and `JaasContext` in Apache Kafka.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import field
from typing import Final

from broker_ref.config_keys import InvalidBrokerConfigError
from broker_ref.frozen import dataclass
from broker_ref.security.configs import SecurityConfigs, listener_config, split_list
from broker_ref.security.jaas import InvalidJaasError, JaasEntry, parse_jaas
from broker_ref.security.listeners import Endpoint
from broker_ref.security.principals import (
    InvalidMappingRuleError,
    SslPrincipalMapper,
    parse_mapping_rules,
)

logger = logging.getLogger(__name__)

CLOCK_SKEW_OPTION: Final = "unsecuredValidatorAllowableClockSkewMs"
PLAIN: Final = "PLAIN"
OAUTHBEARER: Final = "OAUTHBEARER"
SCRAM_SHA_256: Final = "SCRAM-SHA-256"
SCRAM_SHA_512: Final = "SCRAM-SHA-512"

_LOGIN_MODULES: Final = {
    PLAIN: "org.apache.kafka.common.security.plain.PlainLoginModule",
    SCRAM_SHA_256: "org.apache.kafka.common.security.scram.ScramLoginModule",
    SCRAM_SHA_512: "org.apache.kafka.common.security.scram.ScramLoginModule",
    OAUTHBEARER: "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule",
}
MECHANISMS: Final = tuple(_LOGIN_MODULES)


def login_module(mechanism: str) -> str:
    """Return the name of the JAAS login module of a mechanism."""
    return _LOGIN_MODULES[mechanism]


_TLS_VERSIONS: Final = ("TLSv1.2", "TLSv1.3")
_PEM: Final = "PEM"


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """PEM data, either in the file `location` or in `certificates` and `key`.

    A trust store has no `key`.
    """

    location: str = ""
    certificates: str = field(default="", repr=False)
    key: str = field(default="", repr=False)
    key_password: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """The TLS settings of a listener. The broker also uses them when it connects as a client."""

    key_store: Store
    trust_store: Store | None
    client_auth: str
    protocols: tuple[str, ...]
    checks_host_name: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSettings:
    """The settings for the validation of signed tokens.

    If `issuer` is empty, every issuer is accepted. If `audiences` is empty, only tokens without an
    audience are accepted.
    """

    jwks_url: str
    trust_store: Store | None = None
    refresh_ms: int = 3_600_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 10_000
    clock_skew_seconds: int = 30
    audiences: tuple[str, ...] = ()
    issuer: str = ""
    scope_claim: str = "scope"
    sub_claim: str = "sub"


@dataclass(frozen=True, slots=True, kw_only=True)
class MechanismSettings:
    """The settings of a SASL mechanism. `max_reauth_ms` is 0 if sessions do not expire.

    `tokens` is None if the mechanism does not use signed tokens.
    """

    jaas: JaasEntry
    max_reauth_ms: int
    tokens: TokenSettings | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslSettings:
    """The SASL settings of a listener: the enabled mechanisms and the maximum size of requests."""

    mechanisms: Mapping[str, MechanismSettings]
    max_receive_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerSettings:
    """The security settings of a listener."""

    endpoint: Endpoint
    tls: TlsSettings | None
    sasl: SaslSettings | None
    mapper: SslPrincipalMapper


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """The settings with which a broker connects to other nodes.

    `mechanism` is None if the listener of the other nodes does not use SASL.
    """

    tls: TlsSettings | None
    mechanism: str | None
    jaas: JaasEntry | None


def listener_settings(configs: SecurityConfigs, endpoint: Endpoint) -> ListenerSettings:
    """Return the settings of a listener. Raises: InvalidBrokerConfigError."""
    rules = configs.text("ssl.principal.mapping.rules", listener=endpoint.listener)
    try:
        mapper = parse_mapping_rules(rules)
    except InvalidMappingRuleError as error:
        raise InvalidBrokerConfigError("ssl.principal.mapping.rules", f"{error}.") from error
    protocol = endpoint.protocol
    return ListenerSettings(
        endpoint=endpoint,
        tls=_tls(configs, endpoint) if protocol.uses_tls else None,
        sasl=_sasl(configs, endpoint.listener) if protocol.uses_sasl else None,
        mapper=mapper,
    )


def node_settings(configs: SecurityConfigs, listener: ListenerSettings, name: str) -> NodeSettings:
    """Return the settings with which this node connects to the same listener of other nodes.

    `name` is the name of the config that selects the SASL mechanism. Raises:
    InvalidBrokerConfigError.
    """
    if listener.sasl is None:
        return NodeSettings(tls=listener.tls, mechanism=None, jaas=None)
    mechanism = configs.text(name)
    if mechanism not in listener.sasl.mechanisms:
        raise InvalidBrokerConfigError(
            name,
            f"{name} must be included in sasl.enabled.mechanisms when SASL is used between nodes.",
        )
    jaas = listener.sasl.mechanisms[mechanism].jaas
    if listener.sasl.mechanisms[mechanism].tokens is not None:
        raise InvalidBrokerConfigError(
            name,
            f"broker_ref cannot obtain signed tokens, so {name} must be a mechanism other than "
            f"{OAUTHBEARER}.",
        )
    required = ("unsecuredLoginStringClaim_sub",) if mechanism == OAUTHBEARER else _CREDENTIALS
    missing = [option for option in required if option not in jaas.options]
    if missing:
        name = listener_config("sasl.jaas.config", listener.endpoint.listener, mechanism)
        raise InvalidBrokerConfigError(
            name,
            f"The login module in {name} does not set the option {missing[0]!r}, which brokers "
            "need to log in. Add the option.",
        )
    return NodeSettings(tls=listener.tls, mechanism=mechanism, jaas=jaas)


INTER_BROKER_MECHANISM: Final = "sasl.mechanism.inter.broker.protocol"
CONTROLLER_MECHANISM: Final = "sasl.mechanism.controller.protocol"

_CREDENTIALS: Final = ("username", "password")


def _tls(configs: SecurityConfigs, endpoint: Endpoint) -> TlsSettings:
    listener = endpoint.listener

    def value(name: str) -> str:
        return configs.text(name, listener=listener)

    def error(name: str, message: str) -> InvalidBrokerConfigError:
        return InvalidBrokerConfigError(name, f"{message} (listener {listener}).")

    protocols = split_list(value("ssl.enabled.protocols"))
    unknown = [each for each in protocols if each not in _TLS_VERSIONS]
    if unknown or not protocols:
        raise error(
            "ssl.enabled.protocols",
            f"ssl.enabled.protocols must be one or more of {', '.join(_TLS_VERSIONS)}",
        )
    key_store = _store(configs, listener, "keystore")
    if key_store is None:
        raise error(
            "ssl.keystore.location",
            "A TLS listener needs a key store. Set ssl.keystore.type=PEM. Also set either "
            "ssl.keystore.location or both ssl.keystore.key and ssl.keystore.certificate.chain",
        )
    return TlsSettings(
        key_store=key_store,
        trust_store=_store(configs, listener, "truststore"),
        client_auth=_client_auth(configs, endpoint),
        protocols=protocols,
        checks_host_name=bool(value("ssl.endpoint.identification.algorithm")),
    )


def _client_auth(configs: SecurityConfigs, endpoint: Endpoint) -> str:
    """Return the value of `ssl.client.auth` for a listener.

    As in Kafka, if the listener uses SASL, only the config with the listener prefix applies.
    """
    name, listener = "ssl.client.auth", endpoint.listener
    if not endpoint.protocol.uses_sasl or listener_config(name, listener) in configs.values:
        return configs.text(name, listener=listener)
    if configs.text(name) != "none":
        logger.warning(
            "%s does not apply to listener %s, because the listener uses SASL. To request client "
            "certificates, set %s",
            name, listener, listener_config(name, listener),
        )  # fmt: skip
    return "none"


def _store(configs: SecurityConfigs, listener: str, kind: str) -> Store | None:
    """Return the key store or the trust store, or None if it is not set."""

    def value(name: str) -> str:
        return configs.text(f"ssl.{kind}.{name}", listener=listener)

    def invalid(message: str) -> InvalidBrokerConfigError:
        return InvalidBrokerConfigError(f"ssl.{kind}.type", f"{message} (listener {listener}).")

    is_key_store = kind == "keystore"
    certificates = value("certificate.chain" if is_key_store else "certificates")
    key = value("key") if is_key_store else ""
    location = value("location")
    if not (certificates or key or location):
        if value("password"):
            raise invalid(f"ssl.{kind}.password is set, but no {kind} is configured")
        return None
    if value("type").upper() != _PEM:
        raise invalid(
            f"ssl.{kind}.type is {value('type')}, but broker_ref supports only PEM. Set "
            f"ssl.{kind}.type=PEM"
        )
    if value("password"):
        raise invalid(f"ssl.{kind}.password cannot be specified with PEM format")
    if location and (certificates or key):
        raise invalid(f"Both ssl.{kind}.location and separate certificates or keys are specified")
    if is_key_store and not location and not (certificates and key):
        raise invalid("ssl.keystore.key and ssl.keystore.certificate.chain must be set together")
    password = configs.text("ssl.key.password", listener=listener) if is_key_store else ""
    return Store(
        location=location, certificates=certificates, key=key, key_password=password or None
    )


def _sasl(configs: SecurityConfigs, listener: str) -> SaslSettings:
    enabled = split_list(configs.text("sasl.enabled.mechanisms", listener=listener))
    unsupported = [each for each in enabled if each not in MECHANISMS]
    if unsupported or not enabled:
        name = "sasl.enabled.mechanisms"
        raise InvalidBrokerConfigError(
            name,
            f"Invalid value {','.join(enabled)!r} for {name} of listener {listener}. Use one or "
            f"more of {','.join(MECHANISMS)}.",
        )
    return SaslSettings(
        mechanisms={
            mechanism: _mechanism(configs, listener, mechanism)
            for mechanism in dict.fromkeys(enabled)
        },
        max_receive_bytes=int(configs.value("sasl.server.max.receive.size", listener=listener)),
    )


def _mechanism(configs: SecurityConfigs, listener: str, mechanism: str) -> MechanismSettings:
    jaas = _jaas(configs, listener, mechanism)
    max_reauth_ms = configs.value(
        "connections.max.reauth.ms", listener=listener, mechanism=mechanism
    )
    name = listener_config(_HANDLER, listener, mechanism)
    handler = str(configs.values.get(name, ""))
    is_signed = mechanism == OAUTHBEARER and handler in _TOKEN_HANDLERS
    if handler and not is_signed:
        raise InvalidBrokerConfigError(
            name,
            f"{name} is {handler}. broker_ref supports this setting only for the mechanism "
            f"{OAUTHBEARER}, and only with the value {_TOKEN_HANDLERS[0]}.",
        )
    return MechanismSettings(
        jaas=jaas,
        max_reauth_ms=int(max_reauth_ms),
        tokens=_tokens(configs, listener, jaas) if is_signed else None,
    )


_HANDLER: Final = "sasl.server.callback.handler.class"
_OAUTH_PACKAGE: Final = "org.apache.kafka.common.security.oauthbearer"
_TOKEN_HANDLERS: Final = (
    f"{_OAUTH_PACKAGE}.OAuthBearerValidatorCallbackHandler",
    f"{_OAUTH_PACKAGE}.secured.OAuthBearerValidatorCallbackHandler",  # Before Kafka 4.
)


def _tokens(configs: SecurityConfigs, listener: str, jaas: JaasEntry) -> TokenSettings:
    def value(name: str) -> int | bool | str:
        name = f"sasl.oauthbearer.{name}"
        return configs.value(name, listener=listener, mechanism=OAUTHBEARER)

    url = str(value("jwks.endpoint.url"))
    if not url.lower().startswith(("https://", "http://", "file:/")):
        raise InvalidBrokerConfigError(
            "sasl.oauthbearer.jwks.endpoint.url",
            f"sasl.oauthbearer.jwks.endpoint.url is {url!r} (listener {listener}). Set it to a URL "
            "that begins with https://, http:// or file:///.",
        )
    location = jaas.options.get("ssl.truststore.location", "")
    certificates = jaas.options.get("ssl.truststore.certificates", "")
    trust_store = Store(location=location, certificates=certificates)
    return TokenSettings(
        jwks_url=url,
        trust_store=trust_store if location or certificates else None,
        refresh_ms=int(value("jwks.endpoint.refresh.ms")),
        retry_backoff_ms=int(value("jwks.endpoint.retry.backoff.ms")),
        retry_backoff_max_ms=int(value("jwks.endpoint.retry.backoff.max.ms")),
        clock_skew_seconds=int(value("clock.skew.seconds")),
        audiences=split_list(str(value("expected.audience"))),
        issuer=str(value("expected.issuer")),
        scope_claim=str(value("scope.claim.name")),
        sub_claim=str(value("sub.claim.name")),
    )


def _jaas(configs: SecurityConfigs, listener: str, mechanism: str) -> JaasEntry:
    name = listener_config("sasl.jaas.config", listener, mechanism)
    login_module = _LOGIN_MODULES[mechanism]
    text = str(configs.values.get(name, ""))
    if not text:
        raise InvalidBrokerConfigError(
            name,
            f"SASL mechanism {mechanism} requires {name}, for example '{login_module} required;'.",
        )
    try:
        entry = parse_jaas(text)
    except InvalidJaasError as error:
        raise InvalidBrokerConfigError(name, f"Invalid value of {name}: {error}.") from error
    if entry.login_module != login_module:
        raise InvalidBrokerConfigError(
            name, f"The login module in {name} must be {login_module}, not {entry.login_module}."
        )
    if mechanism == OAUTHBEARER:
        skew = entry.options.get(CLOCK_SKEW_OPTION, "0").strip() or "0"
        if not skew.isdecimal():
            raise InvalidBrokerConfigError(
                name, f"The option {CLOCK_SKEW_OPTION} in {name} must be a non-negative integer."
            )
    return entry
