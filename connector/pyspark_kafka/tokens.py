"""Defines the interface for OAUTHBEARER token sources. Implement `TokenProvider` to add a source.

A provider is a function. Set the option `kafka.sasl.oauthbearer.token.provider` to
`module:callable`, or to the name that a package registers in the entry-point group
`pyspark_kafka.token_providers`. Options with the prefix `kafka.sasl.oauthbearer.token.provider.`
are passed to the provider as settings. The module must be installed on the driver and on all
executors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A token (`OAuthBearerToken` in Java) and the extensions to send with it (KIP-342).

    `expires_at` is in seconds since the epoch. `principal` identifies the owner of the token in
    error messages.
    """

    value: str = field(repr=False)
    expires_at: float
    principal: str = ""
    extensions: Mapping[str, str] = field(default_factory=dict)


class TokenProvider(Protocol):
    """Returns a valid token. The connector caches it until 80% of its lifetime has passed.

    `settings` contains `bootstrap.servers` and the options with the provider's prefix. The option
    names are in lower case and do not contain the prefix. Config provider references are resolved.
    Any exception means that no token could be obtained. The text of the exception is not shown,
    because it may contain a secret.
    """

    def __call__(self, settings: Mapping[str, str]) -> Token: ...
