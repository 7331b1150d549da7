"""The ACL filters in DescribeAcls and DeleteAcls requests.

As in Kafka, a request with the enum code 0 (UNKNOWN) is malformed, and the broker closes the
connection. A filter with a code that Kafka does not define is valid, but matches no ACL.
"""

from __future__ import annotations

from typing import Final

from broker_ref.frozen import dataclass
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
    """An ACL filter from a request, with enums as numeric codes. `None` matches any value."""

    resource_type_filter: int
    resource_name_filter: str | None
    pattern_type_filter: int
    principal_filter: str | None
    host_filter: str | None
    operation: int
    permission_type: int

    def validate(self) -> None:
        """Raise MalformedRequestError if a code is 0 (UNKNOWN)."""
        check_known(
            self.resource_type_filter,
            self.pattern_type_filter,
            self.operation,
            self.permission_type,
        )

    def filter(self) -> AclFilter:
        """Return this filter as an `AclFilter`."""
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
        raise MalformedRequestError("an ACL or ACL filter contains an UNKNOWN element (code 0)")
