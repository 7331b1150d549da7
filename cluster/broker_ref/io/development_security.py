"""The CA, certificates and passwords of a development cluster, in its data directory.

    security/   the CA, the brokers' certificate and the passwords
    clients/    client settings for users to copy

All files are readable only by their owner. Invariant: the CA and the passwords stay the same after
a restart. The brokers' certificate is renewed if the host names of the brokers have changed or if
the certificate is about to expire.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from broker_ref.controller.records import UserScramCredentialRecord
from broker_ref.controller.scram import parse_scram_argument
from broker_ref.io.private_files import private_directory, write_private
from broker_ref.io.settings import ANY_ADDRESS, BrokerStartError, missing_cryptography
from broker_ref.security.development import (
    ADMIN,
    CLIENT,
    USERS,
    ClientSettings,
    Security,
    broker_configs,
)
from broker_ref.security.listeners import LISTENERS
from broker_ref.security.properties import format_properties
from broker_ref.security.scram import ScramMechanism

if TYPE_CHECKING:
    from broker_ref.io.certificates import CertificateAuthority

_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
_PASSWORD_BYTES: Final = 24


class DevelopmentSecurity:
    """The files and secrets of a secured cluster, which are created if they are missing.

    `data` is the data directory of the cluster. `is_new` is False if the directory already contains
    a cluster. A cluster that was created without security cannot be secured later. The brokers'
    certificate contains the names in `hosts` and the names of the loopback interface.

    Raises: BrokerStartError if `cryptography` is not installed, the files are corrupt or the
    existing cluster is not secured, OSError if a file cannot be read or written.
    """

    def __init__(
        self, data: Path, security: Security, *, is_new: bool, hosts: Sequence[str] = ()
    ) -> None:
        self.security: Final = security
        self._data = data.absolute()
        self._directory = private_directory(self._data / "security")
        self._passwords = self._read_passwords(is_new=is_new)
        self._ca = self._broker = ""
        self._certificates: dict[str, str] = {}
        if security.uses_tls:
            names = (*_LOOPBACK, *(host for host in hosts if host not in ANY_ADDRESS))
            try:
                authority = _certificate_authority(self._directory)
                self._ca = str(authority.path)
                self._broker = str(authority.issue("broker", ADMIN, names))
                if security.requires_certificate:
                    self._certificates = {
                        ADMIN: self._broker,
                        CLIENT: str(authority.issue(CLIENT, CLIENT)),
                    }
            except ValueError as error:
                raise BrokerStartError(
                    f"Cannot read the certificates in {self._directory}: {error}"
                ) from error

    @property
    def scram_credentials(self) -> list[UserScramCredentialRecord]:
        """Return the credentials for the users of a new cluster."""
        mechanisms = self.security.mechanisms if self.security.uses_sasl else ()
        return [
            parse_scram_argument(
                f"{mechanism}=[name={name},password={password}]", random_bytes=os.urandom
            )
            for mechanism in mechanisms
            if ScramMechanism.named(mechanism) is not None
            for name, password in self._passwords.items()
        ]

    def broker_configs(
        self,
        configs: Mapping[str, str],
        *,
        host: str,
        port: int,
        advertised_host: str | None = None,
    ) -> dict[str, str]:
        """Return `configs` combined with the security configs. Raises: BrokerStartError."""
        if LISTENERS in configs:
            raise BrokerStartError(
                "The config 'listeners' cannot be combined with --secure or "
                "Cluster(security=...). Remove one of them."
            )
        try:
            return broker_configs(
                self.security,
                configs,
                bound=(host, port),
                advertised_host=advertised_host or host,
                key_store=self._broker,
                trust_store=self._ca,
                passwords=self._passwords,
            )
        except ValueError as error:
            raise BrokerStartError(str(error)) from error

    def client_settings(
        self, bootstrap_servers: str, *, user: str = CLIENT, mechanism: str | None = None
    ) -> ClientSettings:
        """Return the settings that a client needs to connect. Raises: ValueError."""
        mechanism = mechanism or self.security.mechanisms[0]
        if mechanism not in self.security.mechanisms:
            raise ValueError(
                f"The mechanism {mechanism} is not enabled. Use one of "
                f"{', '.join(self.security.mechanisms)}."
            )
        if user not in USERS:
            raise ValueError(f"The user '{user}' does not exist. Use one of {', '.join(USERS)}.")
        uses_sasl = self.security.uses_sasl
        return ClientSettings(
            bootstrap_servers=bootstrap_servers,
            protocol=self.security.protocol,
            mechanism=mechanism if uses_sasl else "",
            user=user,
            password=self._passwords[user] if uses_sasl else "",
            ca=self._ca,
            certificate=self._certificates.get(user, ""),
        )

    def write_client_settings(self, bootstrap_servers: str) -> Path:
        """Write the settings of clients, and return their directory. Raises: OSError."""
        directory = private_directory(self._data / "clients")
        client = self.client_settings(bootstrap_servers)
        admin = self.client_settings(bootstrap_servers, user=ADMIN)
        for name, text in (
            ("java.properties", format_properties(client.java())),
            ("librdkafka.properties", _lines(client.librdkafka())),
            ("pyspark_kafka.json", json.dumps(client.data_source(), indent=2) + "\n"),
            ("admin.properties", format_properties(admin.java())),
        ):
            write_private(directory / name, text)
        return directory

    def _read_passwords(self, *, is_new: bool) -> dict[str, str]:
        path = self._directory / "users.json"
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            return {name: str(found[name]) for name in USERS}
        except FileNotFoundError:
            pass
        except (ValueError, KeyError, TypeError) as error:
            raise BrokerStartError(f"Cannot read the passwords in {path}: {error!r}") from error
        if not is_new:
            raise BrokerStartError(
                f"The cluster in {self._data} was created without security and does not contain "
                "the users of a secured cluster. Use another data directory."
            )
        passwords = {name: secrets.token_urlsafe(_PASSWORD_BYTES) for name in USERS}
        write_private(path, json.dumps(passwords) + "\n")
        return passwords


def _certificate_authority(directory: Path) -> CertificateAuthority:
    try:
        from broker_ref.io.certificates import CertificateAuthority  # noqa: PLC0415 (optional)
    except ImportError as error:
        raise BrokerStartError(missing_cryptography("Certificates")) from error
    return CertificateAuthority(directory)


def _lines(settings: Mapping[str, str]) -> str:
    """Return the settings in librdkafka's format, which has no escape sequences."""
    return "".join(f"{name}={value}\n" for name, value in settings.items())
