"""Tests of the end and the failures of a range, from librdkafka's messages."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from confluent_kafka import KafkaError, Message, TopicPartition

from pyspark_kafka.client.fetch_errors import FetchErrors
from pyspark_kafka.client.librdkafka import fetch as fetch_module
from pyspark_kafka.client.librdkafka.errors import ErrorEvents
from pyspark_kafka.client.librdkafka.fetch import Progress, RangeReader
from pyspark_kafka.kafka.offsets import IsolationLevel
from tests.pyspark_kafka.client.records import reading
from tests.pyspark_kafka.client.test_fetch import fetch_range

END = KafkaError._PARTITION_EOF


def record(offset: int) -> Message:
    return Message(topic="t", partition=0, offset=offset, value=b"v")


def event(code: int, offset: int = -1) -> Message:
    return Message(topic="t", partition=0, offset=offset, error=KafkaError(code))


def taken(progress: Progress, *messages: Message) -> list[int | None]:
    return [message.offset() for message in progress.take(list(messages))]


@pytest.fixture
def progress() -> Progress:
    return Progress(fetch_range=fetch_range("t", 3, 7), position=3)


def test_records_up_to_the_last(progress: Progress) -> None:
    assert taken(progress, record(3), record(5)) == [3, 5]
    assert (progress.position, progress.done) == (6, False)
    assert taken(progress, record(6)) == [6]
    assert progress.done


def test_a_record_beyond_the_range_ends_it(progress: Progress) -> None:
    assert taken(progress, record(5), record(9), record(10)) == [5]
    assert progress.done


@pytest.mark.parametrize(("at", "done"), [(6, False), (7, True), (8, True)])
def test_the_end_of_the_partition(progress: Progress, at: int, done: bool) -> None:
    assert taken(progress, record(3), event(END, at)) == [3]
    assert progress.done is done


def test_messages_after_an_error_are_dropped(progress: Progress) -> None:
    assert taken(progress, record(3), event(KafkaError._BAD_MSG, 4), record(6), record(7)) == [3]
    failure = progress.failure()
    assert failure is not None
    assert failure.code() == KafkaError._BAD_MSG
    assert not progress.done


def test_error_after_the_range_is_ignored(progress: Progress) -> None:
    assert taken(progress, record(6), event(KafkaError._BAD_MSG, 7)) == [6]
    assert progress.failure() is None


@pytest.mark.parametrize(
    "code",
    [KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError.GROUP_AUTHORIZATION_FAILED],
)
def test_retriable_and_irrelevant_errors_are_ignored(progress: Progress, code: int) -> None:
    assert taken(progress, record(3), event(code), record(4)) == [3, 4]
    assert progress.failure() is None


class AbortedData:
    """A consumer that fetches aborted records for ten seconds and then reaches the end."""

    seconds = 0

    def __init__(self, configuration: dict[str, Any], logger: object) -> None:
        self._stats_cb = configuration["stats_cb"]

    def assign(self, partitions: list[object]) -> None:
        pass

    def close(self) -> None:
        pass

    def consume(self, _count: int, timeout_s: float) -> list[Message]:
        if timeout_s == 0:
            return []
        AbortedData.seconds += 1
        partition = {"next_offset": self.seconds}
        self._stats_cb(json.dumps({"topics": {"t": {"partitions": {"0": partition}}}}))
        return [event(END, 10)] if self.seconds == 10 else []


def test_bytes_that_flow_are_progress_though_nothing_is_visible(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(AbortedData, "seconds", 0)
    monkeypatch.setattr(fetch_module, "Consumer", AbortedData)
    clock = SimpleNamespace(monotonic=lambda: float(AbortedData.seconds))
    monkeypatch.setattr(fetch_module, "time", clock)
    with reading("broker:9092", poll_timeout_ms=2_000) as client:
        fetched = client.fetch(fetch_range("t", 0, 10), ("value",), IsolationLevel.READ_COMMITTED)
        assert list(fetched) == []
    assert AbortedData.seconds == 10


class Scripted:
    """A consumer that returns the messages in `calls` and records its assignments."""

    calls: ClassVar[list[list[Message]]] = []
    begun_at: ClassVar[list[int]] = []

    def __init__(self, configuration: dict[str, Any], logger: object) -> None:
        pass

    def assign(self, partitions: list[TopicPartition]) -> None:
        self.begun_at.append(partitions[0].offset)

    def close(self) -> None:
        pass

    def consume(self, _count: int, timeout_s: float) -> list[Message]:
        del timeout_s
        return self.calls.pop(0)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> type[Scripted]:
    monkeypatch.setattr(Scripted, "calls", [])
    monkeypatch.setattr(Scripted, "begun_at", [])
    monkeypatch.setattr(fetch_module, "Consumer", Scripted)
    return Scripted


def reader(**changed: Any) -> RangeReader:
    fields: dict[str, Any] = {
        "errors": FetchErrors(
            fetch_range=fetch_range("t", 3, 7),
            isolation_level=IsolationLevel.READ_COMMITTED,
            bootstrap_servers="broker:9092",
            poll_timeout_ms=2_000,
        ),
        "columns": ("value", "offset"),
        "properties": {},
        "events": ErrorEvents("broker:9092"),
        "existing_offsets": lambda: pytest.fail("nothing is wrong"),
        "check_existence": lambda: None,
    }
    return RangeReader(**fields | changed)


def test_messages_after_a_temporary_unknown_topic_are_read_again(scripted: type[Scripted]) -> None:
    unknown = event(KafkaError.UNKNOWN_TOPIC_OR_PART)
    scripted.calls[:] = [
        [record(3), unknown, unknown, record(4), record(5)],
        [record(4), record(5), record(6)],
    ]
    batches = list(reader().batches())
    assert [offset for batch in batches for offset in batch["offset"].to_pylist()] == [3, 4, 5, 6]
    assert scripted.begun_at == [3, 4]


@pytest.mark.parametrize(
    ("columns", "large"),
    [
        (("offset",), {"value": b"x" * 100}),
        (("offset",), {"key": b"x" * 100}),
        (("offset", "headers"), {"headers": [("name", b"x" * 100)]}),
    ],
)
def test_messages_are_yielded_when_they_need_too_much_memory(
    scripted: type[Scripted],
    monkeypatch: pytest.MonkeyPatch,
    columns: tuple[str, ...],
    large: dict[str, Any],
) -> None:
    monkeypatch.setattr(fetch_module, "BYTES_PER_BATCH", 150)
    scripted.calls[:] = [
        [Message(topic="t", partition=0, offset=offset, **large)] for offset in range(3, 7)
    ]
    first = next(iter(reader(columns=columns).batches()))
    assert first["offset"][0].as_py() == 3
    assert len(scripted.calls) == 2


@pytest.mark.parametrize(
    "calls",
    [
        [[record(3), record(4)], [], [], [record(5), record(6)]],
        [[record(3)], [event(KafkaError.UNKNOWN_TOPIC_OR_PART)], [record(4), record(5), record(6)]],
    ],
    ids=["a full batch", "batches around a retriable failure"],
)
def test_sparks_time_does_not_count_as_waiting(
    scripted: type[Scripted], monkeypatch: pytest.MonkeyPatch, calls: list[list[Message]]
) -> None:
    now_s = [0.0]
    monkeypatch.setattr(fetch_module, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    monkeypatch.setattr(fetch_module, "ROWS_PER_BATCH", 2)
    scripted.calls[:] = calls
    rows = 0
    for batch in reader().batches():
        rows += batch.num_rows
        now_s[0] += 600
    assert rows == 4
