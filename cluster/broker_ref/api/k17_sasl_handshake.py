"""SaslHandshake (17), versions 0 and 1: choose a SASL mechanism.

On a SASL listener, `node.authentication` handles the request before a client is authenticated and
when it re-authenticates. In all other cases, the error is ILLEGAL_SASL_STATE. Source:
`kafka.server.KafkaApis.handleSaslHandshakeRequest`.
"""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import Api, Broker, Call
from broker_ref.security.sasl_messages import (
    SASL_HANDSHAKE_KEY,
    SASL_HANDSHAKE_VERSIONS,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)


def handle(broker: Broker, call: Call, request: SaslHandshakeRequest) -> SaslHandshakeResponse:
    """Return ILLEGAL_SASL_STATE."""
    del broker, call, request
    return SaslHandshakeResponse(error_code=ErrorCode.illegal_sasl_state)


API: Final = Api(
    key=SASL_HANDSHAKE_KEY,
    versions=SASL_HANDSHAKE_VERSIONS,
    request=SaslHandshakeRequest,
    handle=handle,
)
