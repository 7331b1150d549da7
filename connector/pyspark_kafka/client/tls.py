"""Converts the Java client's key store and trust store settings to librdkafka properties.

PEM stores and PKCS#12 key stores are supported. OpenSSL cannot read Java's JKS format. The error
for a JKS store contains the command that converts it. Invariant: no error contains a key, a
password or a certificate. This module handles only TLS settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark_kafka.errors import OptionError

TLS_NAMES: Final = frozenset(
    {
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


def tls_properties(kafka: Mapping[str, str]) -> dict[str, str]:
    """Return the librdkafka properties for Java key and trust stores. Raises `OptionError`."""
    return {**_trust_store(kafka), **_key_store(kafka)}


def _trust_store(kafka: Mapping[str, str]) -> dict[str, str]:
    properties = {}
    location = kafka.get("ssl.truststore.location")
    kind = _kind(kafka.get("ssl.truststore.type"), location)
    if "ssl.truststore.certificates" in kafka:
        properties["ssl.ca.pem"] = kafka["ssl.truststore.certificates"]
    if location is not None and kind != "PEM":
        raise OptionError(
            f"Option 'kafka.ssl.truststore.location' refers to a {kind} store, but OpenSSL reads "
            "only PEM trust stores.",
            advice="Export the certificates from the store (keytool -list -rfc -keystore STORE > "
            "ca.pem) and set 'kafka.ssl.ca.location' to the path of ca.pem. If the store is a PEM "
            "file, set 'kafka.ssl.truststore.type' to PEM.",
            option="kafka.ssl.truststore.location",
        )
    if location is not None:
        properties["ssl.ca.location"] = location
    if "ssl.truststore.password" in kafka:
        raise OptionError(
            "Option 'kafka.ssl.truststore.password' is not supported, because PEM trust stores "
            "have no password.",
            advice="Remove the option.",
            option="kafka.ssl.truststore.password",
        )
    return properties


def _key_store(kafka: Mapping[str, str]) -> dict[str, str]:
    location = kafka.get("ssl.keystore.location")
    password = kafka.get("ssl.keystore.password")
    kind = _kind(kafka.get("ssl.keystore.type"), location, unknown="PKCS12")
    properties = {}
    if "ssl.keystore.key" in kafka:
        properties["ssl.key.pem"] = kafka["ssl.keystore.key"]
    if "ssl.keystore.certificate.chain" in kafka:
        properties["ssl.certificate.pem"] = kafka["ssl.keystore.certificate.chain"]
    if location is None and password is not None:
        raise OptionError(
            "Option 'kafka.ssl.keystore.password' has no effect without "
            "'kafka.ssl.keystore.location'.",
            advice="Set 'kafka.ssl.keystore.location'. If the key is a PEM key, set "
            "'kafka.ssl.key.password' to its passphrase instead.",
            option="kafka.ssl.keystore.password",
        )
    if location is None:
        return properties
    if kind == "PEM":
        if password is not None:
            raise OptionError(
                "Option 'kafka.ssl.keystore.password' is not supported for a PEM key store.",
                advice="Set 'kafka.ssl.key.password' to the passphrase of the key.",
                option="kafka.ssl.keystore.password",
            )
        return {
            **properties,
            "ssl.key.location": location,
            "ssl.certificate.location": location,
        }
    if kind != "PKCS12":
        raise OptionError(
            f"Option 'kafka.ssl.keystore.location' refers to a {kind} store, which OpenSSL cannot "
            "read.",
            advice="Convert the store (keytool -importkeystore -srckeystore STORE -destkeystore "
            "client.p12 -deststoretype PKCS12), set 'kafka.ssl.keystore.location' to the path of "
            "client.p12, and set 'kafka.ssl.keystore.type' to PKCS12.",
            option="kafka.ssl.keystore.location",
        )
    properties["ssl.keystore.location"] = location
    if password is not None:
        properties["ssl.keystore.password"] = password
    return properties


def _kind(store_type: str | None, location: str | None, *, unknown: str = "JKS") -> str:
    """Return the configured store type, or the type that the file suffix implies, or `unknown`."""
    if store_type is not None:
        return store_type.upper()
    suffix = (location or "").rpartition(".")[2].lower()
    by_suffix = {
        "jks": "JKS",
        "p12": "PKCS12",
        "pfx": "PKCS12",
        "pem": "PEM",
        "crt": "PEM",
        "cer": "PEM",
    }
    return by_suffix.get(suffix, unknown)
