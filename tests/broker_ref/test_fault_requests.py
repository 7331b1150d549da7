"""Tests of the topics, partitions and senders in kio's requests."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from broker_ref.fault_requests import request_info
from broker_ref.faults import RequestInfo
from integration.raw import request

TOPIC_ID = UUID(int=4711)


def info(entity: Any) -> RequestInfo:
    return request_info(
        entity,
        node_id=1,
        api_key=int(type(entity).__api_key__),
        version=int(type(entity).__version__),
        client_id="test",
        topic_name={TOPIC_ID: "by-id"}.get,
    )


def partitions(**fields: Any) -> list[dict[str, Any]]:
    return [{"name": "orders", "partitions": [{"partition_index": 2, **fields}]}]


@pytest.mark.parametrize(
    "entity",
    [
        request(
            "produce", 9, acks=1, topic_data=[{"name": "orders", "partition_data": [{"index": 2}]}]
        ),
        request("fetch", 12, topics=[{"topic": "orders", "partitions": [{"partition": 2}]}]),
        request("list_offsets", 5, replica_id=-1, topics=partitions()),
        request("offset_commit", 8, topics=partitions()),
        request("offset_fetch", 7, topics=[{"name": "orders", "partition_indexes": [2]}]),
        request(
            "offset_fetch",
            8,
            groups=[{"group_id": "g", "topics": [{"name": "orders", "partition_indexes": [2]}]}],
        ),
        request("delete_records", 2, topics=partitions()),
        request(
            "alter_replica_log_dirs",
            2,
            dirs=[{"path": "/data", "topics": [{"name": "orders", "partitions": [2]}]}],
        ),
        request("elect_leaders", 2, topic_partitions=[{"topic": "orders", "partitions": [2]}]),
        request(
            "offset_for_leader_epoch",
            4,
            replica_id=-1,
            topics=[{"topic": "orders", "partitions": [{"partition": 2}]}],
        ),
    ],
    ids=lambda entity: f"{type(entity).__name__}{type(entity).__version__}",
)
def test_partitions_are_found_in_all_field_names(entity: Any) -> None:
    found = info(entity)
    assert found.partitions == {("orders", 2)}
    assert found.topics == {"orders"}
    assert not found.is_between_nodes


def test_topics_are_found_by_id_and_without_partitions() -> None:
    entity = request("fetch", 17, topics=[{"topic_id": TOPIC_ID, "partitions": [{"partition": 0}]}])
    assert info(entity).partitions == {("by-id", 0)}
    unknown = request("fetch", 17, topics=[{"topic_id": UUID(int=9), "partitions": []}])
    assert info(unknown).topics == frozenset()
    assert info(request("delete_topics", 5, topic_names=["a", "b"])).topics == {"a", "b"}
    assert info(request("metadata", 12, topics=None)).topics == frozenset()
    configs = [
        {"resource_type": 2, "resource_name": "configured"},
        {"resource_type": 4, "resource_name": "1"},
    ]
    assert info(request("describe_configs", 4, resources=configs)).topics == {"configured"}
    assert info(request("describe_groups", 5, groups=["g"])).topics == frozenset()


@pytest.mark.parametrize(
    "entity",
    [
        request("fetch", 17, replica_state={"replica_id": 3}),
        request("fetch", 12, replica_id=3),
        request("offset_for_leader_epoch", 4, replica_id=3),
        request("broker_heartbeat", 1, broker_id=3),
        request("alter_partition", 3, broker_id=3),
        request("fetch_snapshot", 1, replica_id=3),
    ],
    ids=lambda entity: f"{type(entity).__name__}{type(entity).__version__}",
)
def test_the_sending_broker_is_known(entity: Any) -> None:
    found = info(entity)
    assert found.sender_id == 3
    assert found.is_between_nodes


def test_the_sender_of_an_envelope_is_unknown() -> None:
    found = info(request("envelope", 0, request_data=b"", client_host_address=b"\0\0\0\0"))
    assert found.sender_id is None
    assert found.is_between_nodes
    assert info(request("broker_registration", 4, broker_id=2)).sender_id is not None
    assert info(request("unregister_broker", 0, broker_id=2)).sender_id is None
