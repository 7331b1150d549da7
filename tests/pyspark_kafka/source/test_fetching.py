"""The executor's read: what is delivered, what is loss, and that nothing is delivered twice."""

from __future__ import annotations

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
    """The offsets of the records delivered, told from their values."""
    plan = PlannedRange(
        fetch_range=FetchRange(topic_partition=tp("t"), start_offset=start, end_offset=end),
        topic_id=topic_id,
    )
    parsed = source_options(streaming=False, subscribe="t", **options)
    batches = list(read_range(client, plan, ("value",), parsed, sleep=FakeTime().sleep))
    assert all(batch.schema.names == ["value"] for batch in batches)
    return [int(v.as_py().split(b"@")[1]) for batch in batches for v in batch.column("value")]


def test_gaps_are_no_loss() -> None:
    client = FakeClient({"t": FakeTopic({0: FakeLog(end=9, gaps=frozenset({2, 3, 6, 8}))})})
    assert read(client, 1, 9) == [1, 4, 5, 7]


def test_only_the_columns_wanted_are_fetched() -> None:
    client = FakeClient({"t": topic(4)})
    read(client, 0, 4)
    assert client.fetched[0][1] == ("value",)


def test_aged_out_before_the_read() -> None:
    client = FakeClient({"t": FakeTopic({0: FakeLog(start=4, end=9)})})
    with pytest.raises(DataLossError, match=r"t-0: offsets 1 to 8 .* 4 to 9 exist.*failOnDataLoss"):
        read(client, 1, 8)
    assert read(client, 1, 8, failOnDataLoss="false") == [4, 5, 6, 7]
    assert read(client, 1, 3, failOnDataLoss="false") == []


def test_aged_out_during_the_read(caplog: pytest.LogCaptureFixture) -> None:
    log = FakeLog(end=10)
    client = FakeClient({"t": FakeTopic({0: log})})

    def delete_records(position: int) -> None:
        if position == 4:
            log.start = 7

    client.before_batch = delete_records
    assert read(client, 0, 10, failOnDataLoss="false") == [0, 1, 2, 3, 7, 8, 9]
    assert "offsets 4 to 10 were to be read, and 7 to 10 exist" in caplog.text


def test_truncated_during_the_read_repeats_nothing() -> None:
    log = FakeLog(end=10)
    client = FakeClient({"t": FakeTopic({0: log})})

    def truncate(position: int) -> None:
        if position == 6:
            log.start, log.end = 2, 3

    client.before_batch = truncate
    assert read(client, 0, 10, failOnDataLoss="false") == [0, 1, 2, 3, 4, 5]


def test_cut_short_and_written_anew_during_the_read_goes_on_behind_what_was_read(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The client says so though the log has the offsets again."""
    faults = [OffsetOutOfRangeError("cut short at offset 30")]
    client = FakeClient({"t": topic(100)})

    def cut(position: int) -> None:
        if position >= 50 and faults:
            raise faults.pop()

    client.before_batch = cut
    assert read(client, 0, 100, failOnDataLoss="false") == list(range(100))
    assert "cut short at offset 30" in caplog.text


def test_deleted_topic() -> None:
    client = FakeClient({})
    with pytest.raises(DataLossError, match="topic 't' was deleted after"):
        read(client, 0, 4)
    assert read(client, 0, 4, failOnDataLoss="false") == []


def test_topic_deleted_during_the_read() -> None:
    client = FakeClient({"t": topic(4)})

    def delete(position: int) -> None:
        if position == 2:
            client.topics.clear()

    client.before_batch = delete
    with pytest.raises(DataLossError, match=r"t-0: offsets 0 to 4 .* 't' was deleted"):
        read(client, 0, 4)
    client.topics["t"] = topic(4)
    assert read(client, 0, 4, failOnDataLoss="false") == [0, 1]


@pytest.mark.parametrize("fail_on_data_loss", ["true", "false"])
def test_a_topic_that_a_broker_forgot_for_a_moment_is_no_loss(fail_on_data_loss: str) -> None:
    client = FakeClient({"t": topic(10)})

    def forget(position: int) -> None:
        if position == 4:
            raise UnknownTopicOrPartitionError("t-0 is not known here yet")

    client.before_batch = forget
    with pytest.raises(UnknownTopicOrPartitionError, match="not known here yet"):
        read(client, 0, 10, failOnDataLoss=fail_on_data_loss)


def test_a_broker_that_has_not_heard_of_the_topic_yet_is_asked_again() -> None:
    client = FakeClient({"t": topic(3)})
    client.unheard_of = 2
    assert read(client, 0, 3) == [0, 1, 2]
    client.unheard_of = 3
    with pytest.raises(DataLossError, match="topic 't' was deleted after"):
        read(client, 0, 3)


def test_partition_gone() -> None:
    client = FakeClient({"t": FakeTopic({1: FakeLog(end=4)}, topic_id=None)})
    with pytest.raises(DataLossError, match="topic 't' has no partition 0 any more"):
        read(client, 0, 4)


def test_recreated_topic_is_not_read_as_if_it_were_the_old_one() -> None:
    client = FakeClient({"t": topic(9, topic_id="new")})
    with pytest.raises(DataLossError, match=r"created again .* was old and is new"):
        read(client, 0, 4, topic_id="old")
    assert read(client, 0, 4, topic_id="old", failOnDataLoss="false") == []
    assert read(client, 0, 4, topic_id="new") == [0, 1, 2, 3]


@pytest.mark.parametrize("topic_id", ["another", None])
def test_a_client_that_pins_ids_is_not_asked_before_it_fetches(topic_id: str | None) -> None:
    client = FakeClient({"t": topic(4)})
    client.pins_topic_ids = True
    if topic_id is None:
        assert read(client, 0, 4) == [0, 1, 2, 3]
        assert client.asked == ["fetch"]
    else:
        with pytest.raises(DataLossError, match=r"offsets 0 to 4 .* 't' was deleted and created"):
            read(client, 0, 4, topic_id=topic_id)
        assert read(client, 0, 4, topic_id=topic_id, failOnDataLoss="false") == []


def test_brokers_without_topic_ids() -> None:
    client = FakeClient({"t": topic(2, topic_id=None)})
    assert read(client, 0, 2) == [0, 1]
