"""Tests of features that only the native producer has, on a cluster."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from tests.conftest import TopicFactory
from tests.pyspark_kafka.client import records
from tests.pyspark_kafka.client.records import read_all, rows, writing


@pytest.fixture(autouse=True)
def native(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "ENGINE", "native")


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec_is_read(bootstrap: str, topic: TopicFactory, codec: str) -> None:
    name = topic(partitions=3)
    values = [b"value %d" % n for n in range(1_000)]
    with writing(bootstrap, compression_type=codec) as client:
        producer = client.producer()
        producer.send(rows(name, values, partition=[n % 3 for n in range(1_000)]))
        producer.flush()
        producer.close()
    found = [record.value for record in read_all(bootstrap, name, partitions=3)]
    assert found == [*values[0::3], *values[1::3], *values[2::3]]


def test_rows_of_several_topics_and_partitions_keep_their_order(
    bootstrap: str, topic: TopicFactory
) -> None:
    names = [topic(partitions=2) for _ in range(3)]
    with writing(bootstrap, batch_size="2000") as client:
        producer = client.producer()
        for start in range(0, 6_000, 500):
            numbers = range(start, start + 500)
            batch = rows("", [b"%d" % n for n in numbers], partition=[n % 2 for n in numbers])
            topics = pa.array([names[n // 2 % 3] for n in numbers])
            producer.send(batch.set_column(1, "topic", topics))
        producer.flush()
        producer.close()
    for index, name in enumerate(names):
        of_topic = [n for n in range(6_000) if n // 2 % 3 == index]
        found = [int(record.value or b"") for record in read_all(bootstrap, name, partitions=2)]
        assert found == [n for n in of_topic if n % 2 == 0] + [n for n in of_topic if n % 2]


def test_batches_larger_than_the_topic_takes(bootstrap: str, topic: TopicFactory) -> None:
    name = topic(partitions=2, **{"max.message.bytes": "3000"})
    values = [b"%04d" % n + b"x" * 200 for n in range(2_000)]
    with writing(bootstrap) as client:
        producer = client.producer()
        for half in (values[:1_000], values[1_000:]):
            producer.send(rows(name, half, partition=[n % 2 for n in range(1_000)]))
        producer.flush()
        producer.close()
    found = [record.value for record in read_all(bootstrap, name, partitions=2)]
    assert found == [*values[0::2], *values[1::2]]


def test_the_first_moment_of_1970_can_be_written(bootstrap: str, topic: TopicFactory) -> None:
    name = topic()
    with writing(bootstrap) as client:
        producer = client.producer()
        producer.send(rows(name, [b"x"], timestamp=[datetime(1970, 1, 1, tzinfo=UTC)]))
        producer.flush()
        producer.close()
    (record,) = read_all(bootstrap, name)
    assert record.timestamp_ms == 0
