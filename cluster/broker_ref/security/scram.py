"""SCRAM: credentials, and the server side of SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802).

Invariant: a credential contains neither the password nor the salted password. Sources:
`ScramSaslServer`, `ScramMessages` and `ScramFormatter` in Apache Kafka.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable
from dataclasses import field
from enum import IntEnum
from typing import Any, Final

import scramp

from broker_ref.frozen import dataclass
from broker_ref.security.sasl_server import SaslError, check_authorization_id

ITERATIONS_MIN: Final = 4096
ITERATIONS_MAX: Final = 16384

NONCE_BYTES: Final = 24

_NAME: Final = r"(?:[^=,\x00]|=2C|=3D)+"
_CLIENT_FIRST: Final = re.compile(
    rf"n,(?:a=(?P<authzid>{_NAME}))?,(?P<name>n=(?P<username>{_NAME})),r=[\x21-\x2b\x2d-\x7e]+"
    r"(?:,[A-Za-z]+=[^,\x00]+)*"
)


class ScramMechanism(IntEnum):
    """The mechanisms and their numbers in requests and metadata records."""

    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2

    @property
    def mechanism_name(self) -> str:
        return self.name.replace("_", "-")

    @property
    def hash_name(self) -> str:
        return "sha256" if self is ScramMechanism.SCRAM_SHA_256 else "sha512"

    @classmethod
    def named(cls, name: str) -> ScramMechanism | None:
        """Return the SCRAM mechanism with this SASL name, or None if the name is unknown."""
        return next((each for each in cls if each.mechanism_name == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramCredential:
    """The credential that the server stores for one user and one mechanism."""

    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int


def credential_of(
    mechanism: ScramMechanism, *, salt: bytes, salted_password: bytes, iterations: int
) -> ScramCredential:
    """Return the credential for a salted password."""
    name = mechanism.hash_name
    client_key = hmac.digest(salted_password, b"Client Key", name)
    return ScramCredential(
        salt=salt,
        stored_key=hashlib.new(name, client_key).digest(),
        server_key=hmac.digest(salted_password, b"Server Key", name),
        iterations=iterations,
    )


def salted_password(
    mechanism: ScramMechanism, password: str, *, salt: bytes, iterations: int
) -> bytes:
    """Return the salted password (`Hi` of RFC 5802)."""
    return hashlib.pbkdf2_hmac(mechanism.hash_name, password.encode(), salt, iterations)


class ScramSaslServer:
    """A SCRAM authentication. `credential` returns the credential of a user, if any."""

    def __init__(
        self,
        mechanism: ScramMechanism,
        *,
        credential: Callable[[str], ScramCredential | None],
        random_bytes: Callable[[int], bytes],
    ) -> None:
        self.is_complete = False
        self.authorization_id = ""
        self.credential_expires_ms: int | None = None
        self._credential = credential
        self._username = ""
        self._is_first = True
        self._server: Any = scramp.ScramMechanism(mechanism.mechanism_name).make_server(
            self._auth_info, s_nonce=random_bytes(NONCE_BYTES).hex()
        )

    def evaluate_response(self, response: bytes, now_ms: int) -> bytes:
        """Evaluate the client's first or final message."""
        del now_ms
        try:
            message = response.decode()
            if self._is_first:
                self._is_first = False
                return self._first(message)
            self._server.set_client_final(message)
            final: str = self._server.get_server_final()
        except (UnicodeDecodeError, scramp.ScramException) as error:
            raise SaslError(str(error)) from error
        self.authorization_id = self._username
        self.is_complete = True
        return final.encode()

    def _first(self, message: str) -> bytes:
        match = _CLIENT_FIRST.fullmatch(message)
        if match is None:
            raise SaslError("invalid format of the client's first message")
        self._username = _unescaped(match["username"])
        if self._credential(self._username) is None:
            raise SaslError(f"user {self._username!r} has no credential")
        check_authorization_id(_unescaped(match["authzid"] or ""), self._username)
        self._server.set_client_first(message)
        first: str = self._server.get_server_first()
        return first.encode()

    def _auth_info(self, normalized_name: str) -> tuple[bytes, bytes, bytes, int] | None:
        del normalized_name  # Kafka does not normalize user names.
        found = self._credential(self._username)
        if found is None:
            return None
        return found.salt, found.stored_key, found.server_key, found.iterations


def _unescaped(name: str) -> str:
    return name.replace("=2C", ",").replace("=3D", "=")
