"""DeleteAcls (31), versions 1 to 3: delete the ACLs that match filters (KIP-11, KIP-290).

The response contains the deleted ACLs for each filter. An ACL that matches several filters appears
in the result for each of these filters. A filter with an enum value that Kafka does not define
fails with INVALID_REQUEST. Without an authorizer, the error is SECURITY_DISABLED. As in Kafka, the
broker closes the connection if a request contains the enum value 0 (UNKNOWN). Source:
`kafka.server.AclApis` and `org.apache.kafka.controller.AclControlManager`.
"""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.acl_filters import NO_AUTHORIZER, RequestedFilter
from broker_ref.controller_api.contract import (
    NO_THROTTLE_MS,
    Api,
    Call,
    ControllerContext,
    on_cluster,
)
from broker_ref.frozen import dataclass
from broker_ref.protocol.errors import ApiError
from broker_ref.security.acls import Acl, AclOperation


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteAclsRequest:
    """A DeleteAcls request."""

    filters: tuple[RequestedFilter, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteAclsMatchingAcl:
    """A deleted ACL."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission_type: int
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteAclsFilterResult:
    """The ACLs that match a filter, or an error."""

    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None
    matching_acls: tuple[DeleteAclsMatchingAcl, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteAclsResponse:
    """A DeleteAcls response."""

    filter_results: tuple[DeleteAclsFilterResult, ...]
    throttle_time_ms: int = NO_THROTTLE_MS


def validate(request: DeleteAclsRequest) -> None:
    """Raise MalformedRequestError if a code is 0."""
    for each in request.filters:
        each.validate()


def handle(
    context: ControllerContext, call: Call, request: DeleteAclsRequest
) -> DeleteAclsResponse:
    """Delete all ACLs that match at least one of the filters, in one commit."""
    del call
    if context.authorizer is None:
        disabled = DeleteAclsFilterResult(
            error_code=ErrorCode.security_disabled, error_message=NO_AUTHORIZER
        )
        return DeleteAclsResponse(filter_results=(disabled,) * len(request.filters))
    outcomes = context.controller.delete_acls([each.filter() for each in request.filters])
    return DeleteAclsResponse(filter_results=tuple(map(_result, outcomes)))


def _result(outcome: tuple[Acl, ...] | ApiError) -> DeleteAclsFilterResult:
    if isinstance(outcome, ApiError):
        return DeleteAclsFilterResult(error_code=outcome.error_code, error_message=outcome.message)
    return DeleteAclsFilterResult(
        matching_acls=tuple(
            DeleteAclsMatchingAcl(
                resource_type=acl.resource_type,
                resource_name=acl.resource_name,
                pattern_type=acl.pattern_type,
                principal=acl.principal,
                host=acl.host,
                operation=acl.operation,
                permission_type=acl.permission_type,
            )
            for acl in outcome
        )
    )


API: Final = Api(
    key=31,
    versions=range(1, 4),
    request=DeleteAclsRequest,
    handle=handle,
    validate=validate,
    requires=(on_cluster(AclOperation.ALTER),),
)
