"""What brokers may answer a fetch that is neither records nor an error."""

from __future__ import annotations

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from pyspark_kafka.client.base import IsolationLevel
from pyspark_kafka.client.native.client import NativeReads
from pyspark_kafka.client.native.fetch import following_offset
from pyspark_kafka.client.native.settings import NativeSettings
from tests.pyspark_kafka.client.records import options
from tests.pyspark_kafka.client.test_fetch import fetch_range
from tests.pyspark_kafka.records.batches import plain
from tests.pyspark_kafka.wire.scripted import Answers, ScriptedBroker
from tests.pyspark_kafka.wire.test_router import cluster

BATCH = plain([b"a", b"b", b"c"])


def fetched(records: bytes = b"", **fields: Any) -> dict[str, Any]:
    partition = {
        "partition_index": 0,
        "error_code": 0,
        "high_watermark": 3,
        "last_stable_offset": 3,
        "aborted_transactions": (),
        "preferred_read_replica": -1,
        "records": records,
    }
    return {"responses": [{"topic": "t", "partitions": [partition | fields]}]}


def listed(offset: int) -> dict[str, Any]:
    partition = {"partition_index": 0, "error_code": 0, "offset": offset}
    return {"topics": [{"name": "t", "partitions": [partition]}]}


def read(*brokers: ScriptedBroker) -> list[int]:
    wanted = options(brokers[0].address, poll_timeout_ms=5_000)
    with NativeReads.of(NativeSettings.of(wanted)) as client:
        batches = client.fetch(fetch_range("t", 0, 3), ("offset",), IsolationLevel.READ_COMMITTED)
        return [offset for batch in batches for offset in batch["offset"].to_pylist()]


def test_the_replica_that_the_leader_names_is_read() -> None:
    leader = Answers(metadata=[], fetch=[fetched(preferred_read_replica=2)])
    replica = Answers(fetch=[fetched(BATCH)])
    with ScriptedBroker(leader) as one, ScriptedBroker(replica) as two:
        leader.answers["metadata"] = [cluster(one, two, leader_id=1)]
        assert read(one, two) == [0, 1, 2]
    assert (leader.count("fetch"), replica.count("fetch")) == (1, 1)


@pytest.mark.parametrize(
    "first",
    [
        pytest.param({"responses": []}, id="nothing, as to whom it throttles"),
        pytest.param(fetched(high_watermark=0, last_stable_offset=0), id="no records yet"),
        pytest.param(fetched(error_code=int(ErrorCode.not_leader_or_follower)), id="not leader"),
    ],
)
def test_what_passes_is_asked_again(first: dict[str, Any]) -> None:
    answers = Answers(metadata=[], fetch=[first, fetched(BATCH)])
    with ScriptedBroker(answers) as broker:
        answers.answers["metadata"] = [cluster(broker)]
        assert read(broker) == [0, 1, 2]
    assert answers.count("fetch") == 2


def test_where_nothing_below_the_end_can_be_shown_the_range_is_read() -> None:
    answers = Answers(metadata=[], fetch=[fetched()], list_offsets=[listed(0)])
    with ScriptedBroker(answers) as broker:
        answers.answers["metadata"] = [cluster(broker)]
        assert read(broker) == []


@pytest.mark.parametrize(
    ("data", "following"),
    [
        (b"", -1),
        (BATCH, 3),
        (BATCH[:-1], -1),
        (BATCH + plain([b"d"], base_offset=7), 8),
        (BATCH + plain([b"d"], base_offset=7)[:-1], 3),
        (BATCH + b"\0" * 100, 3),
    ],
)
def test_the_next_offset_is_known_from_headers(data: bytes, following: int) -> None:
    assert following_offset(memoryview(data)) == following
