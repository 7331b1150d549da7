"""Tests of the TLS and SASL settings of a listener."""

from __future__ import annotations

import pytest

from broker_ref.config import InvalidBrokerConfigError
from broker_ref.security.configs import SecurityConfigs
from broker_ref.security.jaas import InvalidJaasError, parse_jaas
from broker_ref.security.listeners import Endpoint, SecurityProtocol
from broker_ref.security.settings import (
    INTER_BROKER_MECHANISM,
    ListenerSettings,
    listener_settings,
    node_settings,
)

PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
JAAS = "listener.name.l.plain.sasl.jaas.config"
PEM = {"ssl.keystore.type": "PEM", "ssl.truststore.type": "PEM"}
INLINE = {**PEM, "ssl.keystore.key": "K", "ssl.keystore.certificate.chain": "C"}


def settings(protocol: SecurityProtocol, configs: dict[str, str]) -> ListenerSettings:
    endpoint = Endpoint(listener="L", host="h", port=1, protocol=protocol)
    return listener_settings(SecurityConfigs.from_mapping(configs), endpoint)


def test_inline_keys() -> None:
    tls = settings(
        SecurityProtocol.SSL,
        {**INLINE, "ssl.key.password": "P", "listener.name.l.ssl.client.auth": "required"},
    ).tls
    assert tls is not None
    assert (tls.key_store.key, tls.key_store.key_password) == ("K", "P")
    assert (tls.client_auth, tls.trust_store) == ("required", None)
    assert "'K'" not in repr(tls)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("ssl.client.auth", "none"), ("listener.name.l.ssl.client.auth", "required")],
)
def test_certificates_are_requested_besides_sasl_only_by_the_listener(
    name: str, expected: str
) -> None:
    configs = {
        **INLINE,
        "listener.name.l.sasl.enabled.mechanisms": "PLAIN",
        JAAS: f"{PLAIN_MODULE} required;",
    }
    tls = settings(SecurityProtocol.SASL_SSL, {**configs, name: "required"}).tls
    assert tls is not None
    assert tls.client_auth == expected


@pytest.mark.parametrize(
    ("configs", "message"),
    [
        ({}, "ssl.keystore"),
        ({"ssl.keystore.location": "f"}, "ssl.keystore.type"),
        ({**PEM, "ssl.keystore.key": "K"}, "ssl.keystore.certificate.chain"),
        ({**INLINE, "ssl.keystore.location": "f"}, "ssl.keystore.location"),
        ({**INLINE, "ssl.keystore.password": "p"}, "cannot be specified with PEM"),
        ({**INLINE, "ssl.truststore.password": "p"}, "ssl.truststore.password"),
        ({**INLINE, "ssl.enabled.protocols": "TLSv1"}, "ssl.enabled.protocols"),
        ({**INLINE, "ssl.principal.mapping.rules": "RULE:x"}, "Invalid rule"),
    ],
)
def test_invalid_tls_settings_are_rejected(configs: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidBrokerConfigError, match=message):
        settings(SecurityProtocol.SSL, configs)


def test_a_config_of_a_listener_has_the_limits_of_the_config() -> None:
    name = "listener.name.l.oauthbearer.sasl.oauthbearer.jwks.endpoint.refresh.ms"
    with pytest.raises(InvalidBrokerConfigError) as raised:
        SecurityConfigs.from_mapping({name: "0"})
    assert raised.value.name == name


def test_mechanisms_and_their_users() -> None:
    configs = {
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        JAAS: f'{PLAIN_MODULE} required user_alice="secret";',
        "listener.name.l.scram-sha-256.sasl.jaas.config": f"{SCRAM_MODULE} required;",
        "listener.name.l.plain.connections.max.reauth.ms": "7",
    }
    sasl = settings(SecurityProtocol.SASL_PLAINTEXT, configs).sasl
    assert sasl is not None
    assert sasl.mechanisms["PLAIN"].jaas.options == {"user_alice": "secret"}
    assert [each.max_reauth_ms for each in sasl.mechanisms.values()] == [7, 0]
    assert "secret" not in repr(sasl)


@pytest.mark.parametrize(
    ("configs", "message"),
    [
        ({}, "Use one or more of PLAIN"),
        ({"sasl.enabled.mechanisms": "PLAIN"}, JAAS),
        ({"sasl.enabled.mechanisms": "PLAIN", JAAS: "x"}, "control flag not specified"),
        ({"sasl.enabled.mechanisms": "PLAIN", JAAS: "x required;"}, "must be org.apache"),
    ],
)
def test_invalid_sasl_settings_are_rejected(configs: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidBrokerConfigError, match=message):
        settings(SecurityProtocol.SASL_PLAINTEXT, configs)


@pytest.mark.parametrize(
    ("mechanism", "options", "message"),
    [
        ("PLAIN", 'username="b" password="p"', None),
        ("PLAIN", 'username="b"', "'password'"),
        ("GSSAPI", "", "must be included in sasl.enabled.mechanisms"),
    ],
)
def test_the_login_of_brokers(mechanism: str, options: str, message: str | None) -> None:
    values = {
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": mechanism,
        JAAS: f"{PLAIN_MODULE} required {options};",
    }
    found = settings(SecurityProtocol.SASL_PLAINTEXT, values)
    configs = SecurityConfigs.from_mapping(values)
    if message is None:
        assert node_settings(configs, found, INTER_BROKER_MECHANISM).mechanism == "PLAIN"
    else:
        with pytest.raises(InvalidBrokerConfigError, match=message):
            node_settings(configs, found, INTER_BROKER_MECHANISM)


def test_jaas_options_may_be_quoted_and_escaped() -> None:
    entry = parse_jaas(
        """org.Module required // a comment
           a=plain b="with \\" quote; and =" /* more */ c='x' user_a-b="";"""
    )
    assert entry.login_module == "org.Module"
    assert entry.options == {"a": "plain", "b": 'with " quote; and =', "c": "x", "user_a-b": ""}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Login module not specified"),
        ("M", "control flag not specified"),
        ("M maybe;", "Invalid login module control flag"),
        ("M required a=1", "not terminated by semi-colon"),
        ("M required a;", "Value not specified"),
        ('M required a="secret', "Unterminated quote"),
        ("M required; N required;", "contains 2 login modules"),
    ],
)
def test_invalid_jaas_configs_are_rejected(text: str, message: str) -> None:
    with pytest.raises(InvalidJaasError, match=message) as raised:
        parse_jaas(text)
    assert "secret" not in str(raised.value)
