"""SaslAuthenticate (36), versions 0 to 2: exchange the tokens of a SASL mechanism.

During authentication, `node.authentication` handles the request. In all other cases, the error is
ILLEGAL_SASL_STATE. Responses contain the session lifetime from version 1 on (KIP-368).
Source: `kafka.server.KafkaApis.handleSaslAuthenticateRequest`.
"""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import Api, Broker, Call
from broker_ref.security.sasl_messages import (
    SASL_AUTHENTICATE_KEY,
    SASL_AUTHENTICATE_VERSIONS,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)


def handle(
    broker: Broker, call: Call, request: SaslAuthenticateRequest
) -> SaslAuthenticateResponse:
    """Return ILLEGAL_SASL_STATE."""
    del broker, call, request
    return SaslAuthenticateResponse(
        error_code=ErrorCode.illegal_sasl_state,
        error_message="SaslAuthenticate request received after successful authentication",
    )


API: Final = Api(
    key=SASL_AUTHENTICATE_KEY,
    versions=SASL_AUTHENTICATE_VERSIONS,
    request=SaslAuthenticateRequest,
    handle=handle,
)
