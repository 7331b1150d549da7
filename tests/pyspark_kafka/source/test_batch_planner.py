"""Tests of batch planning: start and end of the read, invalid options, data loss."""

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
from pyspark_kafka.source.batch_planner import (
    has_fixed_bounds,
    plan_again,
    plan_batch,
    resolve_bounds,
)
from pyspark_kafka.source.pruning import EVERYTHING
from tests.pyspark_kafka.source.fake_client import FakeClient, FakeLog, FakeTopic, topic
from tests.pyspark_kafka.source.planning import (
    FakeTime,
    offset_reader,
    planned_ranges,
    source_options,
    spans,
    tp,
)


def plan(client: FakeClient, **options: str) -> list[tuple[str, int, int]]:
    return plan_in(FakeTime(), client, options)


def plan_in(
    time: FakeTime, client: FakeClient, options: Mapping[str, str]
) -> list[tuple[str, int, int]]:
    parsed = source_options(streaming=False, **options)
    return spans(planned_ranges(plan_batch(offset_reader(client, parsed, time), parsed)))


def test_default_is_all_records() -> None:
    client = FakeClient({"t": FakeTopic({0: FakeLog(start=3, end=9), 1: FakeLog(end=4)})})
    assert plan(client, subscribe="t") == [("t-0", 3, 9), ("t-1", 0, 4)]


def test_empty_partitions_need_no_task() -> None:
    assert plan(FakeClient({"t": topic(0, 4)}), subscribe="t") == [("t-1", 0, 4)]


def test_subscribe_several_topics() -> None:
    client = FakeClient({"a": topic(1), "b": topic(2), "c": topic(3)})
    assert plan(client, subscribe=" a , b,") == [("a-0", 0, 1), ("b-0", 0, 2)]


def test_assign_reads_only_its_partitions() -> None:
    assert plan(FakeClient({"t": topic(1, 2, 3)}), assign='{"t":[2,0]}') == [
        ("t-0", 0, 1),
        ("t-2", 0, 3),
    ]


def test_a_pattern_is_not_anchored_and_skips_internal_topics() -> None:
    client = FakeClient(
        {"logs.app": topic(1), "my-logs": topic(2), "__logs": topic(3, is_internal=True)}
    )
    assert plan(client, subscribePattern="logs") == [("logs.app-0", 0, 1), ("my-logs-0", 0, 2)]


def test_a_pattern_without_a_match_reads_nothing(caplog: pytest.LogCaptureFixture) -> None:
    assert plan(FakeClient({"t": topic(1)}), subscribePattern="^x") == []
    assert "subscribePattern=^x" in caplog.text


def test_an_unknown_topic() -> None:
    with pytest.raises(UnknownTopicOrPartitionError, match="broker:9092") as caught:
        plan(FakeClient({"t": topic(1), "orders": topic(1)}), subscribe="t,order")
    assert caught.value.topic == "order"
    assert "'orders'" in caught.value.advice


def test_an_unknown_partition_of_assign() -> None:
    with pytest.raises(OptionError, match="t-0, t-1") as caught:
        plan(FakeClient({"t": topic(1, 1)}), assign='{"t":[0,7]}')
    error = caught.value
    assert (error.option, error.topic, error.partition) == ("assign", "t", 7)


def test_offsets_of_options() -> None:
    client = FakeClient({"t": FakeTopic({0: FakeLog(start=2, end=9), 1: FakeLog(end=9)})})
    assert plan(
        client,
        subscribe="t",
        startingOffsets='{"t":{"0":-2,"1":3}}',
        endingOffsets='{"t":{"0":5,"1":-1}}',
    ) == [("t-0", 2, 5), ("t-1", 3, 9)]


@pytest.mark.parametrize(
    ("option", "value", "partition"),
    [
        ("startingOffsets", '{"t":{"0":1}}', 1),
        ("endingOffsets", '{"t":{"0":1,"1":1,"2":1}}', 2),
        ("startingOffsetsByTimestamp", '{"t":{"0":1}}', 1),
    ],
)
def test_offsets_of_options_must_contain_exactly_the_partitions(
    option: str, value: str, partition: int
) -> None:
    with pytest.raises(OptionError) as caught:
        plan(FakeClient({"t": topic(5, 5)}), subscribe="t", **{option: value})
    error = caught.value
    assert (error.option, error.topic, error.partition) == (option, "t", partition)


def test_timestamps_of_options() -> None:
    client = FakeClient({"t": topic(10, 4)})
    assert plan(client, subscribe="t", startingTimestamp="2500", endingTimestamp="7000") == [
        ("t-0", 3, 7),
        ("t-1", 3, 4),
    ]


def test_precedence_of_starting_options() -> None:
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


def test_a_starting_timestamp_without_a_match_is_an_error_or_latest() -> None:
    client = FakeClient({"t": topic(10, 4)})
    with pytest.raises(OptionError, match="5000") as caught:
        plan(client, subscribe="t", startingTimestamp="5000")
    error = caught.value
    assert (error.option, error.topic, error.partition) == ("startingTimestamp", "t", 1)
    assert plan(
        client,
        subscribe="t",
        startingTimestamp="5000",
        startingOffsetsByTimestampStrategy="LATEST",
    ) == [("t-0", 5, 10)]


def test_committed_offsets_of_a_group() -> None:
    client = FakeClient({"t": FakeTopic({0: FakeLog(start=2, end=9)})})
    read = {"subscribe": "t", "startingOffsets": "committed", "group_id": "g"}
    for offset in (None, 1):
        if offset is not None:
            client.committed["g", tp("t")] = offset
        with pytest.raises(OffsetError) as caught:
            plan(client, **read)
        error = caught.value
        assert (error.group_id, error.topic, error.partition) == ("g", "t", 0)
        assert error.offset == offset
    client.committed["g", tp("t")] = 6
    assert plan(client, **read) == [("t-0", 6, 9)]


@pytest.mark.parametrize(
    ("start", "end", "offset", "expected"),
    [
        pytest.param(1, 6, 1, [("t-0", 3, 6)], id="partly-deleted"),
        pytest.param(0, 2, 0, [], id="deleted"),
        pytest.param(5, 12, 5, [("t-0", 5, 9)], id="end-after-log-end"),
        pytest.param(10, -1, 10, [], id="start-after-log-end"),
        pytest.param(-2, 2, 2, [], id="end-before-log-start"),
    ],
)
def test_data_loss(
    start: int,
    end: int,
    offset: int,
    expected: list[object],
    caplog: pytest.LogCaptureFixture,
) -> None:
    client = FakeClient({"t": FakeTopic({0: FakeLog(start=3, end=9)})})
    offsets = {
        "startingOffsets": f'{{"t":{{"0":{start}}}}}',
        "endingOffsets": f'{{"t":{{"0":{end}}}}}',
    }
    with pytest.raises(DataLossError, match=r"'failOnDataLoss'.*'false'") as caught:
        plan(client, subscribe="t", **offsets)
    error = caught.value
    assert (error.topic, error.partition, error.offset) == ("t", 0, offset)
    with caplog.at_level(logging.WARNING):
        assert plan(client, subscribe="t", failOnDataLoss="false", **offsets) == expected
    assert "'failOnDataLoss'" in caplog.text


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("endingOffsets", '{"t":{"0":3}}'),
        ("endingTimestamp", "3000"),
        ("endingOffsetsByTimestamp", '{"t":{"0":3000}}'),
    ],
)
def test_an_end_before_the_start_is_an_error(option: str, value: str) -> None:
    client = FakeClient({"t": topic(10)})
    client.committed["g", tp("t")] = 8
    with pytest.raises(OptionError, match=r"\b8\b") as caught:
        plan(client, subscribe="t", startingOffsets="committed", group_id="g", **{option: value})
    error = caught.value
    assert (error.option, error.topic, error.partition) == (option, "t", 0)


def test_read_committed_ends_at_the_last_stable_offset() -> None:
    client = FakeClient({"t": FakeTopic({0: FakeLog(end=9, stable=4)})})
    assert plan(client, subscribe="t") == [("t-0", 0, 4)]
    assert plan(client, subscribe="t", isolation_level="read_uncommitted") == [("t-0", 0, 9)]


def test_a_start_after_the_last_stable_offset_reads_nothing_yet() -> None:
    client = FakeClient({"t": FakeTopic({0: FakeLog(end=9, stable=4)})})
    for ending in ({}, {"endingTimestamp": "4000"}):
        assert plan(client, subscribe="t", startingOffsets='{"t":{"0":7}}', **ending) == []


def test_planning_waits_for_an_end_after_the_last_stable_offset() -> None:
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


def test_an_end_after_the_last_stable_offset_is_an_error_after_the_poll_timeout() -> None:
    client, time = FakeClient({"t": FakeTopic({0: FakeLog(end=9, stable=4)})}), FakeTime()
    with pytest.raises(OffsetError, match=r"\b4\b") as caught:
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
    error = caught.value
    assert (error.topic, error.partition, error.offset) == ("t", 0, 8)


def test_errors_are_not_retried_because_the_client_retries() -> None:
    client, time = FakeClient({"t": topic(5)}), FakeTime()
    client.failures = [KafkaError("There is no leader.")]
    with pytest.raises(KafkaError, match="no leader"):
        plan_in(time, client, {"subscribe": "t"})
    assert time.slept == []


def test_ranges_are_split_for_min_partitions() -> None:
    assert plan(FakeClient({"t": topic(10)}), subscribe="t", minPartitions="3") == [
        ("t-0", 0, 3),
        ("t-0", 3, 6),
        ("t-0", 6, 10),
    ]


def test_plans_contain_the_topic_id() -> None:
    client = FakeClient({"t": topic(1, topic_id="abc"), "old": topic(1, topic_id=None)})
    parsed = source_options(streaming=False, subscribe="t,old")
    plans = planned_ranges(plan_batch(offset_reader(client, parsed, FakeTime()), parsed))
    assert [p.topic_id for p in plans] == [None, "abc"]


def test_a_repeated_read_has_new_bounds_and_the_same_bounds_between_tasks() -> None:
    client = FakeClient({"t": topic(12, 4, 0)})
    parsed = source_options(streaming=False, subscribe="t", minPartitions="4")
    reader = offset_reader(client, parsed, FakeTime())
    tasks = plan_batch(reader, parsed)
    assert spans(planned_ranges(tasks)) == [
        ("t-0", 0, 4),
        ("t-0", 4, 8),
        ("t-0", 8, 12),
        ("t-1", 0, 4),
    ]

    client.topics["t"] = FakeTopic(
        {
            0: FakeLog(start=6, end=20),  # The first records have expired.
            1: FakeLog(end=3),  # Truncated, for example when the topic was created again.
            2: FakeLog(end=5),  # It was empty.
            3: FakeLog(end=1),  # It was added.
        }
    )
    bounds = resolve_bounds(reader, parsed, EVERYTHING)
    again = [plan_again(task, bounds, reader, parsed, EVERYTHING) for task in tasks]
    assert [spans(ranges) for ranges in again] == [
        [],
        [("t-0", 6, 8)],
        [("t-0", 8, 20)],
        [("t-1", 0, 3), ("t-2", 0, 5), ("t-3", 0, 1)],
    ]
    assert {planned.topic_id for ranges in again for planned in ranges} == {
        client.topics["t"].topic_id
    }


def test_a_repeated_read_with_several_ranges_per_task() -> None:
    client = FakeClient({"t": topic(12, 4, 6)})
    parsed = source_options(streaming=False, subscribe="t", maxPartitions="2")
    reader = offset_reader(client, parsed, FakeTime())
    tasks = plan_batch(reader, parsed)
    assert [spans(planned_ranges([task])) for task in tasks] == [
        [("t-0", 0, 12)],
        [("t-1", 0, 4), ("t-2", 0, 6)],
    ]
    client.topics["t"] = topic(13, 5, 7, 1)
    bounds = resolve_bounds(reader, parsed, EVERYTHING)
    again = [plan_again(task, bounds, reader, parsed, EVERYTHING) for task in tasks]
    assert [spans(planned) for planned in again] == [
        [("t-0", 0, 13)],
        [("t-1", 0, 5), ("t-2", 0, 7), ("t-3", 0, 1)],
    ]


def test_a_repeated_read_of_a_pattern_reads_topics_that_appeared() -> None:
    client = FakeClient({"t1": topic(3)})
    parsed = source_options(streaming=False, subscribePattern="t.")
    reader = offset_reader(client, parsed, FakeTime())
    (task,) = plan_batch(reader, parsed)
    client.topics = {"t2": topic(2)}
    bounds = resolve_bounds(reader, parsed, EVERYTHING)
    assert spans(plan_again(task, bounds, reader, parsed, EVERYTHING)) == [("t2-0", 0, 2)]


@pytest.mark.parametrize(
    ("starting", "ending", "is_fixed"),
    [
        ('{"t":{"0":1}}', '{"t":{"0":2}}', True),
        ('{"t":{"0":1}}', '{"t":{"0":-1}}', False),
        ('{"t":{"0":-2}}', '{"t":{"0":2}}', False),
        ('{"t":{"0":1}}', "latest", False),
    ],
)
def test_only_specified_offsets_are_fixed(starting: str, ending: str, is_fixed: bool) -> None:
    parsed = source_options(
        streaming=False, subscribe="t", startingOffsets=starting, endingOffsets=ending
    )
    assert has_fixed_bounds(parsed) is is_fixed
