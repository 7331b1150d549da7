"""ACLs: which of them apply, how they are described and deleted, and what they hide."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from integration.clusters import Cluster
from integration.raw import ConnectionClosedByBrokerError, RawConnection
from tests.conformance.acls import (
    ALL,
    ALLOW,
    ALTER,
    ALTER_CONFIGS,
    ANY,
    CLUSTER,
    CLUSTER_NAME,
    CREATE,
    DELETE,
    DENY,
    DESCRIBE,
    DESCRIBE_CONFIGS,
    GROUP,
    LITERAL,
    MATCH,
    PREFIXED,
    READ,
    SUPER_USER,
    TOPIC,
    TRANSACTIONAL_ID,
    WRITE,
    Acl,
    create_acls,
    delete_acls,
    describe_acls,
    grant,
    log_in,
)
from tests.conformance.batches import batch, values
from tests.conformance.eventually import eventually
from tests.conformance.groups import (
    await_coordinator,
    commit,
    fetch_offsets,
    find_coordinator,
)
from tests.conformance.transaction_states import describe_transaction
from tests.conformance.transactions import TRANSACTION, retried
from tests.conformance.wire import append, describe_topics, fetch, only

Name = Callable[[], str]

TOPIC_OPERATIONS = {READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS}


def bits(operations: int) -> set[int]:
    return {bit for bit in range(32) if operations >> bit & 1}


def topic_operations(cluster: Cluster, name: str, topic: str) -> set[int]:
    """Return the operations that a principal may perform on a topic; empty if it is hidden."""
    with log_in(cluster, name) as raw:
        response = raw.call(
            "metadata",
            12,
            topics=[{"name": topic}],
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=True,
        )
    found = only(response.topics)
    if found.error_code == ErrorCode.topic_authorization_failed:
        return set()
    return bits(found.topic_authorized_operations)


def allow(operation: int, topic: str = "{topic}", **more: Any) -> Acl:
    return Acl(principal="{user}", operation=operation, resource_name=topic, **more)


def deny(operation: int, topic: str = "{topic}", **more: Any) -> Acl:
    return allow(operation, topic, permission_type=DENY, **more)


PREFIX = {"resource_pattern_type": PREFIXED}


@pytest.mark.parametrize(
    ("acls", "operations"),
    [
        pytest.param([], set(), id="no ACL"),
        pytest.param([allow(READ)], {READ, DESCRIBE}, id="READ implies DESCRIBE"),
        pytest.param([allow(WRITE)], {WRITE, DESCRIBE}, id="WRITE implies DESCRIBE"),
        pytest.param([allow(DELETE)], {DELETE, DESCRIBE}, id="DELETE implies DESCRIBE"),
        pytest.param([allow(ALTER)], {ALTER, DESCRIBE}, id="ALTER implies DESCRIBE"),
        pytest.param(
            [allow(ALTER_CONFIGS), allow(DESCRIBE)],
            {ALTER_CONFIGS, DESCRIBE_CONFIGS, DESCRIBE},
            id="ALTER_CONFIGS implies DESCRIBE_CONFIGS",
        ),
        pytest.param([allow(CREATE)], set(), id="CREATE implies nothing"),
        pytest.param([allow(ALL)], TOPIC_OPERATIONS, id="ALL"),
        pytest.param([allow(ALL, "*")], TOPIC_OPERATIONS, id="wildcard"),
        pytest.param([allow(READ, "*", **PREFIX)], set(), id="prefix * is no wildcard"),
        pytest.param([allow(READ, "{start}", **PREFIX)], {READ, DESCRIBE}, id="prefix"),
        pytest.param([allow(READ, "{topic}", **PREFIX)], {READ, DESCRIBE}, id="whole prefix"),
        pytest.param([allow(READ, "{start}")], set(), id="literal start of the name"),
        pytest.param([allow(READ, "{topic}-more")], set(), id="literal longer name"),
        pytest.param([allow(READ, "{topic}-more", **PREFIX)], set(), id="longer prefix"),
        pytest.param([allow(ALL), deny(READ)], TOPIC_OPERATIONS - {READ}, id="deny one"),
        pytest.param([allow(READ), deny(DESCRIBE)], set(), id="deny what is implied"),
        pytest.param([allow(READ), deny(WRITE)], {READ, DESCRIBE}, id="deny implies nothing"),
        pytest.param([allow(ALL), deny(ALL, "*")], set(), id="wildcard denies before literal"),
        pytest.param([deny(ALL, "{start}", **PREFIX), allow(ALL)], set(), id="prefix denies"),
        pytest.param([allow(READ, host="127.0.0.1")], {READ, DESCRIBE}, id="host"),
        pytest.param([allow(READ, host="10.1.2.3")], set(), id="another host"),
        pytest.param([allow(READ, resource_type=GROUP)], set(), id="another resource type"),
        pytest.param([replace(allow(READ), principal="other")], set(), id="another principal"),
    ],
)
def test_acls_that_apply_to_a_topic(
    secured: Cluster,
    admin: RawConnection,
    unique_name: Name,
    acls: list[Acl],
    operations: set[int],
) -> None:
    user, topic = unique_name(), unique_name()
    names = {"user": user, "topic": topic, "start": topic[:-1]}
    grant(
        admin,
        [
            replace(
                acl,
                principal=acl.principal.format(**names),
                resource_name=acl.resource_name.format(**names),
            )
            for acl in acls
        ],
    )
    assert topic_operations(secured, user, topic) == operations


def test_acls_of_every_principal_and_super_users(
    secured: Cluster, admin: RawConnection, unique_name: Name
) -> None:
    topic = unique_name()
    grant(admin, [Acl(principal="*", operation=READ, resource_name=topic)])
    assert topic_operations(secured, unique_name(), topic) == {READ, DESCRIBE}
    grant(
        admin,
        [
            Acl(principal=each, operation=ALL, resource_name=topic, permission_type=DENY)
            for each in ("*", SUPER_USER)
        ],
    )
    assert topic_operations(secured, unique_name(), topic) == set()
    assert topic_operations(secured, SUPER_USER, topic) == TOPIC_OPERATIONS


def test_new_and_deleted_acls_apply_to_open_connections(
    secured: Cluster, admin: RawConnection, unique_name: Name
) -> None:
    """A fetch session does not keep the permission of its first request."""
    user, topic = unique_name(), unique_name()
    secured.create_topic(topic)
    append(admin, topic, batch(values("a")))
    with log_in(secured, user) as raw:
        denied = fetch(raw, topic)
        assert denied.error_code == ErrorCode.topic_authorization_failed
        assert not denied.records
        grant(admin, [Acl(principal=user, operation=READ, resource_name=topic)])
        opened = raw.call(
            "fetch",
            12,
            replica_id=-1,
            max_wait=0,
            session_epoch=0,
            topics=[
                {
                    "topic": topic,
                    "partitions": [
                        {"partition": 0, "fetch_offset": 1, "partition_max_bytes": 1000}
                    ],
                }
            ],
        )
        assert only(only(opened.responses).partitions).error_code == ErrorCode.none
        delete_acls(admin, principal_filter=f"User:{user}")

        epochs = iter(range(1, 10_000))

        def is_denied() -> bool:
            response = raw.call(
                "fetch",
                12,
                replica_id=-1,
                max_wait=0,
                session_id=opened.session_id,
                session_epoch=next(epochs),
            )
            codes = [p.error_code for t in response.responses for p in t.partitions]
            assert set(codes) <= {ErrorCode.topic_authorization_failed}
            return bool(codes)

        eventually(is_denied)


def test_filters(secured: Cluster, admin: RawConnection, unique_name: Name) -> None:
    del secured
    start, user = unique_name(), unique_name()
    topic = f"{start}.more"
    literal = Acl(principal=user, operation=READ, resource_name=topic)
    prefixed = replace(literal, resource_name=start, resource_pattern_type=PREFIXED)
    wildcard = replace(literal, resource_name="*")
    group = replace(literal, resource_type=GROUP)
    denied = replace(literal, operation=WRITE, permission_type=DENY, host="10.0.0.1")
    everything = {literal, prefixed, wildcard, group, denied}
    grant(admin, everything)
    mine = {"principal_filter": f"User:{user}"}
    cases: list[tuple[dict[str, Any], set[Acl]]] = [
        ({}, everything),
        ({"resource_type_filter": GROUP}, {group}),
        ({"resource_name_filter": topic}, {literal, group, denied}),
        ({"resource_name_filter": topic, "pattern_type_filter": LITERAL}, {literal, group, denied}),
        ({"resource_name_filter": start, "pattern_type_filter": LITERAL}, set()),
        ({"resource_name_filter": start, "pattern_type_filter": PREFIXED}, {prefixed}),
        ({"resource_name_filter": topic, "pattern_type_filter": MATCH}, everything),
        ({"pattern_type_filter": PREFIXED}, {prefixed}),
        ({"resource_name_filter": "*", "pattern_type_filter": ANY}, {wildcard}),
        ({"resource_name_filter": "x", "pattern_type_filter": MATCH}, {wildcard}),
        ({"operation": WRITE}, {denied}),
        ({"operation": ALL}, set()),
        ({"permission_type": ALLOW}, everything - {denied}),
        ({"host_filter": "10.0.0.1"}, {denied}),
        ({"host_filter": "10.0.0.2"}, set()),
        ({"principal_filter": "User:nobody"}, set()),
    ]
    for filtered, expected in cases:
        assert describe_acls(admin, **{**mine, **filtered}) == expected, filtered
    response = admin.call(
        "delete_acls",
        3,
        filters=[
            {
                "resource_type_filter": ANY,
                "resource_name_filter": topic,
                "pattern_type_filter": kind,
                "principal_filter": f"User:{user}",
                "host_filter": None,
                "operation": ANY,
                "permission_type": ANY,
            }
            for kind in (LITERAL, MATCH)
        ],
    )
    assert [len(result.matching_acls) for result in response.filter_results] == [3, 5]
    eventually(lambda: not describe_acls(admin, **mine))


@pytest.mark.parametrize(
    "changed",
    [
        {"resource_type": 99},
        {"resource_pattern_type": 99},
        {"operation": 99},
        {"permission_type": 99},
        {"resource_name": ""},
        {"resource_type": CLUSTER},
    ],
)
def test_invalid_acls(admin: RawConnection, unique_name: Name, changed: dict[str, Any]) -> None:
    valid = Acl(principal=unique_name(), operation=READ, resource_name="t")
    codes = create_acls(admin, replace(valid, **changed), valid, valid)
    assert codes == [ErrorCode.invalid_request, ErrorCode.none, ErrorCode.none]
    eventually(lambda: describe_acls(admin, principal_filter=f"User:{valid.principal}") == {valid})


@pytest.mark.parametrize(
    "changed",
    [
        {"resource_type": ANY},
        {"resource_pattern_type": MATCH},
        {"resource_pattern_type": ANY},
        {"operation": ANY},
        {"permission_type": ANY},
    ],
)
def test_elements_of_filters_fail_the_whole_request(
    admin: RawConnection, unique_name: Name, changed: dict[str, Any]
) -> None:
    valid = Acl(principal=unique_name(), operation=READ, resource_name="t")
    codes = create_acls(admin, valid, replace(valid, **changed))
    assert codes == [ErrorCode.unknown_server_error] * 2
    assert not describe_acls(admin, principal_filter=f"User:{valid.principal}")


def test_unknown_elements_close_the_connection(secured: Cluster) -> None:
    for field in ("operation", "permission_type", "resource_type", "resource_pattern_type"):
        acl = {**Acl(principal="x", operation=READ, resource_name="t").fields, field: 0}
        with (
            RawConnection(secured.bootstrap_servers) as raw,
            pytest.raises(ConnectionClosedByBrokerError),
        ):
            raw.call("create_acls", 3, creations=[acl])


def test_without_an_authorizer(raw: RawConnection) -> None:
    assert create_acls(raw, allow(READ)) == [ErrorCode.security_disabled]
    nothing = dict.fromkeys(
        ("resource_name_filter", "principal_filter", "host_filter"), None
    ) | dict.fromkeys(
        ("resource_type_filter", "pattern_type_filter", "operation", "permission_type"), ANY
    )
    described = raw.call("describe_acls", 3, **nothing)
    assert described.error_code == ErrorCode.security_disabled
    deleted = raw.call("delete_acls", 3, filters=[nothing])
    assert only(deleted.filter_results).error_code == ErrorCode.security_disabled


def test_lists_contain_what_may_be_described(
    secured: Cluster, admin: RawConnection, unique_name: Name
) -> None:
    user, describer = unique_name(), unique_name()
    seen, hidden = unique_name(), unique_name()
    both = (seen, hidden)
    for topic in both:
        secured.create_topic(topic)
    for name in both:
        _open_transaction(admin, name, both)
        await_coordinator(admin, name)
        for topic in both:
            assert commit(admin, name, topic, 1) == ErrorCode.none
    grant(
        admin,
        [
            *(
                Acl(principal=user, operation=DESCRIBE, resource_name=seen, resource_type=kind)
                for kind in (TOPIC, GROUP, TRANSACTIONAL_ID)
            ),
            Acl(
                principal=describer,
                operation=DESCRIBE,
                resource_name=CLUSTER_NAME,
                resource_type=CLUSTER,
            ),
        ],
    )
    with log_in(secured, user) as raw:
        assert {group.group_id for group in raw.call("list_groups", 5).groups} == {seen}
        listed = raw.call("list_transactions", 1).transaction_states
        assert {state.transactional_id for state in listed} == {seen}
        assert {topic.name for topic in raw.call("metadata", 12, topics=None).topics} == {seen}
        pages = raw.call("describe_topic_partitions", 0, topics=[], response_partition_limit=2000)
        assert {topic.name for topic in pages.topics} == {seen}
        assert [topic.name for topic in fetch_offsets(raw, seen, None).topics] == [seen]
        assert describe_transaction(raw, seen).topics == {seen: [0]}
    with log_in(secured, describer) as raw:
        assert {seen, hidden} <= {group.group_id for group in raw.call("list_groups", 5).groups}
        assert not raw.call("list_transactions", 1).transaction_states


def _open_transaction(raw: RawConnection, transactional_id: str, topics: Iterable[str]) -> None:
    """Start a transaction that contains partition 0 of each topic."""
    find_coordinator(raw, transactional_id, key_type=TRANSACTION)
    producer = retried(
        lambda: raw.call(
            "init_producer_id", 4, transactional_id=transactional_id, transaction_timeout=60_000
        )
    )
    added = raw.call(
        "add_partitions_to_txn",
        3,
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.producer_epoch,
        v3_and_below_topics=[{"name": topic, "partitions": [0]} for topic in topics],
    )
    codes = {
        result.partition_error_code
        for topic in added.results_by_topic_v3_and_below
        for result in topic.results_by_partition
    }
    assert codes == {ErrorCode.none}


def test_authorized_operations(secured: Cluster, admin: RawConnection, unique_name: Name) -> None:
    nobody, user, group = unique_name(), unique_name(), unique_name()
    await_coordinator(admin, group)
    on_cluster = Acl(
        principal=user, operation=ALTER, resource_name=CLUSTER_NAME, resource_type=CLUSTER
    )
    grant(
        admin,
        [
            on_cluster,
            Acl(principal=user, operation=READ, resource_name=group, resource_type=GROUP),
            Acl(principal=user, operation=READ, resource_name=group),
        ],
    )

    def cluster_operations(raw: RawConnection) -> list[set[int]]:
        described = raw.call("describe_cluster", 1, include_cluster_authorized_operations=True)
        metadata = raw.call("metadata", 10, include_cluster_authorized_operations=True)
        return [bits(response.cluster_authorized_operations) for response in (described, metadata)]

    with log_in(secured, nobody) as raw:
        assert cluster_operations(raw) == [set(), set()]
    with log_in(secured, user) as raw:
        assert cluster_operations(raw) == [{ALTER, DESCRIBE}] * 2
        groups = raw.call(
            "describe_groups", 5, groups=[group, "other"], include_authorized_operations=True
        ).groups
        by_id = {described.group_id: described for described in groups}
        assert bits(by_id[group].authorized_operations) == {READ, DESCRIBE}
        assert by_id["other"].error_code == ErrorCode.group_authorization_failed
        assert by_id["other"].authorized_operations == -(2**31)
        pages = raw.call(
            "describe_topic_partitions",
            0,
            topics=[{"name": group}, {"name": "hidden"}],
            response_partition_limit=10,
        )
        assert [
            (topic.name, topic.error_code, topic.topic_authorized_operations)
            for topic in pages.topics
        ] == [
            (group, ErrorCode.unknown_topic_or_partition, 1 << READ | 1 << DESCRIBE),
            ("hidden", ErrorCode.topic_authorization_failed, -(2**31)),
        ]


def test_configs_of_a_new_topic_are_hidden(
    secured: Cluster, admin: RawConnection, unique_name: Name
) -> None:
    user, topic = unique_name(), unique_name()
    created = {"name": topic, "num_partitions": 1, "replication_factor": 1}
    grant(admin, [Acl(principal=user, operation=CREATE, resource_name=topic)])

    def create(raw: RawConnection) -> Any:
        response = raw.call("create_topics", 7, topics=[created], validate_only=True)
        found = only(response.topics)
        assert found.error_code == ErrorCode.none
        return found

    with log_in(secured, user) as raw:
        hidden = create(raw)
        assert hidden.topic_config_error_code == ErrorCode.topic_authorization_failed
        assert (hidden.num_partitions, hidden.replication_factor, hidden.configs) == (-1, -1, ())
        grant(admin, [Acl(principal=user, operation=DESCRIBE_CONFIGS, resource_name=topic)])
        assert create(raw).num_partitions == 1


def test_deletion_does_not_reveal_topics(
    secured: Cluster, admin: RawConnection, unique_name: Name
) -> None:
    user, topic = unique_name(), unique_name()
    secured.create_topic(topic)
    found = only(describe_topics(admin, topic).topics)
    by_id = {"name": None, "topic_id": found.topic_id}
    refused = ErrorCode.topic_authorization_failed

    def delete(raw: RawConnection, **requested: Any) -> tuple[Any, ...]:
        result = only(raw.call("delete_topics", 6, topics=[requested], timeout=10_000).responses)
        return (result.name, result.topic_id, result.error_code)

    with log_in(secured, user) as raw:
        assert delete(raw, name=topic) == (topic, None, refused)
        assert delete(raw, **by_id) == (None, found.topic_id, refused)
        grant(admin, [Acl(principal=user, operation=DESCRIBE, resource_name=topic)])
        eventually(lambda: delete(raw, **by_id) == (topic, found.topic_id, refused))
        assert delete(raw, name=topic) == (topic, None, refused)
