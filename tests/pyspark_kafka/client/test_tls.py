"""Tests of Java's TLS stores: PEM is supported, and errors for other formats name a solution."""

from __future__ import annotations

import pytest

from pyspark_kafka.client.java_names import librdkafka_properties
from pyspark_kafka.errors import OptionError


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            {"ssl.truststore.type": "PEM", "ssl.truststore.location": "ca"},
            {"ssl.ca.location": "ca"},
        ),
        ({"ssl.truststore.location": "ca.pem"}, {"ssl.ca.location": "ca.pem"}),
        ({"ssl.truststore.certificates": "CERT"}, {"ssl.ca.pem": "CERT"}),
        (
            {"ssl.keystore.key": "KEY", "ssl.keystore.certificate.chain": "CERT"},
            {"ssl.key.pem": "KEY", "ssl.certificate.pem": "CERT"},
        ),
        (
            {"ssl.keystore.type": "PEM", "ssl.keystore.location": "me", "ssl.key.password": "x"},
            {
                "ssl.key.location": "me",
                "ssl.certificate.location": "me",
                "ssl.key.password": "x",
            },
        ),
        (
            {"ssl.keystore.location": "me.p12", "ssl.keystore.password": "x"},
            {"ssl.keystore.location": "me.p12", "ssl.keystore.password": "x"},
        ),
    ],
)
def test_supported_stores(given: dict[str, str], expected: dict[str, str]) -> None:
    protocol = {"security.protocol": "SSL"}
    assert librdkafka_properties({**protocol, **given}, role="admin") == {**protocol, **expected}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"ssl.truststore.location": "ca.jks"}, r"\bJKS\b.*'kafka\.ssl\.ca\.location'"),
        ({"ssl.truststore.location": "ca"}, r"\bJKS\b.*\bkeytool\b"),
        ({"ssl.truststore.location": "ca.p12"}, r"\bPKCS12\b"),
        ({"ssl.keystore.type": "jks", "ssl.keystore.location": "x"}, r"-deststoretype PKCS12"),
        (
            {"ssl.truststore.location": "ca.pem", "ssl.truststore.password": "hush"},
            r"'kafka\.ssl\.truststore\.password'",
        ),
        (
            {"ssl.keystore.location": "me.pem", "ssl.keystore.password": "hush"},
            r"'kafka.ssl.key.password'",
        ),
        (
            {"ssl.keystore.key": "KEY", "ssl.keystore.password": "hush"},
            r"'kafka.ssl.keystore.location'",
        ),
    ],
)
def test_unsupported_store_is_rejected(given: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message) as caught:
        librdkafka_properties(given, role="admin")
    assert "hush" not in str(caught.value)
