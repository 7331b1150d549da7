"""Tests of a task: after success all rows are written, after failure no producer is open."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import pyarrow as pa
import pytest

from pyspark_kafka.client.pool import ClientPool
from pyspark_kafka.client.port import KafkaClient
from pyspark_kafka.errors import DeliveryError, RowError
from pyspark_kafka.sink.at_least_once import task
from pyspark_kafka.sink.at_least_once.task import write_task
from tests.conftest import TopicFactory
from tests.pyspark_kafka.client.records import options, read_all


def batch(values: list[bytes | None], **columns: list[Any]) -> pa.RecordBatch:
    types = {"partition": pa.int32(), "topic": pa.string()}
    return pa.RecordBatch.from_pydict(
        {
            "value": pa.array(values, pa.binary()),
            **{name: pa.array(column, types[name]) for name, column in columns.items()},
        }
    )


class FakeProducer:
    """A producer that records its calls and fails in a given call."""

    def __init__(self, fail_in: str | None) -> None:
        self.calls: list[str] = []
        self._fail_in = fail_in

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if name == self._fail_in:
            raise DeliveryError(f"{name} failed")

    def send(self, _: pa.RecordBatch) -> None:
        self._called("send")

    def flush(self) -> None:
        self._called("flush")

    def close(self) -> None:
        self._called("close")

    def abort(self) -> None:
        self.calls.append("abort")
        raise RuntimeError("abort failed, too")


class FakeClient:
    def __init__(self, producer: FakeProducer) -> None:
        self._producer = producer
        self.closed = False

    def producer(self) -> FakeProducer:
        return self._producer

    def close(self) -> None:
        self.closed = True


Fakes = Callable[..., tuple[FakeProducer, list[FakeClient]]]


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Fakes:
    def install(fail_in: str | None = None) -> tuple[FakeProducer, list[FakeClient]]:
        producer, opened = FakeProducer(fail_in), list[FakeClient]()

        def open_client(_: object) -> KafkaClient:
            opened.append(FakeClient(producer))
            return cast("KafkaClient", opened[-1])

        monkeypatch.setattr(task, "_CLIENTS", ClientPool(open_client))
        return producer, opened

    return install


def test_rows_are_sent_flushed_and_counted(fakes: Fakes) -> None:
    producer, opened = fakes()
    written = write_task([batch([b"a"]), batch([b"b"] * 2)], client=options("x:1"), topic="t")
    assert written == {"t": 3}
    assert producer.calls == ["send", "send", "flush", "close"]
    assert not opened[0].closed, "the next task uses the client again"


@pytest.mark.parametrize("batches", [[], [batch([])], [batch([]), batch([])]])
def test_task_without_rows_opens_no_transaction(
    fakes: Fakes, batches: list[pa.RecordBatch]
) -> None:
    _, opened = fakes()
    assert write_task(batches, client=options("x:1"), topic="t") == {}
    assert opened == []


def test_empty_batches_are_skipped(fakes: Fakes) -> None:
    producer, _ = fakes()
    batches = [batch([]), batch([b"a"]), batch([]), batch([b"b"])]
    assert write_task(batches, client=options("x:1"), topic="t") == {"t": 2}
    assert producer.calls == ["send", "send", "flush", "close"]


@pytest.mark.parametrize(
    ("fail_in", "calls"), [("send", ["send", "abort"]), ("flush", ["send", "flush", "abort"])]
)
def test_failure_aborts_the_producer(fakes: Fakes, fail_in: str, calls: list[str]) -> None:
    producer, opened = fakes(fail_in)
    with pytest.raises(DeliveryError, match=f"{fail_in} failed"):
        write_task([batch([b"a"])], client=options("x:1"), topic="t")
    assert producer.calls == calls
    assert opened[0].closed


def test_failing_input_aborts_the_producer(fakes: Fakes) -> None:
    producer, _ = fakes()

    def batches() -> Iterator[pa.RecordBatch]:
        yield batch([b"a"])
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_task(batches(), client=options("x:1"), topic="t")
    assert producer.calls == ["send", "abort"]


def test_invalid_batch_sends_nothing(bootstrap: str, topic: TopicFactory) -> None:
    name = topic(partitions=2)
    rows = batch([b"good", b"bad"], partition=[1, 2])
    with pytest.raises(RowError) as caught:
        write_task([rows], client=options(bootstrap), topic=name)
    assert (caught.value.topic, caught.value.partition) == (name, 2)
    assert read_all(bootstrap, name, partitions=2) == []


def test_rows_are_written_to_their_topics(bootstrap: str, topic: TopicFactory) -> None:
    first, second = topic(), topic()
    rows = batch([b"a", b"b", None], topic=[first, second, first])
    written = write_task([rows], client=options(bootstrap), topic=None)
    assert written == {first: 2, second: 1}
    assert [record.value for record in read_all(bootstrap, first)] == [b"a", None]
    assert [record.value for record in read_all(bootstrap, second)] == [b"b"]


def test_write_creates_the_topic(bootstrap: str, unique_name: Callable[[], str]) -> None:
    name = unique_name()
    write_task([batch([b"a"], partition=[0])], client=options(bootstrap), topic=name)
    assert [record.value for record in read_all(bootstrap, name)] == [b"a"]


def test_error_names_a_topic_that_is_not_created(
    cluster_with: Callable[..., Any], unique_name: Callable[[], str]
) -> None:
    cluster = cluster_with({"auto.create.topics.enable": "false"})
    name = unique_name()
    client = options(cluster.bootstrap_servers, max_block_ms="1000")
    with pytest.raises(DeliveryError, match=name):
        write_task([batch([b"a"])], client=client, topic=name)


def test_client_works_after_a_failed_task(bootstrap: str, topic: TopicFactory) -> None:
    name = topic(**{"max.message.bytes": "1000"})
    client = options(bootstrap)
    with pytest.raises(DeliveryError, match=r"'max.message.bytes'"):
        write_task([batch([b"x" * 5_000])], client=client, topic=name)
    assert write_task([batch([b"small"])], client=client, topic=name) == {name: 1}
    assert [record.value for record in read_all(bootstrap, name)] == [b"small"]
