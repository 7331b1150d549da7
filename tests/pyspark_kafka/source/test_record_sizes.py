"""Tests of the estimated size of unread records."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from pyspark_kafka.columns import SOURCE_SCHEMA
from pyspark_kafka.kafka.offsets import FetchRange
from pyspark_kafka.source.record_sizes import RecordSizes
from tests.pyspark_kafka.source.fake_client import FakeClient, FakeLog, FakeTopic, topic
from tests.pyspark_kafka.source.planning import source_options, tp


def record_sizes(client: FakeClient) -> RecordSizes:
    return RecordSizes(client, source_options(streaming=True, subscribe="t"))


def unread(topic: str, start: int, end: int, partition: int = 0) -> FetchRange:
    return FetchRange(topic_partition=tp(topic, partition), start_offset=start, end_offset=end)


def test_each_topic_has_its_own_average() -> None:
    large = FakeLog(end=10_000, value_bytes=5_000)
    small = FakeLog(end=10_000, value_bytes=50, gaps=range(1, 250))
    client = FakeClient({"large": FakeTopic({0: large}), "small": FakeTopic({0: small})})
    sizes = record_sizes(client)
    total = sizes.total([unread("large", 0, 1_000), unread("small", 0, 10_000)])
    assert total == pytest.approx(1_000 * 5_000 + 10_000 * 50, rel=0.1)
    large.value_bytes = 500
    assert sizes.total([unread("large", 5_000, 6_000)]) == pytest.approx(500_000, rel=0.1)


@pytest.mark.parametrize(
    ("record", "size"),
    [
        ({"value": b"12345"}, 5),
        ({"key": b"k", "headers": [{"key": "é", "value": b"123"}, {"key": "h"}]}, 1 + 2 + 3 + 1),
        ({}, 1),
    ],
)
def test_the_size_of_a_record_is_that_of_its_payload(
    record: dict[str, Any], size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = pa.schema([SOURCE_SCHEMA.field(name) for name in ("key", "value", "headers")])
    other = {"key": b"not in the slice", "headers": [{"key": "h", "value": b"1"}] * 9}
    batch = pa.RecordBatch.from_pylist([other, record, record, other], schema=columns)
    client = FakeClient({"t": topic(10)})
    monkeypatch.setattr(client, "fetch", lambda *_: iter([batch.slice(1, 2)]))
    assert record_sizes(client).total([unread("t", 0, 10)]) == 10 * size


def test_an_estimate_reads_few_records_of_the_largest_ranges() -> None:
    logs = {number: FakeLog(end=10_000 + number, value_bytes=10_000) for number in range(100)}
    client = FakeClient({"t": FakeTopic(logs)})
    offsets: list[int] = []
    client.before_batch = offsets.append
    total = record_sizes(client).total(unread("t", 1_000, log.end, n) for n, log in logs.items())
    assert total == pytest.approx(sum((log.end - 1_000) * 10_000 for log in logs.values()), rel=0.1)
    read = {fetched.topic_partition.partition for fetched, _ in client.fetched}
    assert read == set(range(84, 100))
    assert max(offsets) < 1_200


@pytest.mark.parametrize("reason", ["gap", "deleted records", "deleted topic"])
def test_a_sample_without_records_does_not_change_the_average(reason: str) -> None:
    log = FakeLog(end=1_000, value_bytes=100)
    client = FakeClient({"t": FakeTopic({0: log})})
    sizes, next_records = record_sizes(client), unread("t", 500, 1_000)
    assert sizes.total([unread("t", 0, 500)]) == pytest.approx(50_000, rel=0.1)
    match reason:
        case "gap":
            log.gaps = range(500, 900)
        case "deleted records":
            log.start = 900
        case _:
            client.topics.clear()
    assert sizes.total([next_records]) == pytest.approx(50_000, rel=0.1)
    assert record_sizes(client).total([next_records]) > 0
