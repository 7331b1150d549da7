"""CreateAcls (30), versions 1 to 3: create ACLs (KIP-11, KIP-290).

The response contains a result for each ACL. The error is INVALID_REQUEST for an enum value that
Kafka does not define, an empty or invalid name, or a principal without a type. As in Kafka, the
whole request fails with UNKNOWN_SERVER_ERROR if it contains the enum value ANY or MATCH. If a
request contains the enum value 0 (UNKNOWN), the broker closes the connection. Without an
authorizer, the error is SECURITY_DISABLED. Source: `kafka.server.AclApis` and
`org.apache.kafka.controller.AclControlManager`.
"""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.acl_filters import NO_AUTHORIZER, check_known
from broker_ref.controller_api.contract import (
    NO_THROTTLE_MS,
    Api,
    Call,
    ControllerContext,
    on_cluster,
)
from broker_ref.frozen import dataclass
from broker_ref.security.acls import Acl, AclOperation, PatternType


@dataclass(frozen=True, slots=True, kw_only=True)
class AclCreation:
    """An ACL to create."""

    resource_type: int
    resource_name: str
    resource_pattern_type: int
    principal: str
    host: str
    operation: int
    permission_type: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateAclsRequest:
    """A CreateAcls request."""

    creations: tuple[AclCreation, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AclCreationResult:
    """The result for an ACL. The results are in the same order as the ACLs in the request."""

    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateAclsResponse:
    """A CreateAcls response."""

    results: tuple[AclCreationResult, ...]
    throttle_time_ms: int = NO_THROTTLE_MS


def validate(request: CreateAclsRequest) -> None:
    """Raise MalformedRequestError if a code is 0."""
    for each in request.creations:
        check_known(
            each.resource_type, each.resource_pattern_type, each.operation, each.permission_type
        )


def handle(
    context: ControllerContext, call: Call, request: CreateAclsRequest
) -> CreateAclsResponse:
    """Create the valid ACLs in one commit, and return the result for each ACL."""
    del call
    if context.authorizer is None:
        disabled = AclCreationResult(
            error_code=ErrorCode.security_disabled, error_message=NO_AUTHORIZER
        )
        return CreateAclsResponse(results=(disabled,) * len(request.creations))
    if any(map(_is_of_filter, request.creations)):
        failed = AclCreationResult(
            error_code=ErrorCode.unknown_server_error,
            error_message="ANY and MATCH are valid only in filters.",
        )
        return CreateAclsResponse(results=(failed,) * len(request.creations))
    outcomes = context.controller.create_acls([_acl(each) for each in request.creations])
    return CreateAclsResponse(
        results=tuple(
            AclCreationResult()
            if error is None
            else AclCreationResult(error_code=error.error_code, error_message=error.message)
            for error in outcomes
        )
    )


def _is_of_filter(creation: AclCreation) -> bool:
    codes = (creation.resource_type, creation.operation, creation.permission_type)
    pattern_type = creation.resource_pattern_type
    return 1 in codes or pattern_type in (PatternType.ANY, PatternType.MATCH)


def _acl(creation: AclCreation) -> Acl:
    return Acl.of(
        resource_type=creation.resource_type,
        resource_name=creation.resource_name,
        pattern_type=creation.resource_pattern_type,
        principal=creation.principal,
        host=creation.host,
        operation=creation.operation,
        permission_type=creation.permission_type,
    )


API: Final = Api(
    key=30,
    versions=range(1, 4),
    request=CreateAclsRequest,
    handle=handle,
    validate=validate,
    requires=(on_cluster(AclOperation.ALTER),),
)
