"""Tokens for Amazon MSK with IAM access control, from AWS's `aws-msk-iam-sasl-signer-python`.

The token is a signed URL. MSK accepts the token with OAUTHBEARER on the port that Java clients use
for AWS_MSK_IAM.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, Final

from pyspark_kafka.client.native.oauth.databricks import service_credential
from pyspark_kafka.errors import AuthenticationError
from pyspark_kafka.tokens import Token

_HOST: Final = re.compile(r"\.kafka(?:-serverless)?\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?:")
_REGION_OPTION: Final = "kafka.sasl.oauthbearer.token.provider.region"


def token(settings: Mapping[str, str]) -> Token:
    """Sign a token with the default credentials, a profile, a role or a service credential."""
    from aws_msk_iam_sasl_signer import MSKAuthTokenProvider as signer  # noqa: N813, PLC0415

    region = _region(settings)
    credential = settings.get("service.credential")
    role, profile = settings.get("role.arn"), settings.get("profile")
    if credential is not None:
        value, expiry_ms = signer.generate_auth_token_from_credentials_provider(
            region, _from_session(service_credential(credential))
        )
    elif role is not None:
        session = settings.get("role.session.name")
        names = () if session is None else (session,)
        value, expiry_ms = signer.generate_auth_token_from_role_arn(region, role, *names)
    elif profile is not None:
        value, expiry_ms = signer.generate_auth_token_from_profile(region, profile)
    else:
        value, expiry_ms = signer.generate_auth_token(region)
    return Token(
        value=value,
        expires_at=expiry_ms / 1000,
        principal=credential or role or profile or "default AWS credentials",
    )


def _region(settings: Mapping[str, str]) -> str:
    found = _HOST.search(settings.get("bootstrap.servers", ""))
    region = (
        settings.get("region")
        or (found and found[1])
        or os.environ.get("AWS_REGION")
        or os.environ.get("AWS_DEFAULT_REGION")
    )
    if not region:
        raise AuthenticationError(
            "The AWS region of the cluster is unknown, because it cannot be derived from the host "
            "names of the bootstrap servers.",
            advice=f"Set '{_REGION_OPTION}'.",
            option=_REGION_OPTION,
        )
    return region


def _from_session(session: Any) -> Any:
    from botocore.credentials import CredentialProvider  # noqa: PLC0415

    class SessionCredentials(CredentialProvider):  # type: ignore[misc]
        def load(self) -> Any:
            return session.get_credentials()

    return SessionCredentials()
