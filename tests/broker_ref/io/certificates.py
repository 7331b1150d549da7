"""Certificates for tests of TLS, created once per process."""

from __future__ import annotations

import ssl
from functools import cache
from pathlib import Path

import trustme


@cache
def authority() -> trustme.CA:
    return trustme.CA(organization_name="Tests")


@cache
def broker_certificate() -> trustme.LeafCert:
    return authority().issue_cert("127.0.0.1", "localhost", common_name="broker")


@cache
def client_certificate() -> trustme.LeafCert:
    return authority().issue_cert(
        "alice@example.test",
        common_name="alice",
        organization_name="Tests",
        organization_unit_name="QA",
    )


@cache
def foreign_certificate() -> trustme.LeafCert:
    """Return a client certificate of an authority that the broker does not trust."""
    return trustme.CA().issue_cert("mallory@example.test", common_name="mallory")


def key_of(certificate: trustme.LeafCert) -> str:
    return certificate.private_key_pem.bytes().decode()


def chain_of(certificate: trustme.LeafCert) -> str:
    return "".join(blob.bytes().decode() for blob in certificate.cert_chain_pems)


def authority_pem() -> str:
    return authority().cert_pem.bytes().decode()


def tls_configs(**others: str) -> dict[str, str]:
    """Return the configs of a TLS listener; dots of the other configs are underscores."""
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.key": key_of(broker_certificate()),
        "ssl.keystore.certificate.chain": chain_of(broker_certificate()),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": authority_pem(),
        **{name.replace("_", "."): value for name, value in others.items()},
    }


def write(directory: Path, name: str, text: str) -> str:
    path = directory / name
    path.write_text(text)
    return str(path)


def client_tls(certificate: trustme.LeafCert | None = None) -> ssl.SSLContext:
    """Return the context of a client that trusts the broker."""
    context = ssl.create_default_context()
    authority().configure_trust(context)
    if certificate is not None:
        certificate.configure_cert(context)
    return context
