"""Tokens without a signature, for brokers in development environments."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Final, Self

from pyspark_kafka.client.native.oauth.jwt import encoded
from pyspark_kafka.errors import OptionError
from pyspark_kafka.tokens import Token

_LIFE_S: Final = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsecuredTokens:
    """Creates tokens from librdkafka's `sasl.oauthbearer.config`."""

    principal: str
    principal_claim: str = "sub"
    scopes: tuple[str, ...] = ()
    scope_claim: str = "scope"
    life_s: int = _LIFE_S
    extensions: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, config: str, option: str) -> Self:
        """Parse `sasl.oauthbearer.config`: `principal=NAME scope=A,B ...`. Raises `OptionError`."""
        pairs = dict(pair.partition("=")[::2] for pair in config.split())
        extensions = tuple(
            (name.removeprefix("extension_"), pairs.pop(name))
            for name in list(pairs)
            if name.startswith("extension_")
        )
        life = pairs.pop("lifeSeconds", str(_LIFE_S))
        principal = pairs.pop("principal", "")
        known = cls(
            principal=principal,
            principal_claim=pairs.pop("principalClaimName", "sub"),
            scopes=tuple(filter(None, pairs.pop("scope", "").split(","))),
            scope_claim=pairs.pop("scopeClaimName", "scope"),
            life_s=int(life) if life.isdecimal() else 0,
            extensions=extensions,
        )
        if pairs or not principal or known.life_s <= 0:
            raise OptionError(
                f"Option '{option}' is not a valid configuration for unsecured tokens.",
                advice="Use this format: principal=NAME scope=A,B lifeSeconds=3600 "
                "extension_NAME=VALUE",
                option=option,
            )
        return known

    def __call__(self) -> Token:
        now = int(time.time())
        claims: dict[str, Any] = {self.principal_claim: self.principal}
        claims |= {"iat": now, "exp": now + self.life_s}
        if self.scopes:
            claims[self.scope_claim] = list(self.scopes)
        return Token(
            value=f"{encoded({'alg': 'none'})}.{encoded(claims)}.",
            expires_at=now + self.life_s,
            principal=self.principal,
            extensions=dict(self.extensions),
        )
