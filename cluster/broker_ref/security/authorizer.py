"""Decide whether a client may perform an operation on a resource.

The checks are the same as in Kafka's `StandardAuthorizer`. Super users may perform every operation.
For other principals, DENY ACLs take precedence over ALLOW ACLs. If the resource has no ACLs for any
principal, `allow.everyone.if.no.acl.found` determines the result. Sources:
`StandardAuthorizerData`, `Authorizer.authorizeByResourceType` and `AuthHelper` in Apache Kafka.
"""

from __future__ import annotations

import logging
from types import MappingProxyType
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.frozen import dataclass
from broker_ref.protocol.errors import ApiError
from broker_ref.security.acls import (
    CLUSTER_NAME,
    SUPPORTED_OPERATIONS,
    WILDCARD,
    WILDCARD_PRINCIPAL,
    Acl,
    AclCache,
    AclOperation,
    PatternType,
    PermissionType,
    ResourceType,
)
from broker_ref.security.principals import ANONYMOUS, Principal

STANDARD_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
"""The only class that `authorizer.class.name` supports."""

_IMPLIED_BY: Final = MappingProxyType(
    {
        AclOperation.DESCRIBE: frozenset(
            {
                AclOperation.DESCRIBE,
                AclOperation.READ,
                AclOperation.WRITE,
                AclOperation.DELETE,
                AclOperation.ALTER,
            }
        ),
        AclOperation.DESCRIBE_CONFIGS: frozenset(
            {AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS}
        ),
    }
)
"""The operations whose ALLOW ACLs imply each operation. DENY ACLs imply no other operations."""

_ERROR_CODES: Final = MappingProxyType(
    {
        ResourceType.TOPIC: ErrorCode.topic_authorization_failed,
        ResourceType.GROUP: ErrorCode.group_authorization_failed,
        ResourceType.CLUSTER: ErrorCode.cluster_authorization_failed,
        ResourceType.TRANSACTIONAL_ID: ErrorCode.transactional_id_authorization_failed,
    }
)

logger = logging.getLogger(__name__)


def parse_super_users(text: str) -> frozenset[str]:
    """Parse `super.users`, a semicolon-separated list of principals such as `User:alice`.

    Raises: ValueError if an element is not a principal.
    """
    users = frozenset(part.strip() for part in text.split(";") if part.strip())
    for user in users:
        if ":" not in user:
            raise ValueError(f"{user!r} is not a valid principal (example: User:alice)")
    return users


@dataclass(frozen=True, slots=True, kw_only=True)
class StandardAuthorizer:
    """Authorizes operations based on the ACLs in `acls`, which can change over time."""

    acls: AclCache
    super_users: frozenset[str] = frozenset()
    allows_everyone_if_no_acl_found: bool = False

    def authorize(
        self,
        principal: Principal,
        host: str,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str,
    ) -> bool:
        """Return whether a principal may perform an operation on a resource from a host."""
        user = str(principal)
        if user in self.super_users:
            return True
        is_allowed = has_acls = False
        for acl in self.acls.applying_to(resource_type, name):
            has_acls = True
            if not _is_for(acl, user, host) or not _covers(acl, operation):
                continue
            if acl.permission_type is PermissionType.DENY:
                return False
            is_allowed = True
        return is_allowed if has_acls else self.allows_everyone_if_no_acl_found

    def authorize_by_resource_type(
        self,
        principal: Principal,
        host: str,
        operation: AclOperation,
        resource_type: ResourceType,
    ) -> bool:
        """Return whether a principal may perform an operation on any resource of a type.

        As in Kafka, ACLs for operations that imply this operation are ignored. For example, an ACL
        for READ is ignored if the operation is DESCRIBE. The result is also True if the operation
        is allowed on a resource with the name `hardcode`.
        """
        if self.authorize(principal, host, operation, resource_type, "hardcode"):
            return True
        found = [
            acl
            for acl in self.acls
            if acl.resource_type is resource_type
            and _is_for(acl, str(principal), host)
            and acl.operation in (operation, AclOperation.ALL)
        ]
        denied = {
            (acl.pattern_type, acl.resource_name)
            for acl in found
            if acl.permission_type is PermissionType.DENY
        }
        if (PatternType.LITERAL, WILDCARD) in denied:
            return False
        return any(
            acl.permission_type is PermissionType.ALLOW and not _is_dominated(acl, denied)
            for acl in found
        )


def _is_for(acl: Acl, user: str, host: str) -> bool:
    return acl.principal in (user, WILDCARD_PRINCIPAL) and acl.host in (host, WILDCARD)


def _covers(acl: Acl, operation: AclOperation) -> bool:
    if acl.operation in (operation, AclOperation.ALL):
        return True
    is_allow = acl.permission_type is PermissionType.ALLOW
    return is_allow and acl.operation in _IMPLIED_BY.get(operation, ())


def _is_dominated(acl: Acl, denied: set[tuple[PatternType, str]]) -> bool:
    """Return whether one of the denied patterns covers all resources that an ACL matches."""
    name = acl.resource_name
    if acl.pattern_type is PatternType.LITERAL:
        if name == WILDCARD:
            return False
        if (PatternType.LITERAL, name) in denied:
            return True
    return any((PatternType.PREFIXED, name[:end]) in denied for end in range(1, len(name) + 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthHelper:
    """The authorization checks for one request (Kafka's `AuthHelper` with a request context).

    If `authorizer` is None, all operations are allowed.
    """

    authorizer: StandardAuthorizer | None = None
    principal: Principal = ANONYMOUS
    host: str = ""

    def allows(
        self, operation: AclOperation, resource_type: ResourceType, name: str = CLUSTER_NAME
    ) -> bool:
        """Return whether the client may perform an operation on a resource."""
        if self.authorizer is None or self.authorizer.authorize(
            self.principal, self.host, operation, resource_type, name
        ):
            return True
        logger.debug(
            "%s at %s is not authorized to perform %s on %s %.100r.",
            self.principal, self.host, operation.name, resource_type.name, name,
        )  # fmt: skip
        return False

    def allows_by_type(self, operation: AclOperation, resource_type: ResourceType) -> bool:
        """Return whether the client may perform an operation on any resource of a type."""
        return self.authorizer is None or self.authorizer.authorize_by_resource_type(
            self.principal, self.host, operation, resource_type
        )

    def check(
        self, operation: AclOperation, resource_type: ResourceType, name: str = CLUSTER_NAME
    ) -> None:
        """Raise ApiError with the resource type's error code unless the operation is allowed."""
        if not self.allows(operation, resource_type, name):
            raise self.denial(operation, resource_type, name)

    def denial(
        self, operation: AclOperation, resource_type: ResourceType, name: str = CLUSTER_NAME
    ) -> ApiError:
        """Return the error for an operation that is not allowed."""
        return ApiError(
            _ERROR_CODES[resource_type],
            f"{self.principal} is not authorized to perform {operation.name} on "
            f"{resource_type.name} {name!r}. Check the ACLs for this resource.",
        )

    def check_topic(self, operation: AclOperation, topic: str) -> None:
        """Raise ApiError (TOPIC_AUTHORIZATION_FAILED) unless the operation is allowed."""
        self.check(operation, ResourceType.TOPIC, topic)

    def authorized_operations(self, resource_type: ResourceType, name: str = CLUSTER_NAME) -> int:
        """Return the allowed operations on a resource as a bit field of operation codes."""
        return sum(
            1 << operation
            for operation in SUPPORTED_OPERATIONS[resource_type]
            if self.allows(operation, resource_type, name)
        )

    def authorized_cluster_operations(self) -> int:
        """Return the allowed operations on the cluster, or 0 if DESCRIBE is not allowed."""
        if not self.allows(AclOperation.DESCRIBE, ResourceType.CLUSTER):
            return 0
        return self.authorized_operations(ResourceType.CLUSTER)


UNRESTRICTED: Final = AuthHelper()
"""The checks for a request that needs no authorization."""
