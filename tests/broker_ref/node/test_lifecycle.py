"""Tests of the lifecycle of a node and its storage: start, stop and crash."""

from __future__ import annotations

from random import Random

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.metadata.v12.request import MetadataRequestTopic
from kio.schema.types import TopicName

from broker_ref.config import BrokerConfig
from broker_ref.events import TimePassed
from broker_ref.identity import WrongDirectoryError
from integration.simulation.event_queue import START_MS
from tests.broker_ref.memory_storage import MemoryStorage
from tests.broker_ref.node.driver import NodeDriver
from tests.broker_ref.node.requests import (
    batch,
    create_topic,
    fetch,
    fetched,
    ms,
    produce,
    produced,
    request,
)


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage()


@pytest.fixture
def driver(storage: MemoryStorage) -> NodeDriver:
    return NodeDriver(storage=storage)


def metadata_of(driver: NodeDriver) -> dict[str, tuple[object, int, int]]:
    """Return topic id, partition count and the first partition's leader epoch by topic."""
    everything = request(
        3,
        12,
        topics=None,
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )
    return {
        topic.name: (topic.topic_id, len(topic.partitions), topic.partitions[0].leader_epoch)
        for topic in driver.call(everything).topics
    }


@pytest.mark.parametrize("stop", ["cleanly", "by a crash"])
def test_topics_and_records_outlive_the_node(driver: NodeDriver, stop: str) -> None:
    topic_id = create_topic(driver, "t", 2, retention_ms="1234")
    driver.call(produce(batch("a", "b")))
    cluster_id = driver.broker.cluster_id
    driver.restart() if stop == "cleanly" else driver.crash()
    assert driver.broker.cluster_id == cluster_id
    assert metadata_of(driver)["t"] == (topic_id, 2, 2)
    (response,) = fetched(driver.call(fetch((0, 0))))
    assert response.high_watermark == 2


def test_acknowledged_metadata_survives_power_loss() -> None:
    for seed in range(20):
        storage, journal = MemoryStorage(), MemoryStorage()
        driver = NodeDriver(storage=storage, controller_storage=journal)
        topic_id = create_topic(driver, "t")
        ids = [producer_id(driver) for _ in range(3)]
        random = Random(seed)
        survivor = NodeDriver(
            storage=storage.crash(random), controller_storage=journal.crash(random), seed=99
        )
        assert metadata_of(survivor)["t"][0] == topic_id
        assert producer_id(survivor) not in ids


def producer_id(driver: NodeDriver) -> int:
    response = driver.call(
        request(
            22,
            3,
            transactional_id=None,
            transaction_timeout=ms(0),
            producer_id=-1,
            producer_epoch=-1,
        )
    )
    assert response.error_code is ErrorCode.none
    return int(response.producer_id)


def test_producer_ids_are_unique_across_restarts(driver: NodeDriver) -> None:
    ids = [producer_id(driver) for _ in range(1001)]
    driver.crash()
    ids.append(producer_id(driver))
    driver.restart()
    ids.append(producer_id(driver))
    assert len(set(ids)) == len(ids)
    assert ids[:2] == [0, 1]


def test_a_clean_stop_writes_the_marker_and_the_start_removes_it(
    driver: NodeDriver, storage: MemoryStorage
) -> None:
    assert not storage.exists(".kafka_cleanshutdown")
    driver.node.close(START_MS)
    assert storage.exists(".kafka_cleanshutdown")
    driver.crash()
    assert not storage.exists(".kafka_cleanshutdown")


def test_meta_properties_contain_the_ids(driver: NodeDriver, storage: MemoryStorage) -> None:
    topic_id = create_topic(driver, "t")
    properties = storage.read("meta.properties").decode().splitlines()
    assert f"cluster.id={driver.broker.cluster_id}" in properties
    assert "node.id=1" in properties
    marker = storage.read("t-0/partition.metadata").decode()
    assert marker.startswith("version: 0\ntopic_id: ")
    assert topic_id.int > 100


def test_another_node_cannot_use_the_directory(driver: NodeDriver, storage: MemoryStorage) -> None:
    driver.node.close(START_MS)
    with pytest.raises(WrongDirectoryError, match=r"node.id=1.*node.id=2"):
        NodeDriver(BrokerConfig(node_id=2), storage=storage)
    with pytest.raises(WrongDirectoryError, match=r"cluster.id=other"):
        NodeDriver(BrokerConfig(cluster_id="other"), storage=storage)


def test_deleting_a_topic_removes_its_files(driver: NodeDriver, storage: MemoryStorage) -> None:
    create_topic(driver, "t", 2)
    delete(driver, "t")
    assert [name for name in storage.list("") if name.startswith("t-")] == []
    driver.crash()
    assert metadata_of(driver) == {}


def delete(driver: NodeDriver, name: str) -> None:
    response = driver.call(request(20, 5, topic_names=(name,), timeout=ms(0)))
    assert response.responses[0].error_code is ErrorCode.none


def test_an_interrupted_deletion_completes_before_the_name_is_reused(
    storage: MemoryStorage,
) -> None:
    driver = NodeDriver(storage=storage)
    create_topic(driver, "t")
    driver.call(produce(batch("old")))
    # The journal contains the removal of the topic, but its directory was not deleted before the
    # crash.
    kept = {name: storage.read(f"t-0/{name}") for name in storage.list("t-0")}
    delete(driver, "t")
    create_topic(driver, "t")
    storage.remove("t-0")
    for name, data in kept.items():
        storage.write_atomically(f"t-0/{name}", data)
    driver.crash()
    (response,) = fetched(driver.call(fetch((0, 0))))
    assert (response.error_code, response.high_watermark) == (ErrorCode.none, 0)


def test_retention_runs_as_time_passes(driver: NodeDriver) -> None:
    create_topic(driver, "t", retention_ms="1000")
    driver.call(produce(batch("a", "b")))
    driver.advance(driver.config.log_retention_check_interval_ms + 2000)
    (response,) = fetched(driver.call(fetch((0, 2))))
    assert response.log_start_offset == 2


def test_the_next_deadline_is_always_in_the_future(driver: NodeDriver) -> None:
    create_topic(driver, "t")
    idle_ms = driver.node.next_deadline_ms()
    assert idle_ms is not None
    assert idle_ms > driver.now_ms
    wait_ms = (idle_ms - driver.now_ms) // 2
    assert driver.send(fetch((0, 0), max_wait=wait_ms)) == []
    assert driver.node.next_deadline_ms() == driver.now_ms + wait_ms
    driver.advance(wait_ms)
    assert driver.node.next_deadline_ms() == idle_ms
    assert driver.handle(TimePassed()) == []


def test_a_broker_reports_a_disk_failure_and_stops(
    driver: NodeDriver, storage: MemoryStorage
) -> None:
    create_topic(driver, "t")
    storage.fail_on("append")
    refused = produced(driver.call(produce(batch("a"))))
    assert refused.error_code is ErrorCode.kafka_storage_error
    (reason,) = driver.cluster.failures.values()
    assert "t-0" in reason
    assert driver.send(produce(batch("b"))) == []
    storage.fail_on(None)
    driver.crash()
    assert produced(driver.call(produce(batch("a")))).base_offset == 0


def test_a_topic_is_not_created_if_the_controllers_disk_fails(driver: NodeDriver) -> None:
    journal = driver.controller_storage
    assert isinstance(journal, MemoryStorage)
    journal.fail_on("flush")
    made = driver.send(
        request(
            3,
            12,
            topics=(MetadataRequestTopic(topic_id=None, name=TopicName("u")),),
            allow_auto_topic_creation=True,
            include_topic_authorized_operations=False,
        )
    )
    assert len(made) == 1
    journal.fail_on(None)
    assert "u" not in metadata_of(driver)
    driver.crash()
    create_topic(driver, "taken-again")


def test_a_log_that_cannot_be_created_is_offline(
    driver: NodeDriver, storage: MemoryStorage
) -> None:
    create_topic(driver, "t")
    failed = storage.fail_below("u-0/", "append")
    create_topic(driver, "u")
    refused = produced(driver.call(produce(batch("a"), topic="u")))
    assert refused.error_code is ErrorCode.kafka_storage_error
    failed.clear()
    assert produced(driver.call(produce(batch("a")))).error_code is ErrorCode.none
    driver.crash()
    assert produced(driver.call(produce(batch("a"), topic="u"))).error_code is ErrorCode.none
