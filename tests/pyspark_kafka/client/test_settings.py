"""Tests that librdkafka validates the settings when a client is opened, before any task."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from pyspark_kafka.client.factory import open_client
from pyspark_kafka.errors import OptionError
from tests.pyspark_kafka.client.records import options

Role = Literal["consumer", "producer"]
NOWHERE = "127.0.0.1:1"


@pytest.mark.parametrize(
    ("role", "settings", "message"),
    [
        ("consumer", {"socket_timeout_ms": "soon"}, "socket.timeout.ms"),
        (
            "consumer",
            {"fetch_min_bytes": "-5"},
            r"'kafka.fetch.min.bytes'.*'-5'.* range [0-9.]+",
        ),
        ("producer", {"retries": "0"}, r"'kafka.retries'.*'0'.*must be set >= 1"),
        ("producer", {"max_request_size": "9"}, r"'kafka.max.request.size'.*'9'"),
        ("producer", {"max_in_flight": "10"}, r"'kafka.max.in.flight'.*'10'.*<= 5"),
        (
            "producer",
            {"delivery_timeout_ms": "9", "linger_ms": "10"},
            "'kafka.delivery.timeout.ms'",
        ),
        ("producer", {"compression_type": "rar"}, "compression"),
        (
            "producer",
            {"max_in_flight_requests_per_connection": "6"},
            "'kafka.max.in.flight.requests.per.connection'.*'6'",
        ),
        ("producer", {"delivery_timeout_ms": "0"}, "'kafka.delivery.timeout.ms'.*'0'"),
        ("consumer", {"default_api_timeout_ms": "x"}, "'kafka.default.api.timeout.ms'.*'x'"),
        (
            "consumer",
            {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "GSSAPI"},
            "Kerberos",
        ),
        (
            "consumer",
            {"security_protocol": "ssl", "ssl_ca_location": "/no/such"},
            "'kafka.ssl.ca.location'.*'/no/such'",
        ),
        (
            "consumer",
            {"security_protocol": "ssl", "ssl_key_pem": "hush"},
            "'kafka.ssl.key.pem'",
        ),
    ],
)
def test_invalid_setting_is_rejected(role: Role, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message) as caught:
        open_client(options(NOWHERE, **settings), role=role)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("request_timeout_ms", "305000"),
        ("max_block_ms", str(2**63 - 1)),
        ("batch_size", "0"),
        ("retry_backoff_ms", "0"),
        ("connections_max_idle_ms", "-1"),
        ("metadata_max_age_ms", str(2**63 - 1)),
    ],
)
def test_value_of_javas_wider_range_is_accepted(name: str, value: str) -> None:
    settings: dict[str, Any] = {name: value}
    open_client(options(NOWHERE, **settings), role="producer").close()


@pytest.mark.parametrize(
    "settings",
    [
        {"max_poll_interval_ms": "10000"},  # less than the default of `session.timeout.ms`
        {"group_protocol": "consumer", "session_timeout_ms": "10000"},
        {"group_protocol": "consumer", "heartbeat_interval_ms": "1000"},
    ],
)
def test_settings_of_group_membership_have_no_effect(settings: dict[str, Any]) -> None:
    open_client(options(NOWHERE, engine="librdkafka", **settings)).close()


@pytest.mark.parametrize("role", ["consumer", "producer"])
def test_settings_of_java_open_a_client(role: Role) -> None:
    java: dict[str, Any] = {
        "client_id": "me",
        "compression_type": "lz4",
        "delivery_timeout_ms": "60000",
        "fetch_max_wait_ms": "100",
        "linger_ms": "5",
        "max_request_size": "2097152",
        "request_timeout_ms": "30000",
        "sasl_jaas_config": "PlainLoginModule required username=a password=hush;",
        "sasl_mechanism": "PLAIN",
        "security_protocol": "SASL_PLAINTEXT",
    }
    opened = options(NOWHERE, **java)
    with open_client(opened, role=role) as client:
        assert "hush" not in repr(client) + repr(opened)
