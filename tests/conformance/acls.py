"""ACLs of principals that log in with any name, on a listener of their own.

The secured listener uses OAUTHBEARER with unsigned tokens, so that each test can have new
principals. The administrator is ANONYMOUS on the PLAINTEXT listener, and a super user, as the
brokers are.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from kio.schema.errors import ErrorCode

from integration.clusters import Cluster
from integration.clusters.security import SecuredListener, Security
from integration.raw import RawConnection
from tests.conformance.eventually import eventually

ANY, ALL, READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE = range(1, 9)
CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE = range(9, 13)
TWO_PHASE_COMMIT = 15
TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID = range(2, 6)
MATCH, LITERAL, PREFIXED = range(2, 5)
DENY, ALLOW = 2, 3
CLUSTER_NAME = "kafka-cluster"

LISTENER = "OAUTH"
SECURITY = Security(
    listeners=(
        SecuredListener(name=LISTENER, protocol="SASL_PLAINTEXT", mechanisms=("OAUTHBEARER",)),
    )
)
SUPER_USER = "root"
CONFIGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": f"User:ANONYMOUS;User:{SUPER_USER}",
    # For InitProducerId of version 6.
    "unstable.api.versions.enable": "true",
    "transaction.two.phase.commit.enable": "true",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Acl:
    """An ACL with the fields of CreateAcls; `principal` is a name without the type."""

    principal: str
    operation: int
    resource_name: str
    resource_type: int = TOPIC
    resource_pattern_type: int = LITERAL
    permission_type: int = ALLOW
    host: str = "*"

    @property
    def fields(self) -> dict[str, Any]:
        return {**asdict(self), "principal": f"User:{self.principal}"}


def log_in(cluster: Cluster, name: str) -> RawConnection:
    """Return a connection of the principal `User:NAME` to the first broker."""
    connection = RawConnection(cluster.secured.servers(LISTENER).partition(",")[0])
    shaken = connection.call("sasl_handshake", 1, mechanism="OAUTHBEARER")
    assert shaken.error_code == ErrorCode.none
    now_s = int(time.time())
    claims = {"sub": name, "iat": now_s, "exp": now_s + 3600}
    token = f"{_base64({'alg': 'none'})}.{_base64(claims)}."
    auth_bytes = f"n,,\1auth=Bearer {token}\1\1".encode()
    response = connection.call("sasl_authenticate", 2, auth_bytes=auth_bytes)
    assert (response.error_code, response.auth_bytes) == (ErrorCode.none, b""), response
    return connection


def _base64(values: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(values).encode()).decode().rstrip("=")


def create_acls(raw: RawConnection, *acls: Acl) -> list[ErrorCode]:
    response = raw.call("create_acls", 3, creations=[acl.fields for acl in acls])
    return [result.error_code for result in response.results]


def delete_acls(raw: RawConnection, **filtered: Any) -> list[Any]:
    """Delete the ACLs that match one filter and return them."""
    response = raw.call("delete_acls", 3, filters=[_filter(**filtered)])
    (result,) = response.filter_results
    assert result.error_code == ErrorCode.none, result
    return list(result.matching_acls)


def describe_acls(raw: RawConnection, **filtered: Any) -> set[Acl]:
    response = raw.call("describe_acls", 3, **_filter(**filtered))
    assert response.error_code == ErrorCode.none, response
    return {
        Acl(
            principal=acl.principal.removeprefix("User:"),
            operation=acl.operation,
            resource_name=resource.resource_name,
            resource_type=resource.resource_type,
            resource_pattern_type=resource.pattern_type,
            permission_type=acl.permission_type,
            host=acl.host,
        )
        for resource in response.resources
        for acl in resource.acls
    }


def _filter(**filtered: Any) -> dict[str, Any]:
    return {
        "resource_type_filter": ANY,
        "resource_name_filter": None,
        "pattern_type_filter": ANY,
        "principal_filter": None,
        "host_filter": None,
        "operation": ANY,
        "permission_type": ANY,
        **filtered,
    }


def grant(raw: RawConnection, acls: Iterable[Acl]) -> None:
    """Create ACLs and wait until the broker of `raw` uses them."""
    created = set(acls)
    assert set(create_acls(raw, *created)) <= {ErrorCode.none}
    eventually(lambda: created <= describe_acls(raw))
