"""Planning with filters: what they leave out is not read, not asked for, and cannot be lost."""

from __future__ import annotations

import pytest

from pyspark_kafka.errors import DataLossError, OptionError
from pyspark_kafka.source.batch_planner import plan_batch
from pyspark_kafka.source.pruning import Condition, Operator, Pruning
from tests.pyspark_kafka.source.fake_client import FakeClient, FakeLog, FakeTopic, topic
from tests.pyspark_kafka.source.planning import FakeTime, offset_reader, source_options, spans


def on(column: str, operator: Operator, value: object) -> Condition:
    return Condition(column=column, operator=operator, value=value)


def plan(client: FakeClient, pruning: Pruning, **options: str) -> list[object]:
    parsed = source_options(streaming=False, subscribe="t", **options)
    return [*spans(plan_batch(offset_reader(client, parsed, FakeTime()), parsed, pruning))]


def test_only_partitions_that_are_wanted() -> None:
    pruning = Pruning(on_partitions=(on("partition", Operator.GREATER, 0),))
    assert plan(FakeClient({"t": topic(5, 6, 7)}), pruning) == [("t-1", 0, 6), ("t-2", 0, 7)]


def test_offsets_within_where_the_options_start_and_end() -> None:
    pruning = Pruning(offsets=((1, 4), (6, 100)))
    client = FakeClient({"t": topic(10, 5)})
    assert plan(client, pruning) == [("t-0", 1, 4), ("t-0", 6, 10), ("t-1", 1, 4)]
    limits = {
        "startingOffsets": '{"t":{"0":2,"1":5}}',
        "endingOffsets": '{"t":{"0":9,"1":-1}}',
    }
    assert plan(client, pruning, **limits) == [("t-0", 2, 4), ("t-0", 6, 9)]


def test_pruning_comes_before_splitting() -> None:
    pruning = Pruning(offsets=((8, 12),))
    assert plan(FakeClient({"t": topic(100)}), pruning, minPartitions="2") == [
        ("t-0", 8, 10),
        ("t-0", 10, 12),
    ]


def test_nothing_wanted_asks_for_no_range() -> None:
    assert plan(FakeClient({"t": topic(10)}), Pruning(offsets=())) == []


@pytest.mark.parametrize(
    ("since_ms", "left"),
    [
        (1, [("t-0", 1, 10), ("t-1", 1, 4)]),
        (3_000, [("t-0", 3, 10), ("t-1", 3, 4)]),
        (3_001, [("t-0", 4, 10)]),
        (9_001, []),
    ],
)
def test_a_lower_bound_on_timestamps(since_ms: int, left: list[object]) -> None:
    assert plan(FakeClient({"t": topic(10, 4)}), Pruning(since_ms=since_ms)) == left


def test_a_lower_bound_within_ranges_of_offsets() -> None:
    pruning = Pruning(offsets=((0, 2), (4, 7), (8, 9)), since_ms=5_000)
    assert plan(FakeClient({"t": topic(10)}), pruning) == [("t-0", 5, 7), ("t-0", 8, 9)]


def test_a_lower_bound_below_the_start_moves_nothing() -> None:
    client = FakeClient({"t": topic(10)})
    starting = '{"t":{"0":6}}'
    assert plan(client, Pruning(since_ms=2_000), startingOffsets=starting) == [("t-0", 6, 10)]


def test_a_lower_bound_that_only_open_transactions_reach() -> None:
    client = FakeClient({"t": FakeTopic({0: FakeLog(end=9, stable=4)})})
    assert plan(client, Pruning(since_ms=5_000)) == []
    assert plan(client, Pruning(since_ms=5_000), isolation_level="read_uncommitted") == [
        ("t-0", 5, 9)
    ]


def test_records_that_come_while_planning_are_not_looked_for() -> None:
    """The end is looked up first: what matches behind it is not in the range."""
    log = FakeLog(end=5)
    client = FakeClient({"t": FakeTopic({0: log})})
    asked = 0

    def grow() -> None:
        nonlocal asked
        asked += 1
        log.end = 5 if asked < 4 else 50

    client.on_list_offsets = grow
    assert plan(client, Pruning(since_ms=7_000)) == []
    assert asked == 4, "start, end, log start, timestamp"


def test_what_is_not_wanted_is_not_lost() -> None:
    client = FakeClient({"t": FakeTopic({0: FakeLog(start=3, end=9), 1: FakeLog(end=9)})})
    offsets = {"startingOffsets": '{"t":{"0":0,"1":0}}', "endingOffsets": '{"t":{"0":20,"1":9}}'}
    assert plan(client, Pruning(offsets=((3, 9),)), **offsets) == [("t-0", 3, 9), ("t-1", 3, 9)]
    other = Pruning(on_partitions=(on("partition", Operator.EQUAL, 1),))
    assert plan(client, other, **offsets) == [("t-1", 0, 9)]
    gone = {**offsets, "endingOffsets": '{"t":{"0":2,"1":9}}', "startingOffsets": "earliest"}
    assert plan(client, other, **gone) == [("t-1", 0, 9)]
    with pytest.raises(DataLossError, match=r"t-0: offsets 2 to 9 .* 3 to 9 exist"):
        plan(client, Pruning(offsets=((2, 9),)), **offsets)
    with pytest.raises(DataLossError, match=r"t-0: offsets 7 to 10 .* 3 to 9 exist"):
        plan(client, Pruning(offsets=((4, 6), (7, 10))), **offsets)


def test_options_are_checked_as_without_filters() -> None:
    client = FakeClient({"t": topic(10, 10)})
    pruning = Pruning(on_partitions=(on("partition", Operator.EQUAL, 0),))
    with pytest.raises(OptionError, match="'startingOffsets' says nothing about t-1"):
        plan(client, pruning, startingOffsets='{"t":{"0":1}}')
