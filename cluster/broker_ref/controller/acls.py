"""The creation and deletion of ACLs (Kafka's `AclControlManager` and `AclApis`).

An invalid ACL or filter fails with INVALID_REQUEST. The other ACLs or filters in the request are
not affected. Creating an ACL that already exists succeeds and has no effect.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kio.schema.errors import ErrorCode

from broker_ref.controller.metadata import acl_record
from broker_ref.controller.records import MetadataRecord, RemoveAccessControlEntryRecord
from broker_ref.protocol.errors import ApiError
from broker_ref.protocol.identifiers import random_uuid
from broker_ref.security.acls import (
    CLUSTER_NAME,
    Acl,
    AclCache,
    AclFilter,
    AclOperation,
    PatternType,
    PermissionType,
    ResourceType,
)


def created_acls(
    existing: AclCache, acls: Sequence[Acl], random_bytes: Callable[[int], bytes]
) -> tuple[list[MetadataRecord], list[ApiError | None]]:
    """Return the records that create the valid new ACLs, and the error or None for each ACL."""
    outcomes: list[ApiError | None] = []
    new: dict[Acl, None] = {}
    for acl in acls:
        reason = _invalid(acl)
        outcomes.append(None if reason is None else ApiError(ErrorCode.invalid_request, reason))
        if reason is None and acl not in existing:
            new[acl] = None
    return [acl_record(random_uuid(random_bytes), acl) for acl in new], outcomes


def deleted_acls(
    existing: AclCache, filters: Sequence[AclFilter]
) -> tuple[list[MetadataRecord], list[tuple[Acl, ...] | ApiError]]:
    """Return the records that remove the matching ACLs, and the result for each filter.

    The result for a filter contains either the matching ACLs or an error.
    """
    outcomes: list[tuple[Acl, ...] | ApiError] = []
    removed: dict[MetadataRecord, None] = {}
    for one in filters:
        if one.is_unknown:
            outcomes.append(ApiError(ErrorCode.invalid_request, "The filter has unknown elements."))
            continue
        found = [(acl_id, acl) for acl_id, acl in existing.items() if one.matches(acl)]
        outcomes.append(tuple(acl for _, acl in found))
        removed |= {RemoveAccessControlEntryRecord(id=acl_id): None for acl_id, _ in found}
    return list(removed), outcomes


def _invalid(acl: Acl) -> str | None:
    """Return the reason why an ACL is invalid, or None if it is valid."""
    is_cluster = acl.resource_type is ResourceType.CLUSTER
    rules = (
        (
            not is_cluster or acl.resource_name == CLUSTER_NAME,
            f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}",
        ),
        (bool(acl.resource_name), "Resource name should not be empty"),
        (acl.resource_type is not ResourceType.UNKNOWN, "Invalid resourceType UNKNOWN"),
        (acl.pattern_type is not PatternType.UNKNOWN, "Invalid patternType UNKNOWN"),
        (acl.operation is not AclOperation.UNKNOWN, "Invalid operation UNKNOWN"),
        (acl.permission_type is not PermissionType.UNKNOWN, "Invalid permissionType UNKNOWN"),
        (":" in acl.principal, f"Could not parse principal from {acl.principal!r}"),
    )
    return next((reason for is_valid, reason in rules if not is_valid), None)
