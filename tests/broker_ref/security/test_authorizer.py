"""Tests of the authorizer against the definition of ACLs, without an index."""

from __future__ import annotations

import itertools
import tracemalloc
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_ref.config import BrokerConfig, InvalidBrokerConfigError
from broker_ref.security.acls import (
    Acl,
    AclCache,
    AclOperation,
    PatternType,
    PermissionType,
    ResourceType,
)
from broker_ref.security.authorizer import (
    STANDARD_AUTHORIZER,
    StandardAuthorizer,
    parse_super_users,
)
from broker_ref.security.principals import Principal

ALICE, BOB = Principal("alice"), Principal("bob")
HOST, ELSEWHERE = "10.0.0.1", "10.0.0.2"
TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
IMPLY_DESCRIBE = {
    AclOperation.READ,
    AclOperation.WRITE,
    AclOperation.DELETE,
    AclOperation.ALTER,
}
NAMES = [
    "".join(letters) for length in (1, 2, 3) for letters in itertools.product("abz", repeat=length)
]
"""All short names. No ACL contains the letter z."""

ACLS = st.builds(
    Acl,
    resource_type=st.sampled_from([TOPIC, TOPIC, TOPIC, GROUP]),
    resource_name=st.sampled_from(["*", "a", "a", "ab", "ab", "b"]),
    pattern_type=st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
    principal=st.sampled_from(["User:alice", "User:alice", "User:*", "User:bob"]),
    host=st.sampled_from([HOST, "*", "*", ELSEWHERE]),
    operation=st.sampled_from(
        [AclOperation.ALL, AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE]
    ),
    permission_type=st.sampled_from([PermissionType.DENY, PermissionType.ALLOW]),
)

WRITE_ACLS = st.builds(
    Acl,
    resource_type=st.just(TOPIC),
    resource_name=st.sampled_from(["*", "a", "a", "ab"]),
    pattern_type=st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
    principal=st.just("User:alice"),
    host=st.just("*"),
    operation=st.sampled_from([AclOperation.WRITE, AclOperation.WRITE, AclOperation.DELETE]),
    permission_type=st.sampled_from([PermissionType.DENY, PermissionType.ALLOW]),
)


def authorizer_of(acls: list[Acl], removed: list[Acl], *, everyone: bool) -> StandardAuthorizer:
    cache = AclCache()
    ids = {acl: UUID(int=number) for number, acl in enumerate(dict.fromkeys(acls + removed))}
    for acl, acl_id in ids.items():
        cache.add(acl_id, acl)
    for acl in set(removed) - set(acls):
        cache.remove(ids[acl])
    return StandardAuthorizer(
        acls=cache,
        super_users=frozenset({"User:root"}),
        allows_everyone_if_no_acl_found=everyone,
    )


def matches(acl: Acl, name: str) -> bool:
    if acl.pattern_type is PatternType.PREFIXED:
        return name.startswith(acl.resource_name)
    return acl.resource_name in ("*", name)


def is_allowed(
    acls: list[Acl], principal: Principal, operation: AclOperation, name: str, *, everyone: bool
) -> bool:
    """Return what the ACLs of topics mean, without an index."""
    relevant = [acl for acl in acls if acl.resource_type is TOPIC and matches(acl, name)]
    if not relevant:
        return everyone
    mine = [
        acl
        for acl in relevant
        if acl.principal in ("User:*", str(principal)) and acl.host in ("*", HOST)
    ]
    exact = (AclOperation.ALL, operation)
    if any(a.permission_type is PermissionType.DENY and a.operation in exact for a in mine):
        return False
    implied = IMPLY_DESCRIBE if operation is AclOperation.DESCRIBE else set()
    return any(
        a.permission_type is PermissionType.ALLOW
        and (a.operation in exact or a.operation in implied)
        for a in mine
    )


@given(
    acls=st.lists(ACLS, max_size=6),
    removed=st.lists(ACLS, max_size=3),
    principal=st.sampled_from([ALICE, ALICE, BOB]),
    operation=st.sampled_from([AclOperation.READ, AclOperation.DESCRIBE, AclOperation.CREATE]),
    name=st.sampled_from(["a", "ab", "ab", "b", "z", "abz"]),
    everyone=st.booleans(),
)
def test_decisions_are_those_of_the_definition(
    *,
    acls: list[Acl],
    removed: list[Acl],
    principal: Principal,
    operation: AclOperation,
    name: str,
    everyone: bool,
) -> None:
    authorizer = authorizer_of(acls, removed, everyone=everyone)
    expected = is_allowed(acls, principal, operation, name, everyone=everyone)
    assert authorizer.authorize(principal, HOST, operation, TOPIC, name) == expected
    assert authorizer.authorize(Principal("root"), HOST, operation, TOPIC, name)


@settings(max_examples=300)
@given(acls=st.lists(WRITE_ACLS, max_size=4))
def test_by_resource_type_means_any_resource(acls: list[Acl]) -> None:
    """WRITE is not implied, so the result is that of the best name."""
    authorizer = authorizer_of(acls, [], everyone=False)
    expected = any(
        is_allowed(acls, ALICE, AclOperation.WRITE, name, everyone=False) for name in ("*", *NAMES)
    )
    found = authorizer.authorize_by_resource_type(ALICE, HOST, AclOperation.WRITE, TOPIC)
    assert found == expected


def test_the_index_compares_only_existing_prefix_lengths() -> None:
    """All prefixes of a long name would need gigabytes."""
    acl = Acl(
        resource_type=TOPIC,
        resource_name="ab",
        pattern_type=PatternType.PREFIXED,
        principal="User:alice",
        host="*",
        operation=AclOperation.READ,
        permission_type=PermissionType.ALLOW,
    )
    cache = AclCache().add(UUID(int=1), acl)
    tracemalloc.start()
    try:
        assert list(cache.applying_to(TOPIC, "ab" * 100_000)) == [acl]
        assert list(cache.applying_to(GROUP, "ab" * 100_000)) == []
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 1_000_000
    cache.remove(UUID(int=1))
    assert list(cache.applying_to(TOPIC, "ab")) == []


def test_configs() -> None:
    assert BrokerConfig().authorizer(AclCache()) is None
    config = BrokerConfig.from_mapping(
        {
            "authorizer.class.name": STANDARD_AUTHORIZER,
            "super.users": "User:alice; User:CN=bob,O=x ;",
            "allow.everyone.if.no.acl.found": "true",
        }
    )
    authorizer = config.authorizer(AclCache())
    assert authorizer is not None
    assert authorizer.super_users == {"User:alice", "User:CN=bob,O=x"}
    assert authorizer.allows_everyone_if_no_acl_found
    assert parse_super_users("") == frozenset()


@pytest.mark.parametrize(
    ("name", "value"),
    [("authorizer.class.name", "org.example.Authorizer"), ("super.users", "alice")],
)
def test_invalid_configs(name: str, value: str) -> None:
    with pytest.raises(InvalidBrokerConfigError) as raised:
        BrokerConfig.from_mapping({name: value})
    assert raised.value.name == name
