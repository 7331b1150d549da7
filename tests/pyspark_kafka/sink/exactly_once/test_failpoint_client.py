"""Tests that every request of the port is a failpoint and passes its arguments unchanged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pyarrow as pa
import pytest

from pyspark_kafka.client import transactional_port
from pyspark_kafka.client.port import KafkaClient
from pyspark_kafka.client.transactional_port import TransactionalClient
from pyspark_kafka.kafka.offsets import FetchRange, IsolationLevel
from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.kafka.transactions import ProducerIdAndEpoch, TransactionState
from pyspark_kafka.sink.exactly_once.failpoint_client import FailpointClient
from pyspark_kafka.sink.exactly_once.steps import Step, step
from tests.pyspark_kafka.sink.exactly_once.runs import at

PARTITION = TopicPartition("t", 0)
PRODUCER = ProducerIdAndEpoch(producer_id=1, producer_epoch=2)
ROWS = pa.RecordBatch.from_arrays([pa.array([b"a"], pa.binary())], ["value"])
QUIET = {"close", "checks_topic_ids", "producer", "transactional_producer"}
"""Methods of the port that send no request."""


class Recording:
    """A client or producer that records its calls, returns `producer`, or raises `error`."""

    def __init__(self, producer: object = None, *, error: Exception | None = None) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self._producer = producer
        self._error = error

    def __getattr__(self, name: str) -> Callable[..., object]:
        def call(*positional: Any, **named: Any) -> object:
            self.calls.append((name, positional, named))
            if self._error is not None:
                raise self._error
            return self._producer if "producer" in name else iter([name])

        return call


Ask = Callable[[TransactionalClient], object]

REQUESTS: dict[str, Ask] = {
    "transaction_version": lambda client: client.transaction_version(),
    "init_producer_id": lambda client: client.init_producer_id(
        "x", timeout_ms=1, expected=PRODUCER
    ),
    "init_producer_ids": lambda client: client.init_producer_ids(["x", "y"], timeout_ms=1),
    "end_transactions": lambda client: client.end_transactions([], timeout_ms=1),
    "describe_transactions": lambda client: client.describe_transactions(["x"]),
    "list_transactions": lambda client: client.list_transactions(
        "x", TransactionState.ONGOING, TransactionState.EMPTY
    ),
    "read_log": lambda client: list(client.read_log(PARTITION, 1, 2)),
    "create_topic": lambda client: client.create_topic(
        "t", partition_count=1, replication_factor=2, config={"a": "b"}
    ),
    "topic_config": lambda client: client.topic_config("t"),
    "broker_config": lambda client: client.broker_config(),
    "replication_of": lambda client: client.replication_of("t"),
    "broker_count": lambda client: client.broker_count(),
    "commit_offsets": lambda client: client.commit_offsets("g", {PARTITION: 1}),
    "list_topics": lambda client: client.list_topics(),
    "describe_topics": lambda client: client.describe_topics(["t"]),
    "list_offsets": lambda client: client.list_offsets(
        {PARTITION: -1}, IsolationLevel.READ_COMMITTED
    ),
    "committed_offsets": lambda client: client.committed_offsets("g", [PARTITION]),
    "fetch": lambda client: list(
        client.fetch(
            FetchRange(topic_partition=PARTITION, start_offset=1, end_offset=2),
            ("value",),
            IsolationLevel.READ_COMMITTED,
            topic_id="id",
        )
    ),
}


def watching(inner: Recording) -> FailpointClient:
    return FailpointClient(cast("TransactionalClient", inner))


@pytest.mark.parametrize("name", REQUESTS)
def test_request_is_a_failpoint_and_is_forwarded(name: str) -> None:
    plain, inner = Recording(), Recording()
    REQUESTS[name](cast("TransactionalClient", plain))
    with at() as failpoints, step(Step.PLAN_READ):
        REQUESTS[name](watching(inner))
    assert inner.calls == plain.calls
    assert failpoints.met == [
        "plan.read.before",
        f"plan.read.{name}.before",
        f"plan.read.{name}.after",
        "plan.read.after",
    ]


def test_every_request_is_a_failpoint() -> None:
    methods = {
        name
        for port in (KafkaClient, *KafkaClient.__mro__, transactional_port.TransactionalClient)
        for name in vars(port)
        if not name.startswith("_") and port is not object
    }
    assert methods - QUIET == REQUESTS.keys()


def test_requests_of_transactional_producers_are_failpoints() -> None:
    sent = Recording()
    producer = watching(Recording(sent)).transactional_producer("x", PRODUCER, 2)
    with at() as failpoints, step(Step.COMMIT_DECIDE):
        producer.send(ROWS)
        producer.send_offsets("g", {PARTITION: 1})
        producer.flush()
        producer.close()
        producer.abort()
    assert [name for name, _, _ in sent.calls] == [
        "send",
        "send_offsets",
        "flush",
        "close",
        "abort",
    ]
    assert failpoints.met[1:-1] == [
        f"commit.decide.{name}.{edge}"
        for name in ("produce", "send_offsets", "flush")
        for edge in ("before", "after")
    ]


def test_requests_of_plain_producers_are_failpoints() -> None:
    producer = watching(Recording(Recording())).producer()
    with at() as failpoints, step(Step.COMMIT_MARK):
        producer.send(ROWS)
        producer.flush()
    assert failpoints.met[1:-1] == [
        f"commit.mark.{name}.{edge}"
        for name in ("produce", "flush")
        for edge in ("before", "after")
    ]


def test_failed_request_has_no_after_failpoint() -> None:
    watched = watching(Recording(error=ZeroDivisionError()))
    with at() as failpoints, pytest.raises(ZeroDivisionError), step(Step.PLAN_READ):
        watched.describe_transactions(["x"])
    assert failpoints.met == ["plan.read.before", "plan.read.describe_transactions.before"]


def test_close_is_forwarded() -> None:
    inner = Recording()
    watched = watching(inner)
    with watched as same:
        assert same is watched
    assert [name for name, _, _ in inner.calls] == ["close"]
