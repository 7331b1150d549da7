"""Tests of committed offsets in a node: they are stored, loaded, and deleted with their topic."""

from __future__ import annotations

from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.offset_commit.v7 import request as commit_v7
from kio.schema.offset_fetch.v8 import request as fetch_v8

from broker_ref.api import k08_offset_commit as offset_commit
from broker_ref.api import k09_offset_fetch as offset_fetch
from broker_ref.api.contract import Call
from broker_ref.config import BrokerConfig
from broker_ref.controller.controller import Controller
from broker_ref.group.offset_metadata_manager import Committer
from broker_ref.group.offsets import TopicPartition
from broker_ref.group.records import OffsetCommitValue
from broker_ref.protocol.errors import ApiError
from broker_ref.protocol.identifiers import Uuid
from broker_ref.replication.partition import Partition
from tests.broker_ref.memory_storage import MemoryStorage
from tests.broker_ref.node.driver import NodeDriver
from tests.broker_ref.node.requests import create_topic, ms, request


@pytest.fixture
def driver() -> NodeDriver:
    made = NodeDriver(BrokerConfig(offsets_topic_num_partitions=4, offset_metadata_max_bytes=10))
    create_topic(made, "t", 3)
    made.call(request(10, 2, key="g", key_type=0))
    return made


def commit(
    driver: NodeDriver,
    *offsets: tuple[int, int],
    group: str = "g",
    generation: int = -1,
    member: str = "",
    metadata: str | None = "m",
) -> list[ErrorCode]:
    """Commit (partition, offset) pairs of topic t and return the error codes."""
    pairs: Any = offsets
    name: Any = "t"
    epoch: Any = 2
    partitions = tuple(
        commit_v7.OffsetCommitRequestPartition(
            partition_index=partition,
            committed_offset=offset,
            committed_leader_epoch=epoch,
            committed_metadata=metadata,
        )
        for partition, offset in pairs
    )
    response = driver.call(
        request(
            8,
            7,
            group_id=group,
            generation_id_or_member_epoch=generation,
            member_id=member,
            group_instance_id=None,
            topics=(commit_v7.OffsetCommitRequestTopic(name=name, partitions=partitions),),
        )
    )
    return [partition.error_code for partition in response.topics[0].partitions]


Found = dict[tuple[str, int], tuple[int, int, str]]


def committed(
    driver: NodeDriver, group: str = "g", topics: dict[str, tuple[int, ...]] | None = None
) -> Found:
    named: Any = topics
    wanted = None
    if topics is not None:
        wanted = tuple(
            fetch_v8.OffsetFetchRequestTopics(name=name, partition_indexes=indexes)
            for name, indexes in named.items()
        )
    group_id: Any = group
    response = driver.call(
        fetch_v8.OffsetFetchRequest(
            groups=(fetch_v8.OffsetFetchRequestGroup(group_id=group_id, topics=wanted),),
            require_stable=True,
        )
    )
    (found,) = response.groups
    assert found.error_code is ErrorCode.none
    return {
        (topic.name, partition.partition_index): (
            partition.committed_offset,
            partition.committed_leader_epoch,
            partition.metadata,
        )
        for topic in found.topics
        for partition in topic.partitions
    }


NOTHING = (-1, -1, "")


@pytest.mark.parametrize("stop", ["none", "clean", "crash"])
def test_offsets_survive_a_restart(driver: NodeDriver, stop: str) -> None:
    assert commit(driver, (0, 5), (2, 7)) == [ErrorCode.none, ErrorCode.none]
    assert commit(driver, (0, 6), metadata=None) == [ErrorCode.none]
    assert commit(driver, (0, 1), group="other") == [ErrorCode.none]
    if stop == "clean":
        driver.restart()
    elif stop == "crash":
        driver.crash()
    assert committed(driver) == {("t", 0): (6, 2, ""), ("t", 2): (7, 2, "m")}
    assert committed(driver, topics={"t": (0, 1), "no": (0,)}) == {
        ("t", 0): (6, 2, ""),
        ("t", 1): NOTHING,
        ("no", 0): NOTHING,
    }
    assert committed(driver, "other") == {("t", 0): (1, 2, "m")}
    assert committed(driver, "unknown") == {}


@pytest.mark.parametrize("retention_ms", [2**63 - 1, -(2**63)])
def test_expiry_of_an_offset_can_overflow(driver: NodeDriver, retention_ms: int) -> None:
    partition = offset_commit.CommittedPartition(
        partition_index=0, committed_offset=5, committed_metadata=None
    )
    offset_commit.handle(
        driver.broker,
        Call(version=2, client_id="test", now_ms=driver.now_ms),
        offset_commit.OffsetCommitRequest(
            group_id="g",
            topics=(offset_commit.CommittedTopic(name="t", partitions=(partition,)),),
            retention_time_ms=retention_ms,
        ),
    )
    found = driver.broker.groups.committed("g", TopicPartition(topic="t", partition=0))
    assert found is not None
    assert (found.offset, found.expire_timestamp_ms < driver.now_ms) == (5, True)


def test_invalid_partitions_do_not_prevent_other_commits(driver: NodeDriver) -> None:
    assert commit(driver, (0, 5), (9, 1)) == [
        ErrorCode.none,
        ErrorCode.unknown_topic_or_partition,
    ]
    assert commit(driver, (1, 1), metadata="x" * 11) == [ErrorCode.offset_metadata_too_large]
    assert committed(driver) == {("t", 0): (5, 2, "m")}


def test_members_of_unknown_generations(driver: NodeDriver) -> None:
    assert commit(driver, (0, 5), group="new", generation=3) == [ErrorCode.illegal_generation]
    assert commit(driver, (0, 5), member="m") == [ErrorCode.none]
    assert commit(driver, (0, 6), generation=3) == [ErrorCode.unknown_member_id]
    assert committed(driver) == {("t", 0): (5, 2, "m")}


def delete_topic(driver: NodeDriver, name: str) -> None:
    (response,) = driver.call(request(20, 5, topic_names=(name,), timeout=ms(0))).responses
    assert response.error_code is ErrorCode.none


@pytest.mark.parametrize("crash", [False, True])
def test_offsets_are_deleted_with_their_topic(driver: NodeDriver, crash: bool) -> None:
    commit(driver, (0, 5))
    delete_topic(driver, "t")
    create_topic(driver, "t")
    if crash:
        driver.crash()
    assert committed(driver) == {}


def test_offsets_of_a_deleted_topic_do_not_apply_to_a_new_one() -> None:
    """A crash loses the tombstones for the offsets of the deleted topic."""
    storage = MemoryStorage()
    driver = NodeDriver(storage=storage)
    create_topic(driver, "t")
    driver.call(request(10, 2, key="g", key_type=0))
    commit(driver, (0, 5))
    directory = f"__consumer_offsets-{driver.broker.groups.partition_for('g')}"
    log = f"{directory}/{0:020}.log"
    size = len(storage.read(log))
    delete_topic(driver, "t")
    create_topic(driver, "t")
    assert len(storage.read(log)) > size
    storage.cut(log, size)
    driver.crash()
    assert committed(driver) == {}


@pytest.mark.parametrize("is_same", [True, False])
def test_an_offset_of_another_topic_id_is_not_returned(driver: NodeDriver, is_same: bool) -> None:
    topic_id = driver.broker.metadata.topics["t"].topic_id
    committed_id = topic_id if is_same else Uuid(int=7)
    value = OffsetCommitValue(
        offset=5, leader_epoch=2, metadata="m", commit_timestamp_ms=0, topic_id=committed_id
    )
    t0 = TopicPartition(topic="t", partition=0)
    driver.broker.groups.commit("g", Committer(), {t0: value}, driver.now_ms)

    def fetched(version: int, **topic: Any) -> int:
        topics = (offset_fetch.RequestedTopic(partition_indexes=(0,), **topic),)
        group = offset_fetch.RequestedGroup(group_id="g", topics=topics)
        response: Any = offset_fetch.handle(
            driver.broker,
            Call(version=version, client_id="test", now_ms=driver.now_ms),
            offset_fetch.OffsetFetchRequest(groups=(group,)),
        )
        offset: int = response.groups[0].topics[0].partitions[0].committed_offset
        return offset

    assert fetched(10, topic_id=topic_id) == (5 if is_same else -1)
    assert fetched(9, name="t") == 5


def test_more_tombstones_than_fit_into_a_batch() -> None:
    driver = NodeDriver(BrokerConfig(offsets_topic_num_partitions=1, message_max_bytes=200))
    create_topic(driver, "t", 20)
    driver.call(request(10, 2, key="g", key_type=0))
    for partition in range(20):
        assert commit(driver, (partition, 1)) == [ErrorCode.none]
    written = end_of_offsets_log(driver)
    delete_topic(driver, "t")
    assert end_of_offsets_log(driver) == written + 20
    driver.crash()
    assert committed(driver) == {}


def end_of_offsets_log(driver: NodeDriver) -> int:
    offsets = driver.broker.groups
    return offsets.check_coordinator("g").log.log_end_offset


def test_failed_tombstones_do_not_prevent_the_deletion_of_a_topic(
    driver: NodeDriver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert commit(driver, (0, 5)) == [ErrorCode.none]
    monkeypatch.setattr(Partition, "append", refuse)
    delete_topic(driver, "t")
    monkeypatch.undo()
    create_topic(driver, "t", 3)
    assert "'g'" in caplog.text
    assert "'t'" in caplog.text
    assert committed(driver) == {}
    driver.crash()
    assert committed(driver) == {}


def test_existing_topic_keeps_its_offsets(
    driver: NodeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert commit(driver, (0, 5)) == [ErrorCode.none]
    monkeypatch.setattr(Controller, "delete_topics", refuse)
    response = driver.call(request(20, 5, topic_names=("t",), timeout=ms(0))).responses[0]
    assert response.error_code is ErrorCode.kafka_storage_error
    assert committed(driver) == {("t", 0): (5, 2, "m")}


def refuse(*_: object, **__: object) -> None:
    raise ApiError(ErrorCode.kafka_storage_error, "the log is full")


def test_no_coordinator_without_the_offsets_topic() -> None:
    driver = NodeDriver()
    create_topic(driver, "t")
    assert commit(driver, (0, 5)) == [ErrorCode.not_coordinator]


def test_more_offsets_than_fit_into_a_batch() -> None:
    driver = NodeDriver(BrokerConfig(offsets_topic_num_partitions=1, message_max_bytes=100))
    create_topic(driver, "t", 3)
    driver.call(request(10, 2, key="g", key_type=0))
    refused = commit(driver, (0, 1), (1, 1), (2, 1))
    assert refused == [ErrorCode.unknown_server_error] * 3
    assert committed(driver) == {}
