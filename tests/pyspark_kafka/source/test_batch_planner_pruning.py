"""Tests of planning with filters: pruned records are neither read nor data loss."""

from __future__ import annotations

import pytest

from pyspark_kafka.errors import DataLossError, OptionError
from pyspark_kafka.source.batch_planner import plan_again, plan_batch, resolve_bounds
from pyspark_kafka.source.pruning import Condition, Operator, Pruning, prune
from tests.pyspark_kafka.source.fake_client import FakeClient, FakeLog, FakeTopic, topic
from tests.pyspark_kafka.source.planning import (
    FakeTime,
    offset_reader,
    planned_ranges,
    source_options,
    spans,
)


def on(column: str, operator: Operator, value: object) -> Condition:
    return Condition(column=column, operator=operator, value=value)


def plan(client: FakeClient, pruning: Pruning, **options: str) -> list[tuple[str, int, int]]:
    parsed = source_options(streaming=False, subscribe="t", **options)
    return spans(
        planned_ranges(plan_batch(offset_reader(client, parsed, FakeTime()), parsed, pruning))
    )


def test_partitions_are_pruned() -> None:
    pruning = Pruning(on_partitions=(on("partition", Operator.GREATER, 0),))
    assert plan(FakeClient({"t": topic(5, 6, 7)}), pruning) == [("t-1", 0, 6), ("t-2", 0, 7)]


def test_pruned_offsets_are_within_the_limits_of_options() -> None:
    pruning = Pruning(offsets=((1, 4), (6, 100)))
    client = FakeClient({"t": topic(10, 5)})
    assert plan(client, pruning) == [("t-0", 1, 4), ("t-0", 6, 10), ("t-1", 1, 4)]
    limits = {
        "startingOffsets": '{"t":{"0":2,"1":5}}',
        "endingOffsets": '{"t":{"0":9,"1":-1}}',
    }
    assert plan(client, pruning, **limits) == [("t-0", 2, 4), ("t-0", 6, 9)]


def test_ranges_are_split_after_pruning() -> None:
    pruning = Pruning(offsets=((8, 12),))
    assert plan(FakeClient({"t": topic(100)}), pruning, minPartitions="2") == [
        ("t-0", 8, 10),
        ("t-0", 10, 12),
    ]


def test_a_filter_that_no_record_matches_plans_nothing() -> None:
    assert plan(FakeClient({"t": topic(10)}), Pruning(offsets=())) == []


@pytest.mark.parametrize(
    ("since_ms", "expected"),
    [
        (1, [("t-0", 1, 10), ("t-1", 1, 4)]),
        (3_000, [("t-0", 3, 10), ("t-1", 3, 4)]),
        (3_001, [("t-0", 4, 10)]),
        (9_001, []),
    ],
)
def test_a_lower_bound_on_timestamps(since_ms: int, expected: list[object]) -> None:
    assert plan(FakeClient({"t": topic(10, 4)}), Pruning(since_ms=since_ms)) == expected


def test_a_lower_bound_on_timestamps_with_ranges_of_offsets() -> None:
    pruning = Pruning(offsets=((0, 2), (4, 7), (8, 9)), since_ms=5_000)
    assert plan(FakeClient({"t": topic(10)}), pruning) == [("t-0", 5, 7), ("t-0", 8, 9)]


def test_a_lower_bound_before_the_start_has_no_effect() -> None:
    client = FakeClient({"t": topic(10)})
    starting = '{"t":{"0":6}}'
    assert plan(client, Pruning(since_ms=2_000), startingOffsets=starting) == [("t-0", 6, 10)]


def test_a_lower_bound_after_the_last_stable_offset() -> None:
    client = FakeClient({"t": FakeTopic({0: FakeLog(end=9, stable=4)})})
    assert plan(client, Pruning(since_ms=5_000)) == []
    assert plan(client, Pruning(since_ms=5_000), isolation_level="read_uncommitted") == [
        ("t-0", 5, 9)
    ]


def test_records_written_during_planning_are_not_read() -> None:
    """The end is requested first, so that later records are not in the range."""
    log = FakeLog(end=5)
    client = FakeClient({"t": FakeTopic({0: log})})
    requests = 0

    def grow() -> None:
        nonlocal requests
        requests += 1
        log.end = 5 if requests < 4 else 50

    client.on_list_offsets = grow
    assert plan(client, Pruning(since_ms=7_000)) == []
    assert requests == 4, "requests: start, end, log start, timestamp"


def test_pruned_records_are_not_data_loss() -> None:
    client = FakeClient({"t": FakeTopic({0: FakeLog(start=3, end=9), 1: FakeLog(end=9)})})
    offsets = {"startingOffsets": '{"t":{"0":0,"1":0}}', "endingOffsets": '{"t":{"0":20,"1":9}}'}
    assert plan(client, Pruning(offsets=((3, 9),)), **offsets) == [("t-0", 3, 9), ("t-1", 3, 9)]
    other = Pruning(on_partitions=(on("partition", Operator.EQUAL, 1),))
    assert plan(client, other, **offsets) == [("t-1", 0, 9)]
    deleted = {**offsets, "endingOffsets": '{"t":{"0":2,"1":9}}', "startingOffsets": "earliest"}
    assert plan(client, other, **deleted) == [("t-1", 0, 9)]
    for ranges, offset in ((((2, 9),), 2), (((4, 6), (7, 10)), 7)):
        with pytest.raises(DataLossError) as caught:
            plan(client, Pruning(offsets=ranges), **offsets)
        error = caught.value
        assert (error.topic, error.partition, error.offset) == ("t", 0, offset)


def test_options_are_checked_before_pruning() -> None:
    client = FakeClient({"t": topic(10, 10)})
    pruning = Pruning(on_partitions=(on("partition", Operator.EQUAL, 0),))
    with pytest.raises(OptionError) as caught:
        plan(client, pruning, startingOffsets='{"t":{"0":1}}')
    assert (caught.value.option, caught.value.partition) == ("startingOffsets", 1)


def test_a_repeated_read_is_pruned_again() -> None:
    """Spark does not evaluate exact filters, so no other record may be returned."""
    client = FakeClient({"t": topic(50_000, 50_000)})
    parsed = source_options(streaming=False, subscribe="t")
    reader = offset_reader(client, parsed, FakeTime())
    pruning, exact = prune(
        [
            on("partition", Operator.EQUAL, 0),
            Condition(column="offset", operator=Operator.IN, value=[*range(10), 70_000]),
        ]
    )
    assert exact == [True, True]
    tasks = plan_batch(reader, parsed, pruning)
    assert spans(planned_ranges(tasks)) == [("t-0", 0, 10)]
    client.topics["t"] = topic(80_000, 80_000, 80_000)
    bounds = resolve_bounds(reader, parsed, pruning)
    again = [plan_again(task, bounds, reader, parsed, pruning) for task in tasks]
    assert [*map(spans, again)] == [[("t-0", 0, 10), ("t-0", 70_000, 70_001)]]
