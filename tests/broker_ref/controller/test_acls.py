"""Tests of ACLs in the cluster metadata: records, snapshots and repeated requests."""

from __future__ import annotations

from broker_ref.controller.metadata import ClusterMetadata, Commit
from broker_ref.controller.records import (
    AccessControlEntryRecord,
    RemoveAccessControlEntryRecord,
    decode_record,
    encode_record,
)
from broker_ref.protocol.identifiers import Uuid
from broker_ref.security.acls import Acl, AclFilter
from tests.broker_ref.controller.clusters import ControllerDriver


def acl(principal: str) -> Acl:
    return Acl.of(
        resource_type=2,
        resource_name="t",
        pattern_type=3,
        principal=principal,
        host="*",
        operation=3,
        permission_type=3,
    )


ALICE, BOB = acl("User:alice"), acl("User:bob")


def test_an_acl_is_created_once_and_deleted_once() -> None:
    driver = ControllerDriver()
    assert driver.controller.create_acls([ALICE, BOB, ALICE]) == [None, None, None]
    assert driver.controller.create_acls([ALICE]) == [None]
    assert sorted(map(str, driver.metadata.acls)) == sorted(map(str, [ALICE, BOB]))
    by_name, everything = AclFilter(principal="User:alice"), AclFilter()
    found = driver.controller.delete_acls([by_name, everything])
    assert [set(each) for each in found if isinstance(each, tuple)] == [{ALICE}, {ALICE, BOB}]
    assert not list(driver.metadata.acls)


def test_a_snapshot_replaces_acls() -> None:
    driver = ControllerDriver()
    driver.controller.create_acls([ALICE])
    follower = ClusterMetadata()
    other = AccessControlEntryRecord(
        id=Uuid(int=7),
        resource_type=3,
        resource_name="g",
        pattern_type=3,
        principal="User:carol",
        host="*",
        operation=3,
        permission_type=3,
    )
    follower.apply_commit(Commit(base_offset=0, records=(other,)))
    follower.replace(driver.metadata.records(), driver.metadata.end_offset)
    assert list(follower.acls) == [ALICE]
    assert ALICE in follower.acls
    assert decode_record(encode_record(other)) == other
    removal = RemoveAccessControlEntryRecord(id=other.id)
    assert decode_record(encode_record(removal)) == removal
