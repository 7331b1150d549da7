"""Tokens for Google Cloud Managed Service for Apache Kafka, from `google-auth`.

The service expects the structure of a JWT: a header, claims, and Google's access token in place of
the signature (`GcpLoginCallbackHandler` in Google's library for Java).
"""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Mapping
from typing import Any, Final

from pyspark_kafka.client.native.oauth.databricks import service_credential
from pyspark_kafka.client.native.oauth.jwt import encoded, encoded_bytes
from pyspark_kafka.errors import AuthenticationError
from pyspark_kafka.tokens import Token

_SCOPE: Final = "https://www.googleapis.com/auth/cloud-platform"
_PRINCIPAL_VARIABLE: Final = "GOOGLE_MANAGED_KAFKA_AUTH_PRINCIPAL"
_PRINCIPAL_OPTION: Final = "kafka.sasl.oauthbearer.token.provider.principal"


def token(settings: Mapping[str, str]) -> Token:
    """Wrap an access token from the application default credentials or a service credential."""
    from google.auth.transport.requests import Request  # noqa: PLC0415

    credentials = _credentials(settings)
    credentials.refresh(Request())
    principal = (
        settings.get("principal")
        or os.environ.get(_PRINCIPAL_VARIABLE)
        or getattr(credentials, "service_account_email", None)
    )
    if not principal:
        raise AuthenticationError(
            "The principal of the Google credentials is unknown.",
            advice=f"Set '{_PRINCIPAL_OPTION}' to the email address of the principal.",
            option=_PRINCIPAL_OPTION,
        )
    expires_at = credentials.expiry.replace(tzinfo=datetime.UTC).timestamp()
    header = {"typ": "JWT", "alg": "GOOG_OAUTH2_TOKEN"}
    claims = {
        "exp": int(expires_at),
        "iss": "Google",
        "iat": int(time.time()),
        "scope": "kafka",
        "sub": principal,
    }
    signature = encoded_bytes(credentials.token.encode())
    return Token(
        value=f"{encoded(header)}.{encoded(claims)}.{signature}",
        expires_at=expires_at,
        principal=principal,
    )


def _credentials(settings: Mapping[str, str]) -> Any:
    name = settings.get("service.credential")
    if name is not None:
        return service_credential(name)
    import google.auth  # noqa: PLC0415

    credentials, _project = google.auth.default(scopes=[_SCOPE])
    return credentials
