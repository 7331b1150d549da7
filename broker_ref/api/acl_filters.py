"""The ACL filters in the requests of DescribeAcls and DeleteAcls.

As in Kafka, the code 0 (UNKNOWN) makes the request malformed, and the connection is closed. Codes
that Kafka does not define are valid in a request, but match nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from broker_ref.protocol.reader import MalformedRequestError
from broker_ref.security.acls import (
    AclFilter,
    AclOperation,
    PatternType,
    PermissionType,
    ResourceType,
)

NO_AUTHORIZER: Final = "No Authorizer is configured."


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedFilter:
    """A filter as in a request, with the numeric codes of enums. `None` matches any value."""

    resource_type_filter: int
    resource_name_filter: str | None
    pattern_type_filter: int
    principal_filter: str | None
    host_filter: str | None
    operation: int
    permission_type: int

    def validate(self) -> None:
        """Raise MalformedRequestError if a code is 0."""
        check_known(
            self.resource_type_filter,
            self.pattern_type_filter,
            self.operation,
            self.permission_type,
        )

    def filter(self) -> AclFilter:
        """Return the filter."""
        return AclFilter(
            resource_type=ResourceType(self.resource_type_filter),
            resource_name=self.resource_name_filter,
            pattern_type=PatternType(self.pattern_type_filter),
            principal=self.principal_filter,
            host=self.host_filter,
            operation=AclOperation(self.operation),
            permission_type=PermissionType(self.permission_type),
        )


def check_known(*codes: int) -> None:
    """Raise MalformedRequestError if a code is 0 (UNKNOWN)."""
    if 0 in codes:
        raise MalformedRequestError("the request contains an UNKNOWN element of an ACL")
