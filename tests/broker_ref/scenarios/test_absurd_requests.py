"""Tests of random invalid requests: each entry gets its error code, and nothing changes."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from integration.raw import request
from tests.broker_ref.node.requests import batch
from tests.broker_ref.scenarios.three_brokers import BROKERS, TOPIC, ThreeBrokers
from tests.broker_ref.work import assert_linear

MANY = 10_000
APIS = (
    "fetch",
    "list_offsets",
    "offset_for_leader_epoch",
    "produce",
    "offset_commit",
    "alter_partition_reassignments",
    "delete_records",
)
INVALID_NAMES = ("", ".", "..", "a b", "a/b", "../t-0", "a\0b", "ü", "x" * 250, "a\nb", "t:1")
INVALID_CONFIGS = (
    ("no.such.config", "1"),
    ("retention.ms", "soon"),
    ("retention.ms", ""),
    ("segment.bytes", "-1"),
    ("segment.bytes", str(2**31)),
    ("cleanup.policy", "shred"),
    ("min.insync.replicas", "0"),
    ("compression.type", "rar"),
    ("max.message.bytes", "1e6"),
    ("unclean.leader.election.enable", "perhaps"),
)


@pytest.fixture(scope="module")
def cluster() -> ThreeBrokers:
    """Run one cluster for all tests, because rejected requests do not change it."""
    return ThreeBrokers()


@pytest.fixture(autouse=True)
def unchanged(cluster: ThreeBrokers) -> Any:
    """Check that the metadata is unchanged, and that writes are replicated as before."""
    end_offset = cluster.controller.side.metadata.end_offset
    yield
    assert cluster.controller.side.metadata.end_offset == end_offset
    cluster.write_acknowledged(1, "still served")
    cluster.settle()
    assert len(cluster.agreed()) == cluster.replica(1).high_watermark


def absurd_assignments(random: Random) -> list[list[int]]:
    unknown = [random.choice((-1, 0, 4, 3000, 2**31 - 1, -(2**31))) for _ in range(3)]
    return [[], [1, 1], [random.choice(BROKERS)] * 50, unknown, [1, unknown[0]], list(range(1_000))]


@pytest.mark.parametrize("name", INVALID_NAMES)
def test_invalid_names_are_refused(cluster: ThreeBrokers, name: str) -> None:
    topic = {"name": name, "num_partitions": 1, "replication_factor": 1}
    create = request("create_topics", 7, topics=[topic], timeout=1_000)
    (response,) = cluster.await_response(cluster.send(2, create)).topics
    assert response.error_code is ErrorCode.invalid_topic_exception
    assert response.error_message
    metadata = request("metadata", 12, topics=[{"name": name}], allow_auto_topic_creation=True)
    (response,) = cluster.await_response(cluster.send(2, metadata)).topics
    assert response.error_code is ErrorCode.invalid_topic_exception


@pytest.mark.parametrize(("config", "value"), INVALID_CONFIGS)
def test_invalid_configs_are_refused(cluster: ThreeBrokers, config: str, value: str) -> None:
    configs = [{"name": config, "value": value}]
    topic = {"name": "new", "num_partitions": 1, "replication_factor": 1, "configs": configs}
    create = request("create_topics", 7, topics=[topic], timeout=1_000)
    (response,) = cluster.await_response(cluster.send(2, create)).topics
    assert response.error_code is ErrorCode.invalid_config
    assert config in response.error_message
    changes = [{"name": config, "config_operation": 0, "value": value}]
    resource = {"resource_type": 2, "resource_name": TOPIC, "configs": changes}
    alter = request("incremental_alter_configs", 1, resources=[resource])
    (altered,) = cluster.await_response(cluster.send(3, alter)).responses
    assert altered.error_code is ErrorCode.invalid_config


def test_absurd_assignments_are_refused(cluster: ThreeBrokers, seed: int) -> None:
    random = Random(seed)
    for replicas in absurd_assignments(random):
        assignments = [{"partition_index": 0, "broker_ids": replicas}]
        topic = {"name": "new", "num_partitions": -1, "replication_factor": -1}
        create = request(
            "create_topics", 7, topics=[topic | {"assignments": assignments}], timeout=1_000
        )
        (response,) = cluster.await_response(cluster.send(random.choice(BROKERS), create)).topics
        assert response.error_code is ErrorCode.invalid_replica_assignment, replicas
        moves = [{"name": TOPIC, "partitions": [{"partition_index": 0, "replicas": replicas}]}]
        reassign = request("alter_partition_reassignments", 0, topics=moves, timeout=1_000)
        moved = cluster.await_response(cluster.send(random.choice(BROKERS), reassign))
        assert moved.responses[0].partitions[0].error_code is (
            ErrorCode.invalid_replica_assignment
        ), replicas
        grow = request(
            "create_partitions",
            3,
            topics=[{"name": TOPIC, "count": 2, "assignments": [{"broker_ids": replicas}]}],
            timeout=1_000,
        )
        (grown,) = cluster.await_response(cluster.send(random.choice(BROKERS), grow)).results
        assert grown.error_code is ErrorCode.invalid_replica_assignment, replicas


def test_partition_indexes_with_gaps_are_refused(
    cluster: ThreeBrokers,
) -> None:
    for indexes in ([1], [0, 2], [0, 0], [-1], [2**31 - 1]):
        assignments = [{"partition_index": each, "broker_ids": [1]} for each in indexes]
        topic = {"name": "new", "num_partitions": -1, "replication_factor": -1}
        create = request(
            "create_topics", 7, topics=[topic | {"assignments": assignments}], timeout=1_000
        )
        (response,) = cluster.await_response(cluster.send(1, create)).topics
        assert response.error_code is ErrorCode.invalid_replica_assignment, indexes


def requests_with(count: int, random: Random) -> dict[str, Any]:
    """Return requests with `count` partitions that do not exist."""
    indexes = random.sample(range(1, 2**31 - 1), count)
    fetched = [{"partition": each, "fetch_offset": 0} for each in indexes]
    listed = [{"partition_index": each, "timestamp": -1} for each in indexes]
    epochs = [{"partition": each, "leader_epoch": 0} for each in indexes]
    records = batch("never")
    written = [{"index": each, "records": records} for each in indexes]
    committed = [{"partition_index": each, "committed_offset": 1} for each in indexes]
    moves = [{"partition_index": each, "replicas": [1, 2, 3]} for each in indexes]
    deleted = [{"partition_index": each, "offset": 1} for each in indexes]
    named = {"name": TOPIC}
    return {
        "fetch": request("fetch", 12, topics=[{"topic": TOPIC, "partitions": fetched}]),
        "list_offsets": request("list_offsets", 7, topics=[named | {"partitions": listed}]),
        "offset_for_leader_epoch": request(
            "offset_for_leader_epoch", 4, topics=[{"topic": TOPIC, "partitions": epochs}]
        ),
        "produce": request(
            "produce", 9, acks=-1, timeout=1_000, topic_data=[named | {"partition_data": written}]
        ),
        "offset_commit": request(
            "offset_commit", 9, group_id="g", generation_id_or_member_epoch=-1,
            topics=[named | {"partitions": committed}],
        ),
        "alter_partition_reassignments": request(
            "alter_partition_reassignments", 0, timeout=1_000,
            topics=[named | {"partitions": moves}],
        ),
        "delete_records": request(
            "delete_records", 2, timeout=1_000, topics=[named | {"partitions": deleted}]
        ),
    }  # fmt: skip


def codes_in(response: Any) -> list[ErrorCode]:
    """Return the error codes of all partitions in a response of any type."""
    topics = next(
        getattr(response, name) for name in ("responses", "topics") if hasattr(response, name)
    )
    partitions = [
        partition
        for topic in topics
        for partition in getattr(topic, "partitions", None) or topic.partition_responses
    ]
    return [partition.error_code for partition in partitions]


@pytest.mark.slow
@pytest.mark.parametrize("api", APIS)
def test_many_partitions_get_a_result_each(cluster: ThreeBrokers, seed: int, api: str) -> None:
    expected = {ErrorCode.unknown_topic_or_partition}
    if api == "offset_commit":
        expected |= {ErrorCode.not_coordinator, ErrorCode.coordinator_not_available}

    def send(count: int) -> None:
        sent = requests_with(count, Random(seed))[api]
        codes = codes_in(cluster.await_response(cluster.send(1, sent)))
        assert len(codes) == count
        assert set(codes) <= expected

    assert_linear(send, entries=500)


def test_more_than_ten_thousand_partitions_in_one_request_are_refused(
    cluster: ThreeBrokers,
) -> None:
    """The limit is Kafka's `MAX_PARTITIONS_PER_BATCH`, for all topics of the request together."""
    topics = [
        {"name": f"wide-{number}", "num_partitions": partitions, "replication_factor": 3}
        for number, partitions in enumerate((MANY, 1))
    ]
    create = request("create_topics", 7, topics=topics, timeout=1_000)
    for response in cluster.await_response(cluster.send(1, create)).topics:
        assert response.error_code is ErrorCode.policy_violation
