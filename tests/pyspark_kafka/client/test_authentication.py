"""A refused login fails at once and names the broker, without the password."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from pyspark_kafka.client.factory import open_client
from pyspark_kafka.client.port import KafkaClient, KafkaReads
from pyspark_kafka.errors import AccessError, BrokerUnreachableError
from pyspark_kafka.kafka.offsets import IsolationLevel
from tests.pyspark_kafka.client.records import options, reading
from tests.pyspark_kafka.client.test_fetch import fetch_range

LOGIN: dict[str, Any] = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_mechanism": "PLAIN",
    "sasl_jaas_config": 'PlainLoginModule required username="alice" password="hush";',
}


def fetch(client: KafkaReads) -> object:
    return list(client.fetch(fetch_range("t", 0, 1), ("value",), IsolationLevel.READ_COMMITTED))


@pytest.mark.kafka_only
@pytest.mark.parametrize(
    "ask",
    [
        lambda client: client.list_topics(),
        lambda client: client.describe_topics(["t"]),
        lambda client: client.committed_offsets("g", [fetch_range("t", 0, 1).topic_partition]),
        fetch,
    ],
)
def test_a_refused_login(bootstrap: str, ask: Callable[[KafkaReads], object]) -> None:
    started = time.monotonic()
    with (
        reading(bootstrap, **LOGIN) as client,
        pytest.raises(AccessError, match=rf"{bootstrap}.*'kafka.sasl") as caught,
    ):
        ask(client)
    assert time.monotonic() - started < 20, "not the whole timeout of 60 s"
    assert "hush" not in str(caught.value)


@pytest.mark.kafka_only
def test_a_refused_login_when_writing(bootstrap: str) -> None:
    def write(client: KafkaClient) -> None:
        producer = client.producer()
        try:
            producer.send(pa.RecordBatch.from_pydict({"topic": ["t"], "value": [b"v"]}))
            producer.flush()
        finally:
            producer.abort()

    with (
        open_client(options(bootstrap, **LOGIN), role="producer") as client,
        pytest.raises(AccessError, match=f"(?i)writing failed at {bootstrap}"),
    ):
        write(client)


def test_tls_to_a_plaintext_listener(bootstrap: str) -> None:
    settings: dict[str, Any] = {"security_protocol": "SSL", "default_api_timeout_ms": "2000"}
    with (
        reading(bootstrap, **settings) as client,
        pytest.raises((BrokerUnreachableError, AccessError), match=rf"{bootstrap}.*SSL"),
    ):
        client.list_topics()
