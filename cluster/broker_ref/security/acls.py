"""Access control lists: entries, filters and an index by resource pattern.

An ACL allows or denies an operation by a principal on the resources that match a pattern. Sources:
`StandardAcl`, `AclBindingFilter`, `AclEntry` and the enums of `org.apache.kafka.common.acl` and
`org.apache.kafka.common.resource` in Apache Kafka.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from enum import IntEnum
from types import MappingProxyType
from typing import Any, Final, Self

from broker_ref.frozen import dataclass
from broker_ref.protocol.identifiers import Uuid

WILDCARD: Final = "*"
"""Any host or, in a literal pattern, any resource."""

WILDCARD_PRINCIPAL: Final = "User:*"
CLUSTER_NAME: Final = "kafka-cluster"
"""The name of the only resource of type CLUSTER."""


class _Code(IntEnum):
    """A code in Kafka's protocol. Codes that Kafka does not define are mapped to UNKNOWN."""

    @classmethod
    def _missing_(cls, value: object) -> Any:
        del value
        return cls(0)


class ResourceType(_Code):
    """The type of a resource. ANY is valid only in filters."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(_Code):
    """How the name in a resource pattern is matched. ANY and MATCH are valid only in filters."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class AclOperation(_Code):
    """An operation on a resource. ANY is valid only in filters."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class PermissionType(_Code):
    """Whether an ACL allows or denies the operation. ANY is valid only in filters."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


SUPPORTED_OPERATIONS: Final = MappingProxyType(
    {
        ResourceType.TOPIC: (
            AclOperation.READ,
            AclOperation.WRITE,
            AclOperation.CREATE,
            AclOperation.DELETE,
            AclOperation.ALTER,
            AclOperation.DESCRIBE,
            AclOperation.DESCRIBE_CONFIGS,
            AclOperation.ALTER_CONFIGS,
        ),
        ResourceType.GROUP: (
            AclOperation.READ,
            AclOperation.DELETE,
            AclOperation.DESCRIBE,
            AclOperation.DESCRIBE_CONFIGS,
            AclOperation.ALTER_CONFIGS,
        ),
        ResourceType.CLUSTER: (
            AclOperation.CREATE,
            AclOperation.ALTER,
            AclOperation.DESCRIBE,
            AclOperation.CLUSTER_ACTION,
            AclOperation.DESCRIBE_CONFIGS,
            AclOperation.ALTER_CONFIGS,
            AclOperation.IDEMPOTENT_WRITE,
        ),
    }
)
"""The operations that responses can report as authorized for each type of resource."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Acl:
    """An ACL (Kafka's `StandardAcl`), with the principal in the form `User:alice`."""

    resource_type: ResourceType
    resource_name: str
    pattern_type: PatternType
    principal: str
    host: str
    operation: AclOperation
    permission_type: PermissionType

    @classmethod
    def of(
        cls,
        *,
        resource_type: int,
        resource_name: str,
        pattern_type: int,
        principal: str,
        host: str,
        operation: int,
        permission_type: int,
    ) -> Self:
        """Return the ACL with these protocol codes."""
        return cls(
            resource_type=ResourceType(resource_type),
            resource_name=resource_name,
            pattern_type=PatternType(pattern_type),
            principal=principal,
            host=host,
            operation=AclOperation(operation),
            permission_type=PermissionType(permission_type),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AclFilter:
    """A filter for ACLs (Kafka's `AclBindingFilter`). None and ANY match every value.

    With the pattern type MATCH, the filter matches the ACLs that apply to `resource_name`.
    """

    resource_type: ResourceType = ResourceType.ANY
    resource_name: str | None = None
    pattern_type: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: AclOperation = AclOperation.ANY
    permission_type: PermissionType = PermissionType.ANY

    @property
    def is_unknown(self) -> bool:
        """Return whether the filter contains a code that Kafka does not define."""
        codes = (self.resource_type, self.pattern_type, self.operation, self.permission_type)
        return any(code == 0 for code in codes)

    def matches(self, acl: Acl) -> bool:
        """Return whether the filter matches an ACL."""
        return (
            self._matches_pattern(acl)
            and self.resource_type in (ResourceType.ANY, acl.resource_type)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (AclOperation.ANY, acl.operation)
            and self.permission_type in (PermissionType.ANY, acl.permission_type)
        )

    def _matches_pattern(self, acl: Acl) -> bool:
        if self.pattern_type is PatternType.MATCH:
            return self.resource_name is None or applies_to(acl, self.resource_name)
        return self.pattern_type in (PatternType.ANY, acl.pattern_type) and (
            self.resource_name in (None, acl.resource_name)
        )


def applies_to(acl: Acl, name: str) -> bool:
    """Return whether an ACL's pattern matches the name of a resource of the same type."""
    if acl.pattern_type is PatternType.PREFIXED:
        return name.startswith(acl.resource_name)
    return acl.resource_name in (name, WILDCARD)


class AclCache:
    """All ACLs by id, and an index by resource pattern (Kafka's `AclCache`).

    `version` increases with each change. Invariant: the cache contains each ACL only once.
    """

    def __init__(self) -> None:
        self.version = 0
        self._by_id: dict[Uuid, Acl] = {}
        self._by_pattern: dict[tuple[ResourceType, PatternType, str], dict[Acl, Uuid]] = {}
        self._prefix_lengths: dict[ResourceType, Counter[int]] = {}

    def add(self, acl_id: Uuid, acl: Acl) -> Self:
        """Add an ACL."""
        self.version += 1
        self._by_id[acl_id] = acl
        self._by_pattern.setdefault(_pattern(acl), {})[acl] = acl_id
        if acl.pattern_type is PatternType.PREFIXED:
            lengths = self._prefix_lengths.setdefault(acl.resource_type, Counter())
            lengths[len(acl.resource_name)] += 1
        return self

    def remove(self, acl_id: Uuid) -> None:
        """Remove an ACL. Raises: KeyError if there is no ACL with this id."""
        acl = self._by_id.pop(acl_id)
        self.version += 1
        same_pattern = self._by_pattern[_pattern(acl)]
        del same_pattern[acl]
        if not same_pattern:
            del self._by_pattern[_pattern(acl)]
        if acl.pattern_type is PatternType.PREFIXED:
            lengths = self._prefix_lengths[acl.resource_type]
            lengths[len(acl.resource_name)] -= 1
            if not lengths[len(acl.resource_name)]:
                del lengths[len(acl.resource_name)]

    def clear(self) -> None:
        """Remove all ACLs."""
        self.version += 1
        self._by_id.clear()
        self._by_pattern.clear()
        self._prefix_lengths.clear()

    def items(self) -> Iterator[tuple[Uuid, Acl]]:
        """Yield all ACLs with their ids."""
        yield from self._by_id.items()

    def __contains__(self, acl: Acl) -> bool:
        return acl in self._by_pattern.get(_pattern(acl), ())

    def __iter__(self) -> Iterator[Acl]:
        return iter(self._by_id.values())

    def applying_to(self, resource_type: ResourceType, name: str) -> Iterator[Acl]:
        """Yield the ACLs whose pattern matches a resource."""
        for literal in dict.fromkeys((name, WILDCARD)):
            yield from self._by_pattern.get((resource_type, PatternType.LITERAL, literal), ())
        for length in self._prefix_lengths.get(resource_type, ()):
            if length <= len(name):
                pattern = (resource_type, PatternType.PREFIXED, name[:length])
                yield from self._by_pattern.get(pattern, ())


def _pattern(acl: Acl) -> tuple[ResourceType, PatternType, str]:
    return (acl.resource_type, acl.pattern_type, acl.resource_name)
