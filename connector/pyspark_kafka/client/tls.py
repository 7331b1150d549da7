"""Java's key stores and trust stores as librdkafka's TLS properties.

Purpose: PEM stores are taken over, a PKCS#12 key store too; Java's own formats, which OpenSSL
cannot read, are refused with the command that converts them. Invariant: no key, password or
certificate is in a message. What it must not know: other settings than TLS's.
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


def tls_properties(given: Mapping[str, str]) -> dict[str, str]:
    """librdkafka's properties for the Java store settings among these; raises `OptionError`."""
    return {**_trust_store(given), **_key_store(given)}


def _trust_store(given: Mapping[str, str]) -> dict[str, str]:
    properties = {}
    location = given.get("ssl.truststore.location")
    kind = _kind(given.get("ssl.truststore.type"), location)
    if "ssl.truststore.certificates" in given:
        properties["ssl.ca.pem"] = given["ssl.truststore.certificates"]
    if location is not None and kind != "PEM":
        raise OptionError(
            f"option 'kafka.ssl.truststore.location' is a {kind} store, which OpenSSL cannot read "
            "as one: export its certificates (keytool -list -rfc -keystore STORE > ca.pem) and "
            "set 'kafka.ssl.ca.location' to that file, or set 'kafka.ssl.truststore.type' to PEM"
        )
    if location is not None:
        properties["ssl.ca.location"] = location
    if "ssl.truststore.password" in given:
        raise OptionError(
            "option 'kafka.ssl.truststore.password' is refused: a PEM trust store has no password"
        )
    return properties


def _key_store(given: Mapping[str, str]) -> dict[str, str]:
    location = given.get("ssl.keystore.location")
    password = given.get("ssl.keystore.password")
    kind = _kind(given.get("ssl.keystore.type"), location, unknown="PKCS12")
    properties = {}
    if "ssl.keystore.key" in given:
        properties["ssl.key.pem"] = given["ssl.keystore.key"]
    if "ssl.keystore.certificate.chain" in given:
        properties["ssl.certificate.pem"] = given["ssl.keystore.certificate.chain"]
    if location is None and password is not None:
        raise OptionError(
            "option 'kafka.ssl.keystore.password' opens nothing without "
            "'kafka.ssl.keystore.location': give that, or for a key given as PEM put its "
            "passphrase into 'kafka.ssl.key.password'"
        )
    if location is None:
        return properties
    if kind == "PEM":
        if password is not None:
            raise OptionError(
                "option 'kafka.ssl.keystore.password' is refused for a PEM key store: the key's "
                "own passphrase goes into 'kafka.ssl.key.password'"
            )
        return {
            **properties,
            "ssl.key.location": location,
            "ssl.certificate.location": location,
        }
    if kind != "PKCS12":
        raise OptionError(
            f"option 'kafka.ssl.keystore.location' is a {kind} store, which OpenSSL cannot read: "
            "convert it (keytool -importkeystore -srckeystore STORE -destkeystore client.p12 "
            "-deststoretype PKCS12) and set 'kafka.ssl.keystore.type' to PKCS12"
        )
    properties["ssl.keystore.location"] = location
    if password is not None:
        properties["ssl.keystore.password"] = password
    return properties


def _kind(given: str | None, location: str | None, *, unknown: str = "JKS") -> str:
    """The store's type: as given, else by the file's name, else what that store mostly is."""
    if given is not None:
        return given.upper()
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
