"""Tests of the read of a range on an executor: records, data loss, no duplicates."""

from __future__ import annotations

import re

import pytest

from pyspark_kafka.errors import DataLossError, OffsetOutOfRangeError, UnknownTopicOrPartitionError
from pyspark_kafka.kafka.offsets import FetchRange
from pyspark_kafka.source.range_reader import read_range
from pyspark_kafka.source.ranges import PlannedRange
from tests.pyspark_kafka.source.fake_client import FakeClient, FakeLog, FakeTopic, topic
from tests.pyspark_kafka.source.planning import FakeTime, source_options, tp


def read(
    client: FakeClient, start: int, end: int, *, topic_id: str | None = None, **options: str
) -> list[int]:
    """Return the offsets of the records, which are stored in their values."""
    plan = PlannedRange(
        fetch_range=FetchRange(topic_partition=tp("t"), start_offset=start, end_offset=end),
        topic_id=topic_id,
    )
    parsed = source_options(streaming=False, subscribe="t", **options)
    batches = list(read_range(client, plan, ("value",), parsed, sleep=FakeTime().sleep))
    assert all(batch.schema.names == ["value"] for batch in batches)
    return [int(v.as_py().split(b"@")[1]) for batch in batches for v in batch.column("value")]


def test_gaps_are_not_data_loss() -> None:
    client = FakeClient({"t": FakeTopic({0: FakeLog(end=9, gaps=frozenset({2, 3, 6, 8}))})})
    assert read(client, 1, 9) == [1, 4, 5, 7]


def test_only_the_selected_columns_are_fetched() -> None:
    client = FakeClient({"t": topic(4)})
    read(client, 0, 4)
    assert client.fetched[0][1] == ("value",)


def test_records_deleted_before_the_read() -> None:
    client = FakeClient({"t": FakeTopic({0: FakeLog(start=4, end=9)})})
    with pytest.raises(DataLossError, match=r"\b1 to 8\b.*\b4 to 9\b") as caught:
        read(client, 1, 8)
    assert (caught.value.topic, caught.value.partition, caught.value.offset) == ("t", 0, 1)
    assert read(client, 1, 8, failOnDataLoss="false") == [4, 5, 6, 7]
    assert read(client, 1, 3, failOnDataLoss="false") == []


def test_records_deleted_during_the_read(caplog: pytest.LogCaptureFixture) -> None:
    log = FakeLog(end=10)
    client = FakeClient({"t": FakeTopic({0: log})})

    def delete_records(position: int) -> None:
        if position == 4:
            log.start = 7

    client.before_batch = delete_records
    assert read(client, 0, 10, failOnDataLoss="false") == [0, 1, 2, 3, 7, 8, 9]
    assert re.search(r"\b4 to 10\b.*\bt-0\b.*\b7 to 10\b", caplog.text)


def test_no_record_is_repeated_after_a_truncation() -> None:
    log = FakeLog(end=10)
    client = FakeClient({"t": FakeTopic({0: log})})

    def truncate(position: int) -> None:
        if position == 6:
            log.start, log.end = 2, 3

    client.before_batch = truncate
    assert read(client, 0, 10, failOnDataLoss="false") == [0, 1, 2, 3, 4, 5]


def test_a_read_continues_after_a_truncation_with_new_records(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The client reports the truncation, although the log has the offsets again."""
    errors = [OffsetOutOfRangeError("The log was truncated at offset 30.")]
    client = FakeClient({"t": topic(100)})

    def truncate(position: int) -> None:
        if position >= 50 and errors:
            raise errors.pop()

    client.before_batch = truncate
    assert read(client, 0, 100, failOnDataLoss="false") == list(range(100))
    assert "The log was truncated at offset 30" in caplog.text


def test_a_topic_deleted_before_the_read_is_data_loss() -> None:
    client = FakeClient({})
    with pytest.raises(DataLossError) as caught:
        read(client, 0, 4)
    assert (caught.value.topic, caught.value.partition) == ("t", 0)
    assert read(client, 0, 4, failOnDataLoss="false") == []


def test_a_topic_deleted_during_the_read_is_data_loss() -> None:
    client = FakeClient({"t": topic(4)})

    def delete(position: int) -> None:
        if position == 2:
            client.topics.clear()

    client.before_batch = delete
    with pytest.raises(DataLossError, match="0 to 4") as caught:
        read(client, 0, 4)
    assert (caught.value.topic, caught.value.partition, caught.value.offset) == ("t", 0, 0)
    client.topics["t"] = topic(4)
    assert read(client, 0, 4, failOnDataLoss="false") == [0, 1]


@pytest.mark.parametrize("fail_on_data_loss", ["true", "false"])
def test_a_topic_that_a_broker_temporarily_does_not_know_is_not_data_loss(
    fail_on_data_loss: str,
) -> None:
    client = FakeClient({"t": topic(10)})

    def reject(position: int) -> None:
        if position == 4:
            raise UnknownTopicOrPartitionError("t-0 is unknown.", topic="t", partition=0)

    client.before_batch = reject
    with pytest.raises(UnknownTopicOrPartitionError):
        read(client, 0, 10, failOnDataLoss=fail_on_data_loss)


def test_metadata_without_the_topic_is_requested_again() -> None:
    client = FakeClient({"t": topic(3)})
    client.unknown_topics_responses = 2
    assert read(client, 0, 3) == [0, 1, 2]
    client.unknown_topics_responses = 3
    with pytest.raises(DataLossError) as caught:
        read(client, 0, 3)
    assert caught.value.topic == "t"


def test_a_missing_partition_is_data_loss() -> None:
    client = FakeClient({"t": FakeTopic({1: FakeLog(end=4)}, topic_id=None)})
    with pytest.raises(DataLossError) as caught:
        read(client, 0, 4)
    assert (caught.value.topic, caught.value.partition) == ("t", 0)


def test_a_recreated_topic_is_data_loss() -> None:
    client = FakeClient({"t": topic(9, topic_id="new")})
    with pytest.raises(DataLossError, match=r"'t'.*\bold\b.*\bnew\b"):
        read(client, 0, 4, topic_id="old")
    assert read(client, 0, 4, topic_id="old", failOnDataLoss="false") == []
    assert read(client, 0, 4, topic_id="new") == [0, 1, 2, 3]


@pytest.mark.parametrize("topic_id", ["another", None])
def test_a_client_with_pinned_topic_ids_needs_no_metadata_before_its_fetch(
    topic_id: str | None,
) -> None:
    client = FakeClient({"t": topic(4)})
    client.checks_topic_ids = True
    if topic_id is None:
        assert read(client, 0, 4) == [0, 1, 2, 3]
        assert client.requests == ["fetch"]
    else:
        with pytest.raises(DataLossError, match=r"'t'.*\b0 to 4\b"):
            read(client, 0, 4, topic_id=topic_id)
        assert read(client, 0, 4, topic_id=topic_id, failOnDataLoss="false") == []


def test_a_read_from_brokers_without_topic_ids() -> None:
    client = FakeClient({"t": topic(2, topic_id=None)})
    assert read(client, 0, 2) == [0, 1]
