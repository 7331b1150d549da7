"""A user that has only the ACLs that docs/exactly-once.md lists for an exactly-once query.

With `--secured`, the chaos runs and the failpoint matrix run the query as this user, over SASL_SSL.
The brokers and the test code itself connect as super users to the plaintext listener.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kio.schema.errors import ErrorCode

from broker_ref.security.acls import AclOperation as Op
from broker_ref.security.acls import PatternType, PermissionType, ResourceType
from broker_ref.security.authorizer import STANDARD_AUTHORIZER
from integration.clusters.base import Cluster
from integration.clusters.security import SecuredListener, Security
from integration.raw import RawConnection

CONFIGS: Final[Mapping[str, str]] = {
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "super.users": "User:ANONYMOUS",
}
_LISTENER: Final = "SECURED"
USER: Final = "sink"
SECURITY: Final = Security(
    users={USER: "sink-secret"},
    listeners=(
        SecuredListener(name=_LISTENER, protocol="SASL_SSL", mechanisms=("SCRAM-SHA-512",)),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefixes:
    """The prefixes of the resource names that a query uses, one for each type of resource.

    A prefix is empty if the query does not use resources of this type.
    """

    sources: str = ""
    outputs: str = ""
    commit_topics: str = ""
    sink_ids: str = ""
    groups: str = ""


def allow(cluster: Cluster, prefixes: Prefixes, *, user: str = USER) -> None:
    """Create the ACLs listed in docs/exactly-once.md, and the ACLs to read the source topics."""
    with RawConnection(cluster.bootstrap_servers.partition(",")[0]) as connection:
        response = connection.call("create_acls", 3, creations=[*_acls(prefixes, user)])
    codes = {result.error_code for result in response.results}
    assert codes == {ErrorCode.none}, codes


def options(cluster: Cluster) -> dict[str, str]:
    """Return the options with which the data source connects as the restricted user."""
    return cluster.secured.scram_options(_LISTENER, USER)


def _acls(prefixes: Prefixes, user: str) -> Iterator[dict[str, Any]]:
    """Yield the ACL creations for a CreateAcls request."""
    for resource, prefix, operations in (
        (ResourceType.TOPIC, prefixes.sources, (Op.READ, Op.DESCRIBE)),
        (ResourceType.TOPIC, prefixes.outputs, (Op.WRITE, Op.DESCRIBE, Op.READ)),
        (
            ResourceType.TOPIC,
            prefixes.commit_topics,
            (Op.READ, Op.WRITE, Op.DESCRIBE, Op.DESCRIBE_CONFIGS, Op.CREATE),
        ),
        (
            ResourceType.TRANSACTIONAL_ID,
            prefixes.sink_ids,
            (Op.WRITE, Op.DESCRIBE),
        ),
        (ResourceType.GROUP, prefixes.groups, (Op.READ,)),
    ):
        for operation in operations if prefix else ():
            yield {
                "resource_type": resource,
                "resource_name": prefix,
                "resource_pattern_type": PatternType.PREFIXED,
                "principal": f"User:{user}",
                "host": "*",
                "operation": operation,
                "permission_type": PermissionType.ALLOW,
            }
