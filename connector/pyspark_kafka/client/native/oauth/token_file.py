"""Tokens from a file, as in Kafka's `FileTokenRetriever` (KIP-768).

Another program renews the file. The file is read again after 80% of the token's lifetime.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from pyspark_kafka.client.native.oauth.jwt import claims_of, expiry_of
from pyspark_kafka.errors import AuthenticationError
from pyspark_kafka.tokens import Token

_OPAQUE_LIFE_S: Final = 60.0
"""How long a token that is not a JWT is used before the file is read again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenFile:
    """Reads the token from the file at a `file:` URL. `option` is the option that sets the URL."""

    url: str
    option: str
    extensions: tuple[tuple[str, str], ...] = ()

    @property
    def path(self) -> str:
        return unquote(urlsplit(self.url).path)

    def __call__(self) -> Token:
        try:
            value = Path(self.path).read_text().strip()
        except (OSError, ValueError) as error:
            reason = (isinstance(error, OSError) and error.strerror) or "it is not text"
            raise self._failed(f"cannot be read: {reason}") from None
        expires_at = expiry_of(value)
        if expires_at is not None and expires_at <= time.time():
            raise self._failed("contains an expired token")
        if not value:
            raise self._failed("is empty")
        return Token(
            value=value,
            expires_at=time.time() + _OPAQUE_LIFE_S if expires_at is None else expires_at,
            principal=str(claims_of(value).get("sub", "")),
            extensions=dict(self.extensions),
        )

    def _failed(self, reason: str) -> AuthenticationError:
        return AuthenticationError(
            f"The token file {self.path!r} {reason}.",
            advice=f"Check '{self.option}' and the program that writes the file. The file must "
            "exist on the driver and on all executors.",
            option=self.option,
        )
