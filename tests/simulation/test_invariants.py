"""The checks of the invariants see everything that a client can see."""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from integration.raw import request
from integration.simulation.client import TopicPartition
from integration.simulation.invariants import InvariantChecker
from tests.broker_ref.memory_storage import MemoryStorage
from tests.broker_ref.node.driver import NodeDriver
from tests.broker_ref.node.requests import batch, create_topic


def test_records_that_a_node_acknowledges_in_its_last_step_are_committed() -> None:
    storage = MemoryStorage()
    driver = NodeDriver(storage=storage)
    create_topic(driver, "t", 2)
    node, checker = driver.node, InvariantChecker()
    checker.check("broker-1", node)
    storage.fail_below("t-1", "append")
    written: list[Any] = [{"index": each, "records": batch("value")} for each in range(2)]
    response = driver.call(
        request("produce", 9, acks=-1, topic_data=[{"name": "t", "partition_data": written}])
    )
    (topic,) = response.responses
    assert [partition.error_code for partition in topic.partition_responses] == [
        ErrorCode.none,
        ErrorCode.kafka_storage_error,
    ]
    assert node.failure is not None
    checker.check("broker-1", node)
    checker.of(TopicPartition("t", 0)).acknowledged(b"value", 0, "the producer")
