"""Tests of ACLs: the ACLs in the guide are sufficient, and an error names a missing one.

Without authentication the principal is ANONYMOUS, also for brokers. A resource without ACLs is open
to all, so the tests deny access with ACLs for another principal on the same resource.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from integration.clusters import Cluster
from pyspark_kafka.errors import CommitTopicError, KafkaError
from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.sink.exactly_once.source_offsets import SourceOffsets
from tests.conformance.eventually import eventually
from tests.conftest import ClusterFactory
from tests.pyspark_kafka.sink.exactly_once.conftest import world_of
from tests.pyspark_kafka.sink.exactly_once.runs import Run
from tests.pyspark_kafka.sink.exactly_once.worlds import RealWorld

pytestmark = [pytest.mark.timeout(240)]

SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
OURS, ANOTHERS = "User:ANONYMOUS", "User:another"
LITERAL, PREFIXED = ResourcePatternType.LITERAL, ResourcePatternType.PREFIXED
GUIDE = Path(__file__).parents[4] / "docs" / "exactly-once.md"
ROWS = (b"a", b"b", b"c")


@dataclass(frozen=True, kw_only=True)
class Permission:
    """A row of the guide's table; `of` is the kind of resource name."""

    of: str
    resource: ResourceType
    operation: AclOperation
    pattern: ResourcePatternType = LITERAL

    def __str__(self) -> str:
        return f"{self.of} {self.operation.name}"


ID, TOPIC, GROUP = ResourceType.TRANSACTIONAL_ID, ResourceType.TOPIC, ResourceType.GROUP
PERMISSIONS = (
    Permission(of="id", resource=ID, operation=AclOperation.WRITE, pattern=PREFIXED),
    Permission(of="id", resource=ID, operation=AclOperation.DESCRIBE, pattern=PREFIXED),
    Permission(of="output", resource=TOPIC, operation=AclOperation.WRITE),
    Permission(of="output", resource=TOPIC, operation=AclOperation.DESCRIBE),
    Permission(of="output", resource=TOPIC, operation=AclOperation.READ),
    Permission(of="commits", resource=TOPIC, operation=AclOperation.READ),
    Permission(of="commits", resource=TOPIC, operation=AclOperation.WRITE),
    Permission(of="commits", resource=TOPIC, operation=AclOperation.DESCRIBE),
    Permission(of="commits", resource=TOPIC, operation=AclOperation.DESCRIBE_CONFIGS),
    Permission(of="commits", resource=TOPIC, operation=AclOperation.CREATE),
    Permission(of="group", resource=GROUP, operation=AclOperation.READ),
)
"""DESCRIBE is never missing, because READ and WRITE imply it."""

ID_ALONE = Permission(of="id", resource=ID, operation=AclOperation.WRITE)
FOR_A_CRASH = "output READ"
"""Needed only to read the markers of a transaction whose id was reused."""

CLUSTER = "kafka-cluster"
OF_BROKERS = (
    AclOperation.CLUSTER_ACTION,
    AclOperation.ALTER,
    AclOperation.DESCRIBE,
    AclOperation.ALTER_CONFIGS,
)
"""The cluster operations that the brokers and this test need."""


def allowed(
    principal: str,
    resource: ResourceType,
    name: str,
    operation: AclOperation,
    pattern: ResourcePatternType = LITERAL,
) -> AclBinding:
    """Return an ACL that allows an operation from any host."""
    return AclBinding(resource, name, pattern, principal, "*", operation, AclPermissionType.ALLOW)


def make(admin: AdminClient, bindings: Iterable[AclBinding]) -> None:
    wanted = list(bindings)
    for future in admin.create_acls(wanted).values():
        future.result(timeout=30)
    for each in wanted:
        exactly = AclBindingFilter(
            each.restype,
            each.name,
            each.resource_pattern_type,
            each.principal,
            each.host,
            each.operation,
            each.permission_type,
        )
        eventually(partial(_is_there, admin, exactly))


def _is_there(admin: AdminClient, acl: AclBindingFilter) -> bool:
    return bool(admin.describe_acls(acl).result(timeout=30))


class Guarded:
    """A query whose resources have the given ACLs and no others."""

    def __init__(self, world: RealWorld, bootstrap_servers: str) -> None:
        self._admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 2})
        self.world = world
        self.names = {
            "id": world.name(),
            "output": world.topic(),
            "commits": world.name(),
            "group": world.name(),
        }
        self._source = TopicPartition(world.topic(), 0)
        guarded = {
            (permission.of, permission.resource, permission.pattern) for permission in PERMISSIONS
        }
        make(
            self._admin,
            [
                allowed(ANOTHERS, resource, self.names[of], AclOperation.ALL, pattern)
                for of, resource, pattern in guarded
            ],
        )

    def allow(self, rights: Iterable[Permission]) -> None:
        make(
            self._admin,
            [
                allowed(
                    OURS,
                    permission.resource,
                    self.names[permission.of],
                    permission.operation,
                    permission.pattern,
                )
                for permission in rights
            ],
        )

    def write(self, batch_id: int, *, run: str) -> None:
        """Write a batch of one row, as Spark does."""
        Run(
            world=self.world,
            topic=self.names["output"],
            sink_id=self.names["id"],
            commit_topic=self.names["commits"],
            group_id=self.names["group"],
            run=run,
        ).write(
            batch_id,
            [ROWS[batch_id]],
            offsets=SourceOffsets(hash=str(batch_id), offsets={self._source: batch_id + 1}),
        )

    def write_until_refused(self) -> tuple[int, KafkaError | CommitTopicError]:
        """Return the number of written batches, and the error of the next batch.

        From the second start on there are decisions to read and a topic to check.
        """
        for batch_id in range(len(ROWS)):
            try:
                self.write(batch_id, run=f"run-{batch_id}")
            except (KafkaError, CommitTopicError) as refusal:
                return batch_id, refusal
        raise AssertionError("nothing was refused")

    def rows(self) -> list[bytes]:
        """Add all ACLs and return the rows that a consumer reads."""
        self.allow(PERMISSIONS)
        return self.world.committed(self.names["output"])


@pytest.fixture(scope="module")
def secured(cluster_with: ClusterFactory) -> Cluster:
    """Return a broker whose ACLs allow this principal the required cluster operations."""
    cluster = cluster_with(SETTINGS)
    make(
        AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 2}),
        [allowed(OURS, ResourceType.BROKER, CLUSTER, operation) for operation in OF_BROKERS],
    )
    return cluster


@pytest.fixture
def guarded(secured: Cluster, unique_name: Callable[[], str]) -> Guarded:
    """Return a query whose resources have ACLs for another principal only."""
    return Guarded(world_of(secured, unique_name), secured.bootstrap_servers)


def test_acls_of_the_guide_are_sufficient(guarded: Guarded) -> None:
    guarded.allow(permission for permission in PERMISSIONS if str(permission) != FOR_A_CRASH)
    for batch_id in range(len(ROWS)):
        guarded.write(batch_id, run=f"run-{batch_id // 2}")
    assert guarded.rows() == [*ROWS]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("missing", "pattern"),
    [
        ("id WRITE", "{id}.*TRANSACTIONAL_ID_AUTHORIZATION_FAILED"),
        ("output WRITE", "{output}.*TOPIC_AUTHORIZATION_FAILED"),
        ("commits READ", "{commits}.*TOPIC_AUTHORIZATION_FAILED"),
        ("commits WRITE", "{commits}.*TOPIC_AUTHORIZATION_FAILED"),
        ("commits DESCRIBE_CONFIGS", "{commits}.*DESCRIBE_CONFIGS"),
        ("commits CREATE", "{commits}.*kafka-topics.sh --create"),
        ("group READ", "{group}.*GROUP_AUTHORIZATION_FAILED"),
    ],
    ids=str,
)
def test_missing_acl_is_named(guarded: Guarded, missing: str, pattern: str) -> None:
    guarded.allow(permission for permission in PERMISSIONS if str(permission) != missing)
    written, refusal = guarded.write_until_refused()
    print(refusal)
    assert re.search(pattern.format(**guarded.names), str(refusal))
    assert guarded.rows() == [*ROWS[:written]]
    guarded.write(written, run="run-later")
    assert guarded.rows() == [*ROWS[: written + 1]], "an open transaction blocks consumers"


def test_missing_prefix_acl_is_reported_before_any_row(guarded: Guarded) -> None:
    guarded.allow([ID_ALONE, *(permission for permission in PERMISSIONS if permission.of != "id")])
    with pytest.raises(KafkaError, match=r"\bDESCRIBE\b.*\bWRITE\b"):
        guarded.write(0, run="run-1")
    assert guarded.rows() == []


def test_guide_lists_every_acl() -> None:
    guide = GUIDE.read_text()
    for permission in PERMISSIONS:
        assert f"`{permission.operation.name}`" in guide
