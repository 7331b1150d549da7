"""Tests of failed logins: the error is raised early, and names the broker but no password."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from pyspark_kafka.client.factory import open_client
from pyspark_kafka.client.port import KafkaClient, KafkaReadClient
from pyspark_kafka.errors import AccessError, BrokerUnreachableError
from pyspark_kafka.kafka.offsets import IsolationLevel
from tests.pyspark_kafka.client.records import options, reading
from tests.pyspark_kafka.client.test_fetch import fetch_range

LOGIN: dict[str, Any] = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_mechanism": "PLAIN",
    "sasl_jaas_config": 'PlainLoginModule required username="alice" password="hush";',
}


def fetch(client: KafkaReadClient) -> object:
    return list(client.fetch(fetch_range("t", 0, 1), ("value",), IsolationLevel.READ_COMMITTED))


@pytest.mark.kafka_only
@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.list_topics(),
        lambda client: client.describe_topics(["t"]),
        lambda client: client.committed_offsets("g", [fetch_range("t", 0, 1).topic_partition]),
        fetch,
    ],
)
def test_rejected_login(bootstrap: str, call: Callable[[KafkaReadClient], object]) -> None:
    started = time.monotonic()
    with (
        reading(bootstrap, **LOGIN) as client,
        pytest.raises(AccessError, match=rf"{bootstrap}.*'kafka.sasl") as caught,
    ):
        call(client)
    assert time.monotonic() - started < 20, "the client waited for the whole timeout of 60 s"
    assert "hush" not in str(caught.value)


@pytest.mark.kafka_only
def test_rejected_login_when_writing(bootstrap: str) -> None:
    def write(client: KafkaClient) -> None:
        producer = client.producer()
        try:
            producer.send(pa.RecordBatch.from_pydict({"topic": ["t"], "value": [b"v"]}))
            producer.flush()
        finally:
            producer.abort()

    with (
        open_client(options(bootstrap, engine="librdkafka", **LOGIN), role="producer") as client,
        pytest.raises(AccessError, match=re.escape(bootstrap)),
    ):
        write(client)


@pytest.mark.slow
def test_tls_to_a_plaintext_listener(bootstrap: str) -> None:
    settings: dict[str, Any] = {"security_protocol": "SSL", "default_api_timeout_ms": "2000"}
    with (
        reading(bootstrap, **settings) as client,
        pytest.raises((BrokerUnreachableError, AccessError), match=rf"{bootstrap}.*SSL"),
    ):
        client.list_topics()
