"""DescribeAcls (29), versions 1 to 3: the ACLs that match a filter (KIP-11, KIP-290).

The ACLs are grouped by resource pattern. Without an authorizer, the error is SECURITY_DISABLED.
Source: `kafka.server.AclApis.handleDescribeAcls`.
"""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.acl_filters import NO_AUTHORIZER, RequestedFilter
from broker_ref.api.contract import NO_THROTTLE_MS, Api, Broker, Call, on_cluster
from broker_ref.frozen import dataclass
from broker_ref.security.acls import Acl, AclOperation, PatternType, ResourceType


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeAclsRequest(RequestedFilter):
    """A DescribeAcls request, which is a filter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AclDescription:
    """An ACL without its resource pattern."""

    principal: str
    host: str
    operation: int
    permission_type: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeAclsResource:
    """A resource pattern and its ACLs."""

    resource_type: int
    resource_name: str
    pattern_type: int
    acls: tuple[AclDescription, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeAclsResponse:
    """A DescribeAcls response."""

    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None
    resources: tuple[DescribeAclsResource, ...] = ()
    throttle_time_ms: int = NO_THROTTLE_MS


def handle(broker: Broker, call: Call, request: DescribeAclsRequest) -> DescribeAclsResponse:
    """Describe the ACLs that match the filter."""
    del call
    if broker.authorizer is None:
        return DescribeAclsResponse(
            error_code=ErrorCode.security_disabled, error_message=NO_AUTHORIZER
        )
    requested = request.filter()
    found: dict[tuple[ResourceType, str, PatternType], list[Acl]] = {}
    for acl in broker.authorizer.acls:
        if requested.matches(acl):
            pattern = (acl.resource_type, acl.resource_name, acl.pattern_type)
            found.setdefault(pattern, []).append(acl)
    return DescribeAclsResponse(
        resources=tuple(
            DescribeAclsResource(
                resource_type=resource_type,
                resource_name=name,
                pattern_type=pattern_type,
                acls=tuple(
                    AclDescription(
                        principal=acl.principal,
                        host=acl.host,
                        operation=acl.operation,
                        permission_type=acl.permission_type,
                    )
                    for acl in acls
                ),
            )
            for (resource_type, name, pattern_type), acls in found.items()
        )
    )


API: Final = Api(
    key=29,
    versions=range(1, 4),
    request=DescribeAclsRequest,
    handle=handle,
    validate=RequestedFilter.validate,
    requires=(on_cluster(AclOperation.DESCRIBE),),
)
