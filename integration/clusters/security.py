"""Secured listeners of a test cluster, and a development CA with certificates.

A cluster keeps its plaintext listener for traffic between nodes. Each `SecuredListener`
adds a port to every broker. The CA and all keys exist only in the directory of the cluster.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import load_pem_private_key, pkcs12

from broker_ref.io.certificates import CertificateAuthority
from broker_ref.security.development import ClientSettings
from integration.clusters.base import Links
from integration.clusters.ports import free_ports

HOST = "localhost"
Protocol = Literal["SSL", "SASL_PLAINTEXT", "SASL_SSL"]
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
_MODULES = "org.apache.kafka.common.security"


@dataclass(frozen=True, slots=True, kw_only=True)
class SecuredListener:
    """A secured listener that is added to every broker.

    `names` are the host names and IP addresses in the broker's certificate. `session_ms` is the
    value of the broker config `connections.max.reauth.ms`.
    """

    name: str
    protocol: Protocol
    mechanisms: tuple[str, ...] = MECHANISMS
    names: tuple[str, ...] = ("localhost", "127.0.0.1")
    is_expired: bool = False
    requires_certificate: bool = False
    session_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """The secured listeners of a cluster. `users` maps each user name to its password."""

    listeners: tuple[SecuredListener, ...]
    users: Mapping[str, str] = field(default_factory=dict)

    def broker_configs(
        self, addresses: Mapping[str, str], certificates: Certificates
    ) -> Mapping[str, str]:
        """Return the configs of one broker. `addresses` maps listener names to addresses."""
        protocols = {one.name: one.protocol for one in self.listeners}
        configs = {
            "listeners": ",".join(f"{name}://{address}" for name, address in addresses.items()),
            "listener.security.protocol.map": ",".join(
                f"{name}:{protocols.get(name, 'PLAINTEXT')}" for name in (*addresses, "CONTROLLER")
            ),
        }
        for listener in self.listeners:
            prefix = f"listener.name.{listener.name.lower()}."
            for name, value in self._of(listener, certificates):
                configs[prefix + name] = value
        return configs

    def _of(
        self, listener: SecuredListener, certificates: Certificates
    ) -> Iterable[tuple[str, str]]:
        if listener.protocol != "SASL_PLAINTEXT":
            yield "ssl.keystore.type", "PEM"
            yield "ssl.keystore.location", str(certificates.server(listener))
            yield "ssl.truststore.type", "PEM"
            yield "ssl.truststore.location", str(certificates.ca)
            yield "ssl.client.auth", "required" if listener.requires_certificate else "none"
        if listener.protocol != "SSL":
            yield "sasl.enabled.mechanisms", ",".join(listener.mechanisms)
            for mechanism in listener.mechanisms:
                yield f"{mechanism.lower()}.sasl.jaas.config", self._jaas(mechanism)
                if listener.session_ms is not None:
                    name = f"{mechanism.lower()}.connections.max.reauth.ms"
                    yield name, str(listener.session_ms)

    def _jaas(self, mechanism: str) -> str:
        if mechanism == "PLAIN":
            users = " ".join(f'user_{name}="{word}"' for name, word in self.users.items())
            return f"{_MODULES}.plain.PlainLoginModule required {users};"
        if mechanism == "OAUTHBEARER":
            claim = 'unsecuredLoginStringClaim_sub="broker"'
            return f"{_MODULES}.oauthbearer.OAuthBearerLoginModule required {claim};"
        return f"{_MODULES}.scram.ScramLoginModule required;"


class SecuredListeners:
    """The ports and certificates of a cluster's secured listeners.

    `directory` contains the certificates.
    """

    def __init__(self, security: Security, directory: Path) -> None:
        self.certificates = Certificates(directory)
        self._security = security
        self._addresses: dict[int, Mapping[str, str]] = {}

    @property
    def names(self) -> list[str]:
        """The names of the listeners."""
        return [listener.name for listener in self._security.listeners]

    def broker_configs(
        self, broker_id: int, plaintext: str, *, advertised: str, links: Links
    ) -> Mapping[str, str]:
        """Return the configs of one broker with new ports.

        `plaintext` is the address of the plaintext listener.
        """
        self.set_ports(broker_id, free_ports(len(self.names)))
        secured = self._addresses[broker_id]
        linked = {name: links.to_secured(broker_id, name, at) for name, at in secured.items()}
        self._addresses[broker_id] = linked
        addresses = {"PLAINTEXT": advertised, **linked}
        return {
            **self._security.broker_configs({"PLAINTEXT": plaintext, **secured}, self.certificates),
            "advertised.listeners": ",".join(f"{n}://{each}" for n, each in addresses.items()),
        }

    def configs_with_free_ports(self) -> Mapping[str, str]:
        """Return configs that make each broker listen on free ports.

        Call `set_ports` with the actual ports after the broker has started.
        """
        addresses = dict.fromkeys(("PLAINTEXT", *self.names), "127.0.0.1:0")
        return self._security.broker_configs(addresses, self.certificates)

    def set_ports(self, broker_id: int, ports: Iterable[int]) -> None:
        """Set the ports of a broker's listeners, in the order of `names`."""
        self._addresses[broker_id] = {
            name: f"{HOST}:{port}" for name, port in zip(self.names, ports, strict=True)
        }

    def scram_arguments(self) -> list[str]:
        """Return the `--add-scram` arguments for a new cluster, one for each SCRAM credential."""
        return [
            f"{mechanism}=[name={user},password={password}]"
            for user, password in self._security.users.items()
            for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512")
        ]

    def servers(self, listener: str) -> str:
        """Return the addresses of a listener on all brokers, as `localhost:PORT[,...]`."""
        return ",".join(addresses[listener] for addresses in self._addresses.values())

    def scram_options(self, listener: str, user: str) -> dict[str, str]:
        """Return the options with which a connector connects over SASL_SSL with SCRAM-SHA-512."""
        return ClientSettings(
            bootstrap_servers=self.servers(listener),
            protocol="SASL_SSL",
            mechanism="SCRAM-SHA-512",
            user=user,
            password=self._security.users[user],
            ca=str(self.certificates.ca),
        ).data_source()


class Certificates:
    """A CA in a directory, and the certificates that it issues."""

    def __init__(self, directory: Path) -> None:
        self._authority = CertificateAuthority(directory)
        self.ca = self._authority.path
        """The certificate of the CA."""

    def server(self, listener: SecuredListener) -> Path:
        """Return a PEM file with the key and the certificate of a listener."""
        yesterday = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
        return self.issue(
            listener.name.lower(),
            *listener.names,
            not_after=yesterday if listener.is_expired else None,
        )

    def issue(
        self, name: str, *identities: str, not_after: datetime.datetime | None = None
    ) -> Path:
        """Return a PEM file `NAME.pem` with a private key (PKCS#8) and its certificate."""
        return self._authority.issue(name, name, identities, not_after=not_after)

    def encrypted_key(self, pem: Path, password: str) -> Path:
        """Encrypt the private key of a PEM file. Return the path of the new file."""
        path = pem.with_suffix(".key")
        key = load_pem_private_key(pem.read_bytes(), None)
        path.write_bytes(_pkcs8(key, serialization.BestAvailableEncryption(password.encode())))
        return path

    def pkcs12(self, pem: Path, password: str) -> Path:
        """Store the key and certificate from a PEM file in a PKCS#12 file, and return its path."""
        path = pem.with_suffix(".p12")
        key = load_pem_private_key(pem.read_bytes(), None)
        chain = x509.load_pem_x509_certificates(pem.read_bytes())
        path.write_bytes(
            pkcs12.serialize_key_and_certificates(
                b"client",
                key,  # type: ignore[arg-type]
                chain[0],
                chain[1:],
                serialization.BestAvailableEncryption(password.encode()),
            )
        )
        return path


def _pkcs8(key: object, encryption: serialization.KeySerializationEncryption) -> bytes:
    """Return a key in PKCS#8, the only format that Kafka reads."""
    return bytes(
        key.private_bytes(  # type: ignore[attr-defined]
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
        )
    )
