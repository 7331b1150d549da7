"""Tests of Produce without `transaction.partition.verification.enable`."""

from __future__ import annotations

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from broker_ref.config import BrokerConfig
from broker_ref.coordination.replies import Reply
from broker_ref.replication.partition import PartitionKey
from broker_ref.transaction.add_partitions_to_txn_manager import (
    AddPartitionsToTxnManager,
    PartitionErrorCodes,
)
from integration.raw import request
from tests.broker_ref.node.driver import NodeDriver
from tests.broker_ref.node.requests import batch, create_topic, produced


@pytest.mark.parametrize(("version", "is_asked"), [(11, False), (12, True)])
def test_partitions_are_added_even_if_verification_is_off(
    monkeypatch: pytest.MonkeyPatch, version: int, is_asked: bool
) -> None:
    """Otherwise the coordinator would not write a marker into the partition."""
    driver = NodeDriver(BrokerConfig(transaction_partition_verification_enable=False))
    create_topic(driver, "t")
    requested: list[tuple[PartitionKey, ...]] = []

    def verify(*question: Any, add: bool) -> Reply[PartitionErrorCodes]:
        assert add
        partitions = question[4]
        requested.append(partitions)
        reply: Reply[PartitionErrorCodes] = Reply(driver.broker.replicas.mark_changed)
        reply.complete(dict.fromkeys(partitions, ErrorCode.none))
        return reply

    monkeypatch.setattr(AddPartitionsToTxnManager, "add_or_verify_transaction", verify)
    records = batch("a", producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True)
    response = driver.call(
        request(
            "produce",
            version,
            transactional_id="x",
            acks=-1,
            timeout=1_000,
            topic_data=[{"name": "t", "partition_data": [{"index": 0, "records": records}]}],
        )
    )
    assert produced(response).error_code is ErrorCode.none
    assert requested == ([(PartitionKey(topic="t", partition=0),)] if is_asked else [])
