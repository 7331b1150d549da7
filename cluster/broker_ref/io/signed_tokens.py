"""The validators for the signed tokens that a broker accepts.

Imports the modules that need the package `cryptography` only if a listener uses signed tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from broker_ref.io.settings import BrokerStartError, missing_cryptography
from broker_ref.security.oauthbearer import ValidateToken
from broker_ref.security.settings import OAUTHBEARER, ListenerSettings

if TYPE_CHECKING:
    from broker_ref.io.jwks import JwksRefresher


class SignedTokens:
    """Maps each listener name to the validator of the listener's tokens.

    The keys of the validators are kept up to date until `stop` is called. Raises: BrokerStartError
    if `cryptography` is required but not installed.
    """

    def __init__(self, listeners: Mapping[str, ListenerSettings]) -> None:
        self.validators: Final[dict[str, ValidateToken]] = {}
        self._refreshers: list[JwksRefresher] = []
        for name, listener in listeners.items():
            mechanisms = {} if listener.sasl is None else listener.sasl.mechanisms
            mechanism = mechanisms.get(OAUTHBEARER)
            if mechanism is None or mechanism.tokens is None:
                continue
            try:
                from broker_ref.io.jwks import JwksRefresher  # noqa: PLC0415 (optional)
                from broker_ref.security.signed_tokens import SignedTokenValidator  # noqa: PLC0415
            except ImportError as error:
                raise BrokerStartError(missing_cryptography("Signed tokens")) from error
            refresher = JwksRefresher(mechanism.tokens)
            self._refreshers.append(refresher)
            self.validators[name] = SignedTokenValidator(mechanism.tokens, refresher.keys)

    async def start(self) -> None:
        """Read all keys. Raises: BrokerStartError if keys cannot be read."""
        if not self._refreshers:
            return
        from broker_ref.io.jwks import JwksError  # noqa: PLC0415

        try:
            await asyncio.gather(*(refresher.start() for refresher in self._refreshers))
        except JwksError as error:
            raise BrokerStartError(str(error)) from error

    def stop(self) -> None:
        """Stop reading keys."""
        for refresher in self._refreshers:
            refresher.stop()
