"""Tests that one event does a limited amount of work, however many partitions a broker has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from broker_ref.api.partition_reader import PartitionReader
from broker_ref.config import BrokerConfig
from broker_ref.controller.metadata import ClusterMetadata, Commit
from broker_ref.controller.metadata_batches import decode_commits
from broker_ref.events import Effect, Event, PeerEffect
from broker_ref.node import metadata_follower
from broker_ref.node.broker import BrokerNode
from integration.raw import request
from tests.broker_ref.memory_storage import MemoryStorage
from tests.broker_ref.node.clients import Clients
from tests.broker_ref.virtual import VirtualCluster

FEW = 8
MANY = 80


def cluster_with(partitions: int) -> tuple[VirtualCluster, Clients]:
    cluster = VirtualCluster(*(BrokerConfig(node_id=each) for each in (1, 2)))
    cluster.start_all()
    clients = Clients(cluster)
    topic = {
        "name": "t",
        "num_partitions": -1,
        "replication_factor": -1,
        "assignments": [
            {"partition_index": index, "broker_ids": [1, 2]} for index in range(partitions)
        ],
        "configs": [],
    }
    clients.call(1, request("create_topics", 7, topics=[topic], timeout=10_000))
    cluster.advance(2_000)
    return cluster, clients


def most_storage_operations(partitions: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the most storage operations in one event while a topic is created and deleted."""
    counts = [0]
    check, handle = MemoryStorage.check, BrokerNode.handle

    def counting_check(disk: MemoryStorage, operation: str, path: str) -> None:
        counts[-1] += 1
        check(disk, operation, path)

    def counting_handle(node: BrokerNode, event: Event, now_ms: int) -> list[Effect | PeerEffect]:
        counts.append(0)
        return handle(node, event, now_ms)

    with monkeypatch.context() as patched:
        patched.setattr(MemoryStorage, "check", counting_check)
        patched.setattr(BrokerNode, "handle", counting_handle)
        cluster, clients = cluster_with(partitions)
        clients.call(1, request("delete_topics", 4, topic_names=["t"], timeout=10_000))
        cluster.advance(2_000)
    assert all(cluster.disk(f"broker-{each}").list("t-0") == [] for each in (1, 2))
    return max(counts)


def test_one_event_changes_a_limited_number_of_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    few = most_storage_operations(FEW, monkeypatch)
    assert most_storage_operations(MANY, monkeypatch) == few


def test_a_large_commit_is_decoded_and_applied_in_separate_events(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    work: list[set[str]] = []
    apply_commit, handle = ClusterMetadata.apply_commit, BrokerNode.handle

    def noted_handle(node: BrokerNode, event: Event, now_ms: int) -> list[Effect | PeerEffect]:
        work.append(set())
        return handle(node, event, now_ms)

    def noted_decoding(data: bytes) -> Iterator[Commit]:
        for commit in decode_commits(data):
            if len(commit.records) > MANY:
                work[-1].add("decoded")
            yield commit

    def noted_application(metadata: ClusterMetadata, commit: Commit, *delta: Any) -> None:
        if len(commit.records) > MANY and delta:  # The controller passes no delta.
            work[-1].add("applied")
        apply_commit(metadata, commit, *delta)

    monkeypatch.setattr(BrokerNode, "handle", noted_handle)
    monkeypatch.setattr(metadata_follower, "RECORDS_PER_STEP", MANY)
    monkeypatch.setattr(metadata_follower, "decode_commits", noted_decoding)
    monkeypatch.setattr(ClusterMetadata, "apply_commit", noted_application)
    cluster_with(MANY)
    kinds = [sorted(each) for each in work if each]
    assert kinds.count(["decoded"]) == kinds.count(["applied"]) == len(kinds) // 2 == 2


def located_partitions(monkeypatch: pytest.MonkeyPatch, *, is_follower: bool) -> list[int]:
    """Return a list to which each partition that a fetch of such a client visits is added."""
    located: list[int] = []
    locate = PartitionReader.locate

    def counting_locate(reader: PartitionReader, cached: Any) -> Any:
        if reader.is_follower == is_follower:
            located.append(cached.requested.partition)
        return locate(reader, cached)

    monkeypatch.setattr(PartitionReader, "locate", counting_locate)
    return located


def test_followers_fetch_without_visiting_idle_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, clients = cluster_with(MANY)
    assert clients.write(1, "first") is ErrorCode.none
    cluster.advance(2_000)
    located = located_partitions(monkeypatch, is_follower=True)
    assert clients.write(1, "second") is ErrorCode.none
    cluster.advance(5_000)
    assert set(located) == {0}


def consumer_fetch(session: tuple[int, int], offsets: Mapping[int, int]) -> Any:
    return request(
        "fetch",
        12,
        replica_id=-1,
        max_wait=100,
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=0,
        session_id=session[0],
        session_epoch=session[1],
        topics=[
            {
                "topic": "t",
                "partitions": [
                    {"partition": index, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
                    for index, offset in offsets.items()
                ],
            }
        ],
        forgotten_topics_data=[],
        rack_id="",
    )


def test_consumers_fetch_without_visiting_idle_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, clients = cluster_with(MANY)
    opened = clients.call(1, consumer_fetch((0, 0), dict.fromkeys(range(MANY), 0)))
    session_id = opened.session_id
    clients.call(1, consumer_fetch((session_id, 1), {}))
    located = located_partitions(monkeypatch, is_follower=False)
    waiting = clients.send(1, consumer_fetch((session_id, 2), {}))
    assert clients.write(1, "first") is ErrorCode.none
    (topic,) = clients.outcome(waiting).responses
    assert [each.partition_index for each in topic.partitions] == [0]
    clients.call(1, consumer_fetch((session_id, 3), {0: 1}))
    assert set(located) == {0}
    located.clear()
    clients.call(1, consumer_fetch((session_id, 4), {}))
    assert located == []
    cluster.broker(1).metadata.acls.clear()  # A change of ACLs may revoke a permission.
    clients.call(1, consumer_fetch((session_id, 5), {}))
    assert set(located) == set(range(MANY))
