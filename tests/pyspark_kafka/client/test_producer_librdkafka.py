"""Tests of behaviour that only the librdkafka producer has."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from confluent_kafka import KafkaError as Code

from pyspark_kafka.columns import HEADERS_TYPE, PRODUCE_SCHEMA
from pyspark_kafka.errors import RowError
from tests.conftest import TopicFactory
from tests.pyspark_kafka.client.records import Writes, read_all, rows, writing


@pytest.fixture
def client(bootstrap: str) -> Iterator[Writes]:
    with writing(bootstrap) as opened:
        yield opened


def test_headers_have_the_type_of_the_schema() -> None:
    assert PRODUCE_SCHEMA.field("headers").type == HEADERS_TYPE


def test_the_one_time_that_cannot_be_sent(client: Writes, topic: TopicFactory) -> None:
    producer = client.producer()
    with pytest.raises(RowError, match=r"1970-01-01T00:00:00.000Z.*librdkafka"):
        producer.send(rows(topic(), [b"x"], timestamp=[datetime(1970, 1, 1, tzinfo=UTC)]))
    producer.abort()


@pytest.mark.slow
def test_default_send_buffer_has_room_for_the_largest_record() -> None:
    settings = {"max_request_size": "70000000", "delivery_timeout_ms": "1000"}
    with writing("127.0.0.1:1", **settings) as client:
        producer = client.producer()
        producer.send(rows("t", [b"x" * 69_900_000]))
        producer.abort()


def test_record_larger_than_the_send_buffer() -> None:
    with writing("127.0.0.1:1", buffer_memory="1024") as client:
        producer = client.producer()
        with pytest.raises(RowError) as caught:
            producer.send(rows("t", [b"x" * 2_000]))
        assert caught.value.option == "kafka.buffer.memory"
        producer.abort()


def test_error_event_of_one_task_does_not_fail_the_next(
    client: Writes, bootstrap: str, topic: TopicFactory
) -> None:
    name = topic()
    lent: Any = client.producer()
    lent.send(rows(name, [b"first"]))
    lent.flush()
    lent._events(Code(Code._SSL, "the TLS handshake of one broker failed"))
    lent.flush()  # acknowledges all rows
    lent.close()
    producer = client.producer()
    assert producer is lent
    producer.send(rows(name, [b"second"]))
    producer.flush()
    producer.close()
    assert [record.value for record in read_all(bootstrap, name)] == [b"first", b"second"]
