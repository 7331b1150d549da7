"""Microsoft Entra ID tokens for Azure Event Hubs, from `azure-identity`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark_kafka.client.native.oauth.databricks import service_credential
from pyspark_kafka.client.native.oauth.jwt import claims_of
from pyspark_kafka.tokens import Token


def token(settings: Mapping[str, str]) -> Token:
    """Request a token for the Event Hubs namespace, which is the host of the bootstrap servers.

    Uses a Databricks service credential, a service principal (`tenant.id`, `client.id` and
    `client.secret`) or `DefaultAzureCredential`. For `DefaultAzureCredential`, `client.id` selects
    a managed identity.
    """
    host = settings.get("bootstrap.servers", "").split(",")[0].rpartition(":")[0]
    scope = settings.get("scope") or f"https://{host}/.default"
    access = _credential(settings).get_token(scope)
    claims = claims_of(access.token)
    return Token(
        value=access.token,
        expires_at=float(access.expires_on),
        principal=str(claims.get("appid") or claims.get("oid") or settings.get("client.id", "")),
    )


def _credential(settings: Mapping[str, str]) -> Any:
    name = settings.get("service.credential")
    if name is not None:
        return service_credential(name)
    from azure.identity import ClientSecretCredential, DefaultAzureCredential  # noqa: PLC0415

    client_id = settings.get("client.id")
    if "client.secret" in settings:
        return ClientSecretCredential(
            settings.get("tenant.id"), client_id, settings["client.secret"]
        )
    if client_id is not None:
        return DefaultAzureCredential(managed_identity_client_id=client_id)
    return DefaultAzureCredential()
