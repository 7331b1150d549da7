"""librdkafka itself judges the settings when a client is opened, before any task."""

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
        ("consumer", {"fetch_min_bytes": "-5"}, "outside allowed range"),
        ("producer", {"compression_type": "rar"}, "compression"),
        ("producer", {"max_in_flight_requests_per_connection": "6"}, "max.in.flight"),
        ("producer", {"delivery_timeout_ms": "0"}, "'kafka.delivery.timeout.ms' is '0'"),
        ("consumer", {"default_api_timeout_ms": "x"}, "'kafka.default.api.timeout.ms' is 'x'"),
        (
            "consumer",
            {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "GSSAPI"},
            r"Kerberos \(GSSAPI\) is not in the confluent-kafka wheels.*use PLAIN",
        ),
        (
            "consumer",
            {"security_protocol": "ssl", "ssl_ca_location": "/no/such"},
            "ssl.ca.location",
        ),
        ("consumer", {"security_protocol": "ssl", "ssl_key_pem": "hush"}, "ssl.key.pem"),
    ],
)
def test_refused(role: Role, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message) as caught:
        open_client(options(NOWHERE, **settings), role=role)
    assert "hush" not in str(caught.value)


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
