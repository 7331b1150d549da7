"""Java's TLS stores: PEM is taken over, what OpenSSL cannot read is refused with the way out."""

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
    assert librdkafka_properties(given, role="admin") == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"ssl.truststore.location": "ca.jks"}, r"is a JKS store.*'kafka.ssl.ca.location'"),
        ({"ssl.truststore.location": "ca"}, r"is a JKS store.*keytool"),
        ({"ssl.truststore.location": "ca.p12"}, r"is a PKCS12 store"),
        ({"ssl.keystore.type": "jks", "ssl.keystore.location": "x"}, r"-deststoretype PKCS12"),
        (
            {"ssl.truststore.location": "ca.pem", "ssl.truststore.password": "hush"},
            r"no password",
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
