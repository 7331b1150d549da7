"""Tests of failed or damaged storage while topics with one name are created again.

No log is lost, and no log is used for another topic.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from broker_ref.identity import DamagedIdentityError
from broker_ref.io.disk import DiskStorage
from broker_ref.log.errors import LogError
from broker_ref.log.storage import StorageError
from broker_ref.node.controller import JOURNAL_FILE
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
from tests.broker_ref.virtual import NodeFailedError

MARKER = "t-0/partition.metadata"


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage()


@pytest.fixture
def driver(storage: MemoryStorage) -> NodeDriver:
    return NodeDriver(storage=storage)


def delete(driver: NodeDriver, name: str = "t") -> None:
    response = driver.call(request(20, 5, topic_names=(name,), timeout=ms(0)))
    assert response.responses[0].error_code is ErrorCode.none


def write(driver: NodeDriver, *values: str, topic: str = "t") -> ErrorCode:
    code: ErrorCode = produced(driver.call(produce(batch(*values), topic=topic))).error_code
    return code


def high_watermark(driver: NodeDriver, topic: str = "t") -> int:
    (response,) = fetched(driver.call(fetch((0, 0), topic=topic)))
    assert response.error_code is ErrorCode.none
    return int(response.high_watermark)


@pytest.mark.parametrize(("operation", "has_ended"), [("append", True), ("open", False)])
def test_a_topic_keeps_its_records_after_a_failed_creation(
    driver: NodeDriver, storage: MemoryStorage, operation: str, has_ended: bool
) -> None:
    failed = storage.fail_below("t-0/0", operation)
    create_topic(driver, "t")
    assert write(driver, "a") is ErrorCode.kafka_storage_error
    failed.clear()
    assert bool(driver.cluster.failures) == has_ended
    if has_ended:
        driver.crash()
    delete(driver)
    assert storage.list("t-0") == []
    create_topic(driver, "t")
    assert write(driver, "a", "b") is ErrorCode.none
    driver.restart()
    assert high_watermark(driver) == 2


@pytest.mark.parametrize("operation", ["rename", "write", "remove"])
@pytest.mark.parametrize("stop", ["none", "crash"])
def test_a_new_topic_does_not_inherit_a_log_that_could_not_be_removed(
    driver: NodeDriver,
    storage: MemoryStorage,
    operation: str,
    stop: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    create_topic(driver, "t")
    assert write(driver, "old", "older") is ErrorCode.none
    driver.broker.replicas.partition("t", 0).log.flush()
    driver.broker.replicas.checkpoint()
    storage.fail_on(operation)
    with caplog.at_level(logging.WARNING):
        delete(driver)
    # Deleted logs are removed from the checkpoints later.
    assert operation == "write" or f"Cannot {operation}" in caplog.text
    storage.fail_on(None)
    if stop == "crash":
        driver.crash()
    create_topic(driver, "t")
    assert high_watermark(driver) == 0
    assert write(driver, "new") is ErrorCode.none
    driver.crash()
    assert high_watermark(driver) == 1


def test_a_topic_whose_directory_is_occupied_is_offline(
    driver: NodeDriver, storage: MemoryStorage
) -> None:
    create_topic(driver, "t")
    create_topic(driver, "u")
    write(driver, "old")
    storage.fail_on("rename")
    delete(driver)
    create_topic(driver, "t")
    assert write(driver, "new") is ErrorCode.kafka_storage_error
    driver.crash()
    assert write(driver, "new") is ErrorCode.kafka_storage_error
    assert write(driver, "a", topic="u") is ErrorCode.none
    storage.fail_on(None)
    driver.crash()
    assert high_watermark(driver) == 0
    assert write(driver, "new") is ErrorCode.none


def test_topics_with_the_longest_names_are_deleted(tmp_path: Path) -> None:
    storage = DiskStorage(tmp_path)
    driver = NodeDriver(storage=storage)
    name = "t" * 249
    create_topic(driver, name)
    write(driver, "a", topic=name)
    delete(driver, name)
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]
    create_topic(driver, name)
    assert high_watermark(driver, name) == 0
    driver.restart()
    assert high_watermark(driver, name) == 0
    storage.close()


def test_a_log_without_a_topic_is_renamed_to_stray(
    driver: NodeDriver, storage: MemoryStorage, caplog: pytest.LogCaptureFixture
) -> None:
    before = driver.controller_storage.read(JOURNAL_FILE)
    create_topic(driver, "t")
    write(driver, "kept")
    driver.node.close(START_MS)
    records = storage.read("t-0/00000000000000000000.log")
    topic_id = storage.read(MARKER).decode().rpartition(" ")[2]
    driver.controller_storage.write_atomically(JOURNAL_FILE, before)
    with caplog.at_level(logging.WARNING):
        driver.crash()
    stray = f"{topic_id}-0.0-stray"
    assert stray in caplog.text
    assert storage.read(f"{stray}/00000000000000000000.log") == records
    create_topic(driver, "t")
    assert high_watermark(driver) == 0


def test_a_controller_directory_without_its_journal_is_rejected(
    driver: NodeDriver, storage: MemoryStorage
) -> None:
    create_topic(driver, "t")
    driver.node.close(START_MS)
    driver.controller_storage.remove(JOURNAL_FILE)
    with pytest.raises(LogError, match=re.escape(JOURNAL_FILE)):
        driver.crash()
    assert storage.exists(MARKER)


@pytest.mark.parametrize("written", ["meta.properties", JOURNAL_FILE])
def test_the_controller_starts_after_an_interrupted_first_start(written: str) -> None:
    storage = MemoryStorage()
    storage.fail_below(written, "write")
    with pytest.raises(StorageError, match=re.escape(written)):
        NodeDriver(controller_storage=storage)
    storage.fail_on(None)
    create_topic(NodeDriver(controller_storage=storage), "t")


def test_a_broker_starts_after_an_interrupted_first_start(storage: MemoryStorage) -> None:
    storage.fail_below("meta.properties", "write")
    with pytest.raises(NodeFailedError, match=r"meta\.properties"):
        NodeDriver(storage=storage)
    assert storage.list("") == []
    storage.fail_on(None)
    create_topic(NodeDriver(storage=storage), "t")


@pytest.mark.parametrize(
    "content",
    [b"", b"version: 0\n", b"version: 0\ntopic_id: !", b"topic_id: AAAA\n", b"\xff\xfe\x00"],
)
@pytest.mark.parametrize("topic_is_known", [True, False])
def test_a_log_with_damaged_partition_metadata_is_rejected(
    driver: NodeDriver, storage: MemoryStorage, content: bytes, topic_is_known: bool
) -> None:
    create_topic(driver, "t")
    write(driver, "a")
    driver.node.close(START_MS)
    if not topic_is_known:
        storage.rename("t-0", "t-1")
    marker = MARKER if topic_is_known else "t-1/partition.metadata"
    storage.write_atomically(marker, content)
    with pytest.raises(NodeFailedError, match=re.escape(marker)):
        driver.crash()
    assert storage.read(marker.replace("partition.metadata", "00000000000000000000.log"))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"version=1\nnode.id=1\n", "cluster.id"),
        (b"version=1\ncluster.id=c\n", "node.id"),
        (b"\xff\xfe", "UTF-8"),
    ],
)
def test_damaged_meta_properties_are_rejected(
    driver: NodeDriver, storage: MemoryStorage, content: bytes, reason: str
) -> None:
    driver.node.close(START_MS)
    storage.write_atomically("meta.properties", content)
    with pytest.raises(DamagedIdentityError, match=f"meta.properties.*{reason}"):
        driver.crash()


def test_the_journal_does_not_grow_with_starts(driver: NodeDriver) -> None:
    storage = driver.controller_storage
    create_topic(driver, "t", 20)
    create_topic(driver, "gone", 20)
    delete(driver, "gone")
    driver.restart()
    size = len(storage.read(JOURNAL_FILE))
    for _ in range(5):
        driver.restart()
    assert len(storage.read(JOURNAL_FILE)) < size + 100  # The epochs get longer by one digit.
    # Brokers that were down need the record: they must delete the log, not rename it.
    assert storage.read(JOURNAL_FILE).count(b"RemoveTopic") == 1


def test_a_stop_on_a_failing_disk_closes_all_logs_and_raises_the_first_error(
    driver: NodeDriver, storage: MemoryStorage
) -> None:
    for name in "tuv":
        create_topic(driver, name)
        write(driver, "a", topic=name)
    storage.fail_below("t-0/", "flush")
    with pytest.raises(LogError, match="t-0"):
        driver.node.close(START_MS)
    assert not storage.exists(".kafka_cleanshutdown")
    assert storage.exists("u-0/00000000000000000001.snapshot")
    assert storage.exists("v-0/00000000000000000001.snapshot")
