"""Every API: the operations that a client must be allowed to perform, and the codes without them.

For each request, one principal has no ACL, one has the first ACL, and so on. All but the last get
the error code of the first ACL that they lack, so that the table also contains the order of the
checks. The last principal gets no authorization error.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map

from integration.clusters import Cluster
from integration.raw import RawConnection
from tests.conformance.acls import (
    ALTER,
    ALTER_CONFIGS,
    CLUSTER,
    CLUSTER_ACTION,
    CLUSTER_NAME,
    CREATE,
    DELETE,
    DESCRIBE,
    DESCRIBE_CONFIGS,
    GROUP,
    IDEMPOTENT_WRITE,
    READ,
    TOPIC,
    TRANSACTIONAL_ID,
    TWO_PHASE_COMMIT,
    WRITE,
    Acl,
    grant,
    log_in,
)
from tests.conformance.batches import TRANSACTIONAL, batch, values
from tests.conformance.groups import await_coordinator, commit
from tests.conformance.wire import append, served, topic_id

TOPIC_NAME, MISSING_TOPIC, GROUP_ID, TXN_ID = "a-topic", "missing", "a-group", "a-transaction"
BROKER_CONFIGS, TOPIC_CONFIGS, GROUP_CONFIGS, LOGGER_CONFIGS, CLIENT_METRICS = 4, 2, 32, 8, 16

AUTHORIZATION_CODES = {
    ErrorCode.topic_authorization_failed,
    ErrorCode.group_authorization_failed,
    ErrorCode.cluster_authorization_failed,
    ErrorCode.transactional_id_authorization_failed,
}

WITHOUT_CHECK = {
    "api_versions": "is answered before clients are authenticated",
    "sasl_handshake": "is part of the authentication",
    "sasl_authenticate": "is part of the authentication",
    "describe_cluster": "omits only authorized operations: test_acls.py",
    "list_groups": "omits groups: test_acls.py",
    "list_transactions": "omits transactional ids: test_acls.py",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """An operation on a resource, and the error code of a client that may not perform it."""

    operation: int
    resource_type: int
    name: str
    code: ErrorCode


def on_topic(operation: int, name: str = TOPIC_NAME) -> Needs:
    return Needs(
        operation=operation,
        resource_type=TOPIC,
        name=name,
        code=ErrorCode.topic_authorization_failed,
    )


def on_group(operation: int, name: str = GROUP_ID) -> Needs:
    return Needs(
        operation=operation,
        resource_type=GROUP,
        name=name,
        code=ErrorCode.group_authorization_failed,
    )


def on_transactional_id(operation: int, name: str = TXN_ID) -> Needs:
    return Needs(
        operation=operation,
        resource_type=TRANSACTIONAL_ID,
        name=name,
        code=ErrorCode.transactional_id_authorization_failed,
    )


def on_cluster(operation: int, code: str = "cluster") -> Needs:
    return Needs(
        operation=operation,
        resource_type=CLUSTER,
        name=CLUSTER_NAME,
        code=ErrorCode[f"{code}_authorization_failed"],
    )


Fields = Callable[[RawConnection], dict[str, Any]]
"""The fields of a request, which may depend on the cluster."""


@dataclass(frozen=True, slots=True)
class Row:
    """A request, and what it needs in the order of the checks.

    The version is by default the newest served one.
    """

    api: str
    needs: tuple[Needs, ...]
    fields: dict[str, Any] | Fields
    version: int | None = None


def record_data(*, transactional: bool = False) -> dict[str, Any]:
    of_producer: dict[str, Any] = {}
    if transactional:
        of_producer = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
        of_producer["attributes"] = TRANSACTIONAL
    return {"partition_data": [{"index": 0, "records": batch(values("a"), **of_producer)}]}


def produced(*, transactional_id: str | None = None) -> dict[str, Any]:
    data = record_data(transactional=transactional_id is not None)
    return {
        "transactional_id": transactional_id,
        "acks": -1,
        "timeout": 10_000,
        "topic_data": [{"name": TOPIC_NAME, **data}],
    }


def produced_by_id(raw: RawConnection) -> dict[str, Any]:
    topic = {"topic_id": topic_id(raw, TOPIC_NAME), **record_data()}
    return {**produced(), "topic_data": [topic]}


def fetched(**more: Any) -> dict[str, Any]:
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}
    topic = {"topic": TOPIC_NAME, "partitions": [partition]}
    return {"replica_id": -1, "max_wait": 0, "session_epoch": -1, "topics": [topic], **more}


def fetched_by_id(replica_id: int) -> Fields:
    def fields(raw: RawConnection) -> dict[str, Any]:
        topic = {
            "topic_id": topic_id(raw, TOPIC_NAME),
            "partitions": [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}],
        }
        found = {"max_wait": 0, "session_epoch": -1, "topics": [topic]}
        if replica_id >= 0:
            found["replica_state"] = {"replica_id": replica_id, "replica_epoch": 1}
        return found

    return fields


def committed_by_id(raw: RawConnection) -> dict[str, Any]:
    offset = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
    topic = {"topic_id": topic_id(raw, TOPIC_NAME), "partitions": [offset]}
    return {"group_id": GROUP_ID, "generation_id_or_member_epoch": -1, "topics": [topic]}


def offsets_by_id(raw: RawConnection) -> dict[str, Any]:
    topic = {"topic_id": topic_id(raw, TOPIC_NAME), "partition_indexes": [0]}
    return {"groups": [{"group_id": GROUP_ID, "topics": [topic]}]}


COMMITTED = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
OF_MEMBER = {"group_id": GROUP_ID, "member_id": "unknown", "generation_id": 1}
OF_PRODUCER = {"transactional_id": TXN_ID, "producer_id": 7, "producer_epoch": 0}
PARTITION_OF_TOPIC = {"name": TOPIC_NAME, "partitions": [0]}
NO_FILTER = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": "User:nobody",
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}


def of_configs(resource_type: int, name: str, **more: Any) -> dict[str, Any]:
    resource = {"resource_type": resource_type, "resource_name": name, **more}
    return {"resources": [resource]}


def altered(resource_type: int, name: str) -> dict[str, Any]:
    return {**of_configs(resource_type, name, configs=[]), "validate_only": True}


def created(name: str) -> dict[str, Any]:
    topic = {"name": name, "num_partitions": 1, "replication_factor": 1}
    return {"topics": [topic], "validate_only": True, "timeout": 10_000}


def markers() -> dict[str, Any]:
    marker = {
        "producer_id": 7,
        "producer_epoch": 0,
        "transaction_result": False,
        "topics": [{"name": MISSING_TOPIC, "partition_indexes": [0]}],
        "coordinator_epoch": 0,
    }
    return {"markers": [marker]}


def leader_epochs() -> dict[str, Any]:
    partition = {"partition": 0, "leader_epoch": 0, "current_leader_epoch": -1}
    return {"replica_id": -1, "topics": [{"topic": TOPIC_NAME, "partitions": [partition]}]}


def added_by_client() -> dict[str, Any]:
    return {
        "v3_and_below_transactional_id": TXN_ID,
        "v3_and_below_producer_id": 7,
        "v3_and_below_producer_epoch": 0,
        "v3_and_below_topics": [PARTITION_OF_TOPIC],
    }


ROWS = (
    Row("produce", (on_topic(WRITE),), produced(), 12),
    Row("produce", (on_topic(WRITE),), produced_by_id),
    Row(
        "produce",
        (on_transactional_id(WRITE), on_topic(WRITE)),
        produced(transactional_id=TXN_ID),
        11,
    ),
    Row("fetch", (on_topic(READ),), fetched(), 12),
    Row("fetch", (on_topic(READ),), fetched_by_id(-1)),
    Row("fetch", (on_cluster(CLUSTER_ACTION, "topic"),), fetched_by_id(99)),
    Row(
        "list_offsets",
        (on_topic(DESCRIBE),),
        {
            "replica_id": -1,
            "topics": [
                {"name": TOPIC_NAME, "partitions": [{"partition_index": 0, "timestamp": -1}]}
            ],
        },
    ),
    Row("metadata", (on_topic(DESCRIBE),), {"topics": [{"name": TOPIC_NAME}]}),
    Row(
        "metadata",
        (on_topic(DESCRIBE),),
        lambda raw: {"topics": [{"topic_id": topic_id(raw, TOPIC_NAME), "name": None}]},
    ),
    Row(
        "metadata",
        (on_topic(DESCRIBE, MISSING_TOPIC),),
        {"topics": [{"name": MISSING_TOPIC}], "allow_auto_topic_creation": False},
    ),
    Row(
        "metadata",
        (on_topic(DESCRIBE, "created-by-topic"), on_topic(CREATE, "created-by-topic")),
        {"topics": [{"name": "created-by-topic"}], "allow_auto_topic_creation": True},
    ),
    Row(
        "metadata",
        (on_topic(DESCRIBE, "created-by-cluster"), on_cluster(CREATE, "topic")),
        {"topics": [{"name": "created-by-cluster"}], "allow_auto_topic_creation": True},
    ),
    Row("offset_commit", (on_group(READ), on_topic(READ)), committed_by_id),
    Row(
        "offset_commit",
        (on_group(READ), on_topic(READ)),
        {
            "group_id": GROUP_ID,
            "generation_id_or_member_epoch": -1,
            "topics": [{"name": TOPIC_NAME, "partitions": [COMMITTED]}],
        },
        9,
    ),
    Row("offset_fetch", (on_group(DESCRIBE), on_topic(DESCRIBE)), offsets_by_id),
    *(
        Row(
            "offset_fetch",
            (on_group(DESCRIBE), on_topic(DESCRIBE)),
            {
                "group_id": GROUP_ID,
                "topics": [{"name": TOPIC_NAME, "partition_indexes": [0]}],
            },
            version,
        )
        for version in (1, 7)
    ),
    Row("find_coordinator", (on_group(DESCRIBE),), {"coordinator_keys": [GROUP_ID]}),
    Row("find_coordinator", (on_group(DESCRIBE),), {"key": GROUP_ID}, 3),
    Row(
        "find_coordinator",
        (on_transactional_id(DESCRIBE),),
        {"coordinator_keys": [TXN_ID], "key_type": 1},
    ),
    Row(
        "join_group",
        (on_group(READ),),
        {
            "group_id": GROUP_ID,
            "session_timeout": 30_000,
            "member_id": "unknown",
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b""}],
        },
    ),
    Row("heartbeat", (on_group(READ),), OF_MEMBER),
    Row(
        "leave_group",
        (on_group(READ),),
        {"group_id": GROUP_ID, "members": [{"member_id": "unknown"}]},
    ),
    Row(
        "sync_group",
        (on_group(READ),),
        {**OF_MEMBER, "protocol_type": "consumer", "protocol_name": "range"},
    ),
    Row("describe_groups", (on_group(DESCRIBE),), {"groups": [GROUP_ID]}),
    Row(
        "consumer_group_heartbeat",
        (on_group(READ), on_topic(DESCRIBE)),
        {
            "group_id": GROUP_ID,
            "member_id": "missing",
            "member_epoch": 1,
            "subscribed_topic_names": [TOPIC_NAME],
            "topic_partitions": None,
        },
    ),
    Row("consumer_group_describe", (on_group(DESCRIBE),), {"group_ids": [GROUP_ID]}),
    Row("delete_groups", (on_group(DELETE, "missing"),), {"groups_names": ["missing"]}),
    Row(
        "offset_delete",
        (on_group(DELETE), on_topic(READ)),
        {
            "group_id": GROUP_ID,
            "topics": [{"name": TOPIC_NAME, "partitions": [{"partition_index": 5}]}],
        },
    ),
    Row("create_topics", (on_topic(CREATE, "new"),), created("new")),
    Row("create_topics", (on_cluster(CREATE, "topic"),), created("new-2")),
    Row(
        "delete_topics",
        (on_topic(DESCRIBE, MISSING_TOPIC),),
        {"topics": [{"name": MISSING_TOPIC}], "timeout": 10_000},
    ),
    Row(
        "delete_topics",
        (on_topic(DELETE, "deleted-by-topic"),),
        {"topics": [{"name": "deleted-by-topic"}], "timeout": 10_000},
    ),
    Row(
        "delete_topics",
        (on_topic(DESCRIBE, "deleted-by-id"), on_cluster(DELETE, "topic")),
        lambda raw: {
            "topics": [{"name": None, "topic_id": topic_id(raw, "deleted-by-id")}],
            "timeout": 10_000,
        },
    ),
    Row(
        "create_partitions",
        (on_topic(ALTER),),
        {
            "topics": [{"name": TOPIC_NAME, "count": 1}],
            "validate_only": True,
            "timeout": 10_000,
        },
    ),
    Row(
        "delete_records",
        (on_topic(DELETE),),
        {
            "topics": [{"name": TOPIC_NAME, "partitions": [{"partition_index": 0, "offset": 0}]}],
            "timeout": 10_000,
        },
    ),
    Row(
        "init_producer_id",
        (on_transactional_id(WRITE),),
        {"transactional_id": TXN_ID, "transaction_timeout": 0},
        5,
    ),
    Row(
        "init_producer_id",
        (on_transactional_id(WRITE), on_transactional_id(TWO_PHASE_COMMIT)),
        {"transactional_id": TXN_ID, "transaction_timeout": 0, "enable2_pc": True},
        6,
    ),
    Row(
        "init_producer_id",
        (on_cluster(IDEMPOTENT_WRITE),),
        {"transactional_id": None, "transaction_timeout": 1000},
    ),
    Row(
        "init_producer_id",
        (
            Needs(
                operation=WRITE,
                resource_type=TOPIC,
                name="any",
                code=ErrorCode.cluster_authorization_failed,
            ),
        ),
        {"transactional_id": None, "transaction_timeout": 1000},
    ),
    Row("offset_for_leader_epoch", (on_topic(DESCRIBE),), leader_epochs()),
    Row("offset_for_leader_epoch", (on_cluster(CLUSTER_ACTION, "topic"),), leader_epochs()),
    Row(
        "add_partitions_to_txn",
        (on_transactional_id(WRITE), on_topic(WRITE)),
        added_by_client(),
        3,
    ),
    Row(
        "add_partitions_to_txn",
        (on_cluster(CLUSTER_ACTION),),
        {"transactions": [{**OF_PRODUCER, "verify_only": True, "topics": [PARTITION_OF_TOPIC]}]},
    ),
    Row(
        "add_offsets_to_txn",
        (on_transactional_id(WRITE), on_group(READ)),
        {**OF_PRODUCER, "group_id": GROUP_ID},
    ),
    Row("end_txn", (on_transactional_id(WRITE),), {**OF_PRODUCER, "committed": False}),
    Row("write_txn_markers", (on_cluster(ALTER),), markers()),
    Row("write_txn_markers", (on_cluster(CLUSTER_ACTION),), markers()),
    Row(
        "txn_offset_commit",
        (on_transactional_id(WRITE), on_group(READ), on_topic(READ)),
        {
            **OF_PRODUCER,
            "group_id": GROUP_ID,
            "topics": [{"name": TOPIC_NAME, "partitions": [COMMITTED]}],
        },
    ),
    Row("describe_acls", (on_cluster(DESCRIBE),), NO_FILTER),
    Row(
        "create_acls",
        (on_cluster(ALTER),),
        {"creations": [Acl(principal="x", operation=READ, resource_name="").fields]},
    ),
    Row("delete_acls", (on_cluster(ALTER),), {"filters": [NO_FILTER]}),
    Row("describe_configs", (on_topic(DESCRIBE_CONFIGS),), of_configs(TOPIC_CONFIGS, TOPIC_NAME)),
    Row("describe_configs", (on_cluster(DESCRIBE_CONFIGS),), of_configs(BROKER_CONFIGS, "1")),
    Row("describe_configs", (on_group(DESCRIBE_CONFIGS),), of_configs(GROUP_CONFIGS, GROUP_ID)),
    Row("describe_configs", (on_cluster(DESCRIBE_CONFIGS),), of_configs(LOGGER_CONFIGS, "1")),
    Row("describe_configs", (on_cluster(DESCRIBE_CONFIGS),), of_configs(CLIENT_METRICS, "m")),
    Row("list_config_resources", (on_cluster(DESCRIBE_CONFIGS),), {}),
    Row("alter_configs", (on_topic(ALTER_CONFIGS),), altered(TOPIC_CONFIGS, TOPIC_NAME)),
    Row("alter_configs", (on_cluster(ALTER_CONFIGS),), altered(BROKER_CONFIGS, "1")),
    Row(
        "incremental_alter_configs",
        (on_topic(ALTER_CONFIGS),),
        altered(TOPIC_CONFIGS, TOPIC_NAME),
    ),
    Row("incremental_alter_configs", (on_cluster(ALTER_CONFIGS),), altered(BROKER_CONFIGS, "1")),
    Row("incremental_alter_configs", (on_cluster(ALTER_CONFIGS),), altered(LOGGER_CONFIGS, "1")),
    Row("incremental_alter_configs", (on_cluster(ALTER_CONFIGS),), altered(CLIENT_METRICS, "m")),
    Row("incremental_alter_configs", (on_group(ALTER_CONFIGS),), altered(GROUP_CONFIGS, GROUP_ID)),
    Row(
        "alter_replica_log_dirs",
        (on_cluster(ALTER),),
        {"dirs": [{"path": "/", "topics": [{"name": TOPIC_NAME, "partitions": [0]}]}]},
    ),
    Row("describe_log_dirs", (on_cluster(DESCRIBE),), {"topics": None}),
    Row(
        "elect_leaders",
        (on_cluster(ALTER),),
        {
            "election_type": 0,
            "topic_partitions": [{"topic": TOPIC_NAME, "partitions": [0]}],
        },
    ),
    Row(
        "alter_partition_reassignments",
        (on_cluster(ALTER),),
        {
            "topics": [
                {"name": TOPIC_NAME, "partitions": [{"partition_index": 0, "replicas": None}]}
            ]
        },
    ),
    Row("list_partition_reassignments", (on_cluster(DESCRIBE),), {"topics": None}),
    Row(
        "describe_user_scram_credentials", (on_cluster(DESCRIBE),), {"users": [{"name": "nobody"}]}
    ),
    Row(
        "alter_user_scram_credentials",
        (on_cluster(ALTER),),
        {"deletions": [{"name": "nobody", "mechanism": 1}]},
    ),
    Row("update_features", (on_cluster(ALTER),), {"feature_updates": [], "validate_only": True}),
    Row(
        "describe_producers",
        (on_topic(READ),),
        {"topics": [{"name": TOPIC_NAME, "partition_indexes": [0]}]},
    ),
    Row("unregister_broker", (on_cluster(ALTER),), {"broker_id": 77}),
    Row(
        "describe_transactions",
        (on_transactional_id(DESCRIBE, "missing"),),
        {"transactional_ids": ["missing"]},
    ),
    Row(
        "describe_topic_partitions",
        (on_topic(DESCRIBE),),
        {"topics": [{"name": TOPIC_NAME}], "response_partition_limit": 10},
    ),
)


def principal(row: Row, count: int) -> str:
    """Return the principal that has the first `count` ACLs of a row."""
    return f"row-{ROWS.index(row)}-{count}"


@pytest.fixture(scope="module", autouse=True)
def _rows(secured: Cluster, admin: RawConnection) -> None:
    """Create the ACLs and the resources of all rows."""
    for name in (TOPIC_NAME, "deleted-by-topic", "deleted-by-id"):
        secured.create_topic(name)
    grant(
        admin,
        [
            Acl(
                principal=principal(row, count),
                operation=needed.operation,
                resource_type=needed.resource_type,
                resource_name=needed.name,
            )
            for row in ROWS
            for count in range(1, len(row.needs) + 1)
            for needed in row.needs[:count]
        ],
    )
    append(admin, TOPIC_NAME, batch(values("a")))
    await_coordinator(admin, GROUP_ID)
    assert commit(admin, GROUP_ID, TOPIC_NAME, 1) == ErrorCode.none


def codes_in(response: Any) -> set[ErrorCode]:
    """Return the error codes in a response, at any depth."""
    if isinstance(response, ErrorCode):
        return {response}
    if isinstance(response, tuple):
        return {code for element in response for code in codes_in(element)}
    if dataclasses.is_dataclass(response):
        return {
            code
            for field in dataclasses.fields(response)
            for code in codes_in(getattr(response, field.name))
        }
    return set()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.api}-{ROWS.index(row)}")
def test_operations_that_a_request_needs(secured: Cluster, admin: RawConnection, row: Row) -> None:
    fields = row.fields if isinstance(row.fields, dict) else row.fields(admin)
    version = row.version if row.version is not None else served(admin, row.api)[-1]

    def send(count: int) -> set[ErrorCode]:
        with log_in(secured, principal(row, count)) as client:
            return codes_in(client.call(row.api, version, **fields))

    for count, needed in enumerate(row.needs):
        assert send(count) & AUTHORIZATION_CODES == {needed.code}, needed
    assert not send(len(row.needs)) & AUTHORIZATION_CODES


def test_every_served_api_has_a_row(secured: Cluster, admin: RawConnection) -> None:
    found = admin.call(
        "api_versions", 3, client_software_name="conformance", client_software_version="1"
    )
    known = {row.api for row in ROWS} | WITHOUT_CHECK.keys()
    assert not {row.api for row in ROWS} & WITHOUT_CHECK.keys()
    apis = {api_key_map[entry.api_key] for entry in found.api_keys}
    assert known <= apis
    if secured.backend == "reference":
        assert apis == known
