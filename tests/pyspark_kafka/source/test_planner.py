"""Batch planning: what limits mean, what is refused, what is loss."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import pytest

from pyspark_kafka.errors import (
    DataLossError,
    KafkaError,
    OffsetError,
    OptionError,
    UnknownTopicOrPartitionError,
)
from pyspark_kafka.source.batch_planner import plan_batch
from tests.pyspark_kafka.source.fake_client import FakeClient, FakeLog, FakeTopic, topic
from tests.pyspark_kafka.source.planning import (
    FakeTime,
    offset_reader,
    source_options,
    spans,
    tp,
)


def plan(client: FakeClient, **options: str) -> list[object]:
    return plan_in(FakeTime(), client, options)


def plan_in(time: FakeTime, client: FakeClient, options: Mapping[str, str]) -> list[object]:
    parsed = source_options(streaming=False, **options)
    return [*spans(plan_batch(offset_reader(client, parsed, time), parsed))]


def test_default_is_everything_that_is_there() -> None:
    client = FakeClient({"t": FakeTopic({0: FakeLog(start=3, end=9), 1: FakeLog(end=4)})})
    assert plan(client, subscribe="t") == [("t-0", 3, 9), ("t-1", 0, 4)]


def test_empty_partitions_need_no_task() -> None:
    assert plan(FakeClient({"t": topic(0, 4)}), subscribe="t") == [("t-1", 0, 4)]


def test_subscribe_several_topics() -> None:
    client = FakeClient({"a": topic(1), "b": topic(2), "c": topic(3)})
    assert plan(client, subscribe=" a , b,") == [("a-0", 0, 1), ("b-0", 0, 2)]


def test_assign_reads_only_what_it_names() -> None:
    assert plan(FakeClient({"t": topic(1, 2, 3)}), assign='{"t":[2,0]}') == [
        ("t-0", 0, 1),
        ("t-2", 0, 3),
    ]


def test_pattern_is_unanchored_and_skips_internal_topics() -> None:
    client = FakeClient(
        {"logs.app": topic(1), "my-logs": topic(2), "__logs": topic(3, is_internal=True)}
    )
    assert plan(client, subscribePattern="logs") == [("logs.app-0", 0, 1), ("my-logs-0", 0, 2)]


def test_pattern_that_matches_nothing_reads_nothing(caplog: pytest.LogCaptureFixture) -> None:
    assert plan(FakeClient({"t": topic(1)}), subscribePattern="^x") == []
    assert "no topic matches subscribePattern=^x" in caplog.text


def test_unknown_topic_is_named() -> None:
    with pytest.raises(UnknownTopicOrPartitionError, match=r"topic 'nope' .*broker:9092"):
        plan(FakeClient({"t": topic(1)}), subscribe="t,nope")


def test_unknown_partition_of_assign_is_named_with_those_that_exist() -> None:
    with pytest.raises(OptionError, match=r"'assign' names t-7, .* it has t-0, t-1"):
        plan(FakeClient({"t": topic(1, 1)}), assign='{"t":[0,7]}')


def test_explicit_offsets() -> None:
    client = FakeClient({"t": FakeTopic({0: FakeLog(start=2, end=9), 1: FakeLog(end=9)})})
    assert plan(
        client,
        subscribe="t",
        startingOffsets='{"t":{"0":-2,"1":3}}',
        endingOffsets='{"t":{"0":5,"1":-1}}',
    ) == [("t-0", 2, 5), ("t-1", 3, 9)]


def test_explicit_offsets_must_name_exactly_the_partitions() -> None:
    client = FakeClient({"t": topic(5, 5)})
    with pytest.raises(OptionError, match=r"'startingOffsets' says nothing about t-1"):
        plan(client, subscribe="t", startingOffsets='{"t":{"0":1}}')
    with pytest.raises(OptionError, match=r"'endingOffsets' names t-2, which .* t-0, t-1"):
        plan(client, subscribe="t", endingOffsets='{"t":{"0":1,"1":1,"2":1}}')
    with pytest.raises(OptionError, match=r"'startingOffsetsByTimestamp' says nothing about t-1"):
        plan(client, subscribe="t", startingOffsetsByTimestamp='{"t":{"0":1}}')


def test_timestamps() -> None:
    client = FakeClient({"t": topic(10, 4)})
    assert plan(client, subscribe="t", startingTimestamp="2500", endingTimestamp="7000") == [
        ("t-0", 3, 7),
        ("t-1", 3, 4),
    ]


def test_timestamp_goes_before_by_timestamp_before_offsets() -> None:
    client = FakeClient({"t": topic(10)})
    offsets, by_timestamp = '{"t":{"0":1}}', '{"t":{"0":2000}}'
    assert plan(
        client, subscribe="t", startingOffsets=offsets, startingOffsetsByTimestamp=by_timestamp
    ) == [("t-0", 2, 10)]
    assert plan(
        client,
        subscribe="t",
        startingOffsets=offsets,
        startingOffsetsByTimestamp=by_timestamp,
        startingTimestamp="5000",
    ) == [("t-0", 5, 10)]


def test_starting_timestamp_without_a_match_is_an_error_or_latest() -> None:
    client = FakeClient({"t": topic(10, 4)})
    with pytest.raises(OptionError, match=r"'startingTimestamp' asks for 5000 in t-1.*Strategy"):
        plan(client, subscribe="t", startingTimestamp="5000")
    assert plan(
        client,
        subscribe="t",
        startingTimestamp="5000",
        startingOffsetsByTimestampStrategy="LATEST",
    ) == [("t-0", 5, 10)]


def test_committed_offsets_of_the_group() -> None:
    client = FakeClient({"t": FakeTopic({0: FakeLog(start=2, end=9)})})
    read = {"subscribe": "t", "startingOffsets": "committed", "group_id": "g"}
    with pytest.raises(OffsetError, match=r"group 'g' has committed no offset for t-0"):
        plan(client, **read)
    client.committed["g", tp("t")] = 1
    with pytest.raises(OffsetError, match=r"'g' has committed offset 1 for t-0, .* 2 to 9"):
        plan(client, **read)
    client.committed["g", tp("t")] = 6
    assert plan(client, **read) == [("t-0", 6, 9)]


@pytest.mark.parametrize(
    ("start", "end", "text", "left"),
    [
        pytest.param(1, 6, r"t-0: offsets 1 to 6 .* 3 to 9 exist", [("t-0", 3, 6)], id="aged-out"),
        pytest.param(0, 2, r"t-0: offsets 0 to 2 .* 3 to 9 exist", [], id="all-aged-out"),
        pytest.param(5, 12, r"t-0: offsets 5 to 12 .* 3 to 9", [("t-0", 5, 9)], id="past-the-end"),
        pytest.param(10, -1, r"t-0: .* from offset 10, and its log ends at 9", [], id="beyond"),
        pytest.param(-2, 2, r"t-0: .* up to offset 2 .* starts at 3", [], id="end-aged-out"),
    ],
)
def test_loss(
    start: int,
    end: int,
    text: str,
    left: list[object],
    caplog: pytest.LogCaptureFixture,
) -> None:
    client = FakeClient({"t": FakeTopic({0: FakeLog(start=3, end=9)})})
    offsets = {
        "startingOffsets": f'{{"t":{{"0":{start}}}}}',
        "endingOffsets": f'{{"t":{{"0":{end}}}}}',
    }
    with pytest.raises(DataLossError, match=text + r".*'failOnDataLoss' to 'false'"):
        plan(client, subscribe="t", **offsets)
    with caplog.at_level(logging.WARNING):
        assert plan(client, subscribe="t", failOnDataLoss="false", **offsets) == left
    assert "failOnDataLoss is false" in caplog.text


def test_range_that_runs_backwards_is_refused() -> None:
    client = FakeClient({"t": topic(10)})
    with pytest.raises(OptionError, match=r"t-0 is to be read from offset 8 back to 3"):
        plan(client, subscribe="t", startingTimestamp="8000", endingOffsets='{"t":{"0":3}}')


def test_read_committed_ends_at_the_last_stable_offset() -> None:
    client = FakeClient({"t": FakeTopic({0: FakeLog(end=9, stable=4)})})
    assert plan(client, subscribe="t") == [("t-0", 0, 4)]
    assert plan(client, subscribe="t", isolation_level="read_uncommitted") == [("t-0", 0, 9)]


def test_start_between_last_stable_offset_and_log_end_is_nothing_yet() -> None:
    client = FakeClient({"t": FakeTopic({0: FakeLog(end=9, stable=4)})})
    assert plan(client, subscribe="t", startingOffsets='{"t":{"0":7}}') == []


def test_end_above_the_last_stable_offset_is_waited_for() -> None:
    log = FakeLog(end=9, stable=4)
    client, time = FakeClient({"t": FakeTopic({0: log})}), FakeTime()

    def end_transaction() -> None:
        if time.now >= 2:
            log.stable = 9

    client.on_list_offsets = end_transaction
    assert plan_in(time, client, {"subscribe": "t", "endingOffsets": '{"t":{"0":8}}'}) == [
        ("t-0", 0, 8)
    ]
    assert 2 <= time.now < 3


def test_end_above_the_last_stable_offset_is_an_error_after_the_poll_timeout() -> None:
    client, time = FakeClient({"t": FakeTopic({0: FakeLog(end=9, stable=4)})}), FakeTime()
    with pytest.raises(OffsetError, match=r"t-0 .* 8, .* stable offset is 4: .*isolation\.level"):
        plan_in(
            time,
            client,
            {
                "subscribe": "t",
                "endingOffsets": '{"t":{"0":8}}',
                "kafkaConsumer.pollTimeoutMs": "7000",
            },
        )
    assert 7 <= time.now < 8


def test_an_error_is_not_asked_again_here_since_the_client_has_done_so() -> None:
    client, time = FakeClient({"t": topic(5)}), FakeTime()
    client.failures = [KafkaError("no leader")]
    with pytest.raises(KafkaError, match="no leader"):
        plan_in(time, client, {"subscribe": "t"})
    assert time.slept == []


def test_ranges_are_split_for_min_partitions() -> None:
    assert plan(FakeClient({"t": topic(10)}), subscribe="t", minPartitions="3") == [
        ("t-0", 0, 3),
        ("t-0", 3, 6),
        ("t-0", 6, 10),
    ]


def test_plan_carries_the_topic_id() -> None:
    client = FakeClient({"t": topic(1, topic_id="abc"), "old": topic(1, topic_id=None)})
    parsed = source_options(streaming=False, subscribe="t,old")
    plans = plan_batch(offset_reader(client, parsed, FakeTime()), parsed)
    assert [p.topic_id for p in plans] == [None, "abc"]
