"""Tests of the listener configs, with the errors of Kafka's `KafkaConfig`."""

from __future__ import annotations

import pytest

from broker_ref.config import BrokerConfig, InvalidBrokerConfigError
from broker_ref.security.configs import SecurityConfigs
from broker_ref.security.listeners import (
    Endpoint,
    Listeners,
    SecurityProtocol,
    parse_listeners,
    ports_of,
    with_ports,
)

DEFAULT = Endpoint(listener="PLAINTEXT", host="default.test", port=9092)


def parsed(**configs: str) -> Listeners:
    """Parse configs, whose underscores represent dots."""
    named = {name.replace("_", "."): value for name, value in configs.items()}
    return parse_listeners(SecurityConfigs.from_mapping(named), default=DEFAULT)


def test_without_configs_there_is_one_plaintext_listener() -> None:
    assert parsed() == Listeners(bound=(DEFAULT,), advertised=(DEFAULT,), inter_broker="PLAINTEXT")


def test_names_are_converted_to_upper_case() -> None:
    listeners = parsed(
        listeners="internal://h:1,External://[::1]:2",
        listener_security_protocol_map="INTERNAL:PLAINTEXT,external:sasl_ssl",
        inter_broker_listener_name="Internal",
    )
    assert listeners.inter_broker == "INTERNAL"
    assert listeners.bound[1] == Endpoint(
        listener="EXTERNAL", host="::1", port=2, protocol=SecurityProtocol.SASL_SSL
    )
    assert [str(each) for each in listeners.bound] == ["INTERNAL://h:1", "EXTERNAL://[::1]:2"]


def test_the_inter_broker_endpoint_is_first_and_port_0_is_replaced() -> None:
    listeners = parsed(
        listeners="PLAINTEXT://h:0,SSL://:9093",
        advertised_listeners="PLAINTEXT://a:0,SSL://b:7",
        security_inter_broker_protocol="SSL",
    )
    resolved = listeners.advertised_with_ports({"PLAINTEXT": 4444, "SSL": 9093})
    assert [str(each) for each in resolved] == ["SSL://b:7", "PLAINTEXT://a:4444"]


INVALID = [
    ({"listeners": "PLAINTEXT:h:1"}, "Unable to parse PLAINTEXT:h:1 to a broker endpoint"),
    ({"listeners": "OTHER://h:1"}, "No security protocol defined for listener OTHER"),
    ({"listeners": "://h:1"}, "listener name is null or empty"),
    ({"listeners": "PLAINTEXT://h:70000"}, "port 70000"),
    ({"listeners": "SSL://h:1,ssl://h:2"}, "different name"),
    ({"listeners": "SSL://h:1,PLAINTEXT://h:1"}, "different port"),
    ({"listeners": "SSL://127.0.0.1:1,PLAINTEXT://10.0.0.1:1"}, "different port"),
    ({"listeners": "PLAINTEXT://0.0.0.0:1"}, "nonroutable meta-address 0.0.0.0"),
    ({"listeners": "PLAINTEXT://:1"}, "listens on all interfaces"),
    ({"listeners": "SSL://h:1"}, "must be a listener name defined in advertised.listeners"),
    (
        {"listeners": "PLAINTEXT://h:1", "advertised_listeners": "PLAINTEXT://h:1,SSL://h:2"},
        "must be equal to or a subset",
    ),
    ({"listener_security_protocol_map": "A:TLS"}, "Invalid security protocol `TLS`"),
    ({"listener_security_protocol_map": "A"}, "not in the form LISTENER:PROTOCOL"),
    ({"security_inter_broker_protocol": "TLS"}, "Invalid security protocol `TLS`"),
    ({"inter_broker_listener_name": "X"}, "not found in listener.security.protocol.map"),
    (
        {"inter_broker_listener_name": "SSL", "security_inter_broker_protocol": "SSL"},
        "Only one of inter.broker.listener.name and security.inter.broker.protocol",
    ),
]


@pytest.mark.parametrize(("configs", "message"), INVALID)
def test_invalid_listeners_are_rejected(configs: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidBrokerConfigError, match=message):
        parsed(**configs)


def test_an_ipv4_and_an_ipv6_listener_may_share_a_port() -> None:
    assert len(parsed(listeners="SSL://[::1]:1,PLAINTEXT://127.0.0.1:1").bound) == 2


def test_ports_can_be_replaced() -> None:
    text = "A://[::1]:0, B://h:9092"
    assert ports_of(text) == [0, 9092]
    assert with_ports(text, [1, 2]) == "A://[::1]:1,B://h:2"


def test_the_most_specific_value_of_a_config_is_used() -> None:
    configs = SecurityConfigs.from_mapping(
        {
            "connections.max.reauth.ms": "1",
            "listener.name.a.connections.max.reauth.ms": "2",
            "listener.name.a.plain.connections.max.reauth.ms": "3",
        }
    )
    name = "connections.max.reauth.ms"
    assert configs.value(name) == 1
    assert configs.value(name, listener="B") == 1
    assert configs.value(name, listener="A", mechanism="SCRAM-SHA-256") == 2
    assert configs.value(name, listener="A", mechanism="PLAIN") == 3
    assert configs.value("ssl.client.auth", listener="A") == "none"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("listener.name.a.ssl.client.auth", "maybe", r"listener\.name\.a\.ssl\.client\.auth"),
        ("listener.name.a.listeners", "x", "Unknown broker config"),
        ("listener.name.a.ssl.clientauth", "none", "Unknown broker config"),
        ("connections.max.reauth.ms", "-1", "must be between"),
        ("connection.failed.authentication.delay.ms", "600000", "less than connections.max.idle"),
    ],
)
def test_invalid_security_configs_are_rejected(name: str, value: str, message: str) -> None:
    with pytest.raises(InvalidBrokerConfigError, match=message):
        BrokerConfig.from_mapping({name: value})


def test_secrets_are_not_printed() -> None:
    config = BrokerConfig.from_mapping({"ssl.key.password": "hunter2"})
    assert "hunter2" not in repr(config)
